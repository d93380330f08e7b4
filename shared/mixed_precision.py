"""Which precision policies a device can use, and what stays float32 whatever the policy.

Mixed precision computes in 16 bits and keeps weights, head and loss in 32. It pays where the
device multiplies 16-bit numbers faster, and nowhere else: on a CPU float16 is slower than float32
(tensorflow#45441; in trials of ours 1.1 to 14 times, by model). What is *usable* is
decided here from the device's features; what is *faster* only a trial can tell (``shared/batch_size.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import TrainingError

if TYPE_CHECKING:
    import keras

    from shared.machine import Machine

NAMES = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclass(frozen=True)
class Policy:
    """A Keras dtype policy, whether this device can use it, and why (not)."""

    name: str
    usable: bool
    reason: str


def candidates(machine: Machine, device: str) -> list[Policy]:
    """All policies of Keras with a verdict for ``device``, best understood first.

    Args:
        device: ``cpu``, ``gpu``, ``gpus``, ``tpu`` or ``workers``; workers are judged by this
            machine's GPUs, or its CPU where it has none.
    """
    policies = [Policy("float32", True, "every device computes in float32")]
    if device == "tpu":
        return [
            *policies,
            Policy("mixed_bfloat16", True, "a TPU multiplies in bfloat16"),
            Policy("mixed_float16", False, "a TPU has no float16 units; bfloat16 is its 16-bit format"),
        ]
    if device in ("gpu", "gpus") or (device == "workers" and machine.gpus):
        return [*policies, *_on_gpus(machine)]
    return [*policies, *_on_cpu(machine)]


def _on_gpus(machine: Machine) -> list[Policy]:
    known = [gpu.compute_capability for gpu in machine.gpus if gpu.compute_capability is not None]
    if not known:
        reason = "the GPU's compute capability is not known, so its 16-bit units are not either"
        return [Policy(name, False, reason) for name in NAMES[1:]]
    weakest = min(known)  # every replica runs the same policy
    shown = f"compute capability {weakest[0]}.{weakest[1]}"
    return [
        Policy("mixed_bfloat16", weakest >= (8, 0), f"{shown}; bfloat16 units come with 8.0"),
        Policy("mixed_float16", weakest >= (7, 0), f"{shown}; float16 units come with 7.0"),
    ]


def _on_cpu(machine: Machine) -> list[Policy]:
    found = sorted({"avx512_bf16", "amx_bf16", "bf16"} & set(machine.flags))
    return [
        Policy(
            "mixed_bfloat16",
            bool(found),
            f"the CPU has {', '.join(found)}" if found else "the CPU has neither avx512_bf16 nor amx_bf16",
        ),
        Policy("mixed_float16", False, "TensorFlow's CPU kernels are slower in float16 than in float32"),
    ]


def apply(name: str) -> None:
    """Makes ``name`` Keras's policy for the layers created from now on.

    Raises:
        TrainingError: Keras has no such policy.
    """
    import keras

    if name not in NAMES:
        raise TrainingError(f"There is no precision policy {name!r}.", f"Known: {', '.join(NAMES)}.")
    keras.config.set_dtype_policy(name)


def check_float32_head(model: keras.Model) -> None:
    """Refuses a model that answers in half precision, where sigmoid(8) is exactly 1.

    Raises:
        TrainingError: Names the output and what to write instead.
    """
    for name, output in _outputs(model):
        dtype = getattr(output.dtype, "name", output.dtype)
        if dtype not in ("float32", "float64"):
            raise TrainingError(
                f"The output {name!r} of model {model.name!r} is {dtype}; probabilities and losses "
                "need float32.",
                'Give its last layer dtype="float32", e.g. keras.layers.Dense(1, dtype="float32").',
            )


def _outputs(model: keras.Model) -> list[tuple[str, Any]]:
    outputs = getattr(model, "outputs", None)
    if not outputs:  # a subclassed model: its head is only seen when it is called
        return []
    if isinstance(outputs, Mapping):
        return list(outputs.items())
    return [(getattr(output, "name", "output"), output) for output in outputs]
