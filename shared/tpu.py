"""A TPU: whether the machine says that it has one, opened in TensorFlow's order, proved, shut down.

The order is that of TensorFlow's guide (tensorflow.org/guide/tpu): resolver, connection where it is on
another machine, initialisation, strategy. A TPU belongs to one process: what was initialised
here is shut down again, also where a later step fails. Connecting and initialising can hang for ever
(tensorflow#34564), so all of this runs in a child with a time limit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared import placement
from shared.errors import DeviceError

if TYPE_CHECKING:
    import tensorflow as tf

log = logging.getLogger("casebook.accelerator")

TPU_REMEDY = (
    "On a TPU virtual machine install the wheel with TPU kernels, in the checkout: "
    "`pip install -c constraints-tpu.txt -e . && pip uninstall -y tensorflow && "
    "pip install -c constraints-tpu.txt tensorflow-tpu`."
)

_HERE = ("", "local")
"""What a resolver gives as the master of a TPU that is part of this machine."""

_GOOGLE = "0x1ae0"
_CHIPS = frozenset({"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f"})
"""PCI ids of v2 and v3, an unnamed one, v4, v5p, v5e, v6e, as JAX knows them (jax/_src/hardware_utils.py).
The vendor alone will not do: Google's network card is in every machine of its cloud."""

_LONGEST_REASON = 200


def announced(root: Path = Path("/")) -> bool:
    """Whether this machine says that it has a TPU. Asking TensorFlow instead can hang for ever.

    It says so by ``TPU_NAME``, by a device file (up to v5e), or by a chip on its bus (all).

    Args:
        root: Of the file system.
    """
    if os.environ.get("TPU_NAME") or any((root / "dev").glob("accel[0-9]*")):
        return True
    return any(_is_chip(device) for device in (root / "sys/bus/pci/devices").glob("*"))


def _is_chip(device: Path) -> bool:
    try:
        vendor = (device / "vendor").read_text().strip()
        return vendor == _GOOGLE and (device / "device").read_text().strip() in _CHIPS
    except OSError:  # a device that has gone, or may not be read
        return False


def address_of(given: str) -> str:
    """The address that the configuration means: ``local`` is where ``TPU_NAME`` leads, if that is set."""
    return os.environ.get("TPU_NAME") or given if given == "local" else given


def start(address: str) -> tuple[tf.distribute.Strategy, tuple[str, ...]]:
    """The strategy of the TPU at ``address``, and where a test product ran on each of its cores.

    Raises:
        DeviceError: It cannot be had; TensorFlow's reason, and the wheel to install. It is shut down
            then, if it had been initialised.
    """
    import tensorflow as tf

    with contextlib.ExitStack() as undo:
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
            if resolver.master() not in _HERE:  # the address "" leads where TPU_NAME says
                tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            undo.callback(shut_down, resolver)
            strategy = tf.distribute.TPUStrategy(resolver)
            proof = placement.proof(strategy, "tpu")
        except Exception as error:  # every release raises another kind
            raise DeviceError(
                f"The TPU at {address!r} cannot be had: {_reason(error)}.", TPU_REMEDY
            ) from error
        undo.pop_all()
    return strategy, proof


def shut_down(resolver: Any) -> None:
    """Gives the TPU back to its system. Never raises: the work is done, a TPU that is gone cannot be closed."""
    import tensorflow as tf

    try:
        tf.tpu.experimental.shutdown_tpu_system(resolver)
    except Exception as error:
        log.warning("The TPU system could not be shut down: %s", _reason(error))


def _reason(error: Exception) -> str:
    """TensorFlow's first line; of a long one, which quotes ops and kernels, the first sentence."""
    said = error.message if isinstance(error, DeviceError) else str(error)
    line = next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__)
    if len(line) > _LONGEST_REASON:
        line = re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0]
    return textwrap.shorten(line, _LONGEST_REASON, placeholder=" …").rstrip(".")
