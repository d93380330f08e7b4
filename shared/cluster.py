"""Which worker processes train one model together, and which of them this one is.

Either several on this machine (``accelerator.workers``), which a run starts by itself, or one on
each of several machines, which ``TF_CONFIG`` names as TensorFlow documents it: a JSON object with
``cluster.worker``, the addresses of all in one order for all, and ``task``, whose index says which
of them this process is. Worker 0 is the chief: it makes the run; the others only train with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass

from shared.config import AcceleratorSection
from shared.errors import DeviceError
from shared.machine import machine

VARIABLE = "TF_CONFIG"
_EXAMPLE = (
    'TF_CONFIG=\'{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}\''
)


@dataclass(frozen=True)
class Cluster:
    """Workers by address, and the place of this process among them."""

    addresses: tuple[str, ...]
    index: int

    @property
    def size(self) -> int:
        return len(self.addresses)


def announced() -> bool:
    """Whether the environment says that this process is one of several workers."""
    return bool(os.environ.get(VARIABLE))


def of_environment() -> Cluster:
    """The cluster that TF_CONFIG describes.

    Raises:
        DeviceError: TF_CONFIG is missing or is not what TensorFlow expects.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        raise DeviceError(
            "Workers were asked for, but TF_CONFIG is not set.",
            f"Start several on this machine with --workers N, or set it on each machine: {_EXAMPLE}.",
        )
    try:
        config = json.loads(text)
        workers, task = config["cluster"]["worker"], config["task"]
        if not isinstance(workers, list):
            raise ValueError("cluster.worker is no list of addresses")
        for address in workers:
            if not str(address).rpartition(":")[2].isdecimal():
                raise ValueError(f"{address!r} is no address with a port")
        if set(config["cluster"]) != {"worker"} or task.get("type", "worker") != "worker":
            raise ValueError("only workers are known; worker 0 is the chief")
        if not 0 <= int(task["index"]) < len(workers):
            raise ValueError(f"task index {task['index']} of {len(workers)} workers")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise DeviceError(f"TF_CONFIG cannot be used: {why}.", f"It looks like {_EXAMPLE}.") from error
    return Cluster(tuple(map(str, workers)), int(task["index"]))


def size(section: AcceleratorSection) -> int:
    """How many workers train together; 1: this process trains alone.

    Raises:
        DeviceError: Both ways of asking for workers were taken, or TF_CONFIG cannot be used.
    """
    if section.workers > 1:
        if announced() or section.device in ("tpu", "gpus"):
            other = "TF_CONFIG" if announced() else f"accelerator.device = {section.device}"
            raise DeviceError(
                f"accelerator.workers = {section.workers} and {other} were both given.", "Take one of them."
            )
        return section.workers
    if section.device == "workers" or (section.device == "auto" and announced()):
        return of_environment().size
    return 1


def environments(count: int) -> list[dict[str, str]]:
    """Variables for ``count`` workers on this machine: who they are, and their share of it.

    Each gets a GPU of its own, where there are any, and its part of the CPU's cores.

    Raises:
        DeviceError: There are GPUs, but fewer than workers.
    """
    here = machine()
    if here.gpus and len(here.gpus) < count:
        raise DeviceError(
            f"{count} workers want a GPU each; this machine has {len(here.gpus)}.",
            f"Take accelerator.workers = {len(here.gpus)}, or accelerator.device = gpus.",
        )
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(count)]
    made = []
    for index in range(count):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        variables = {
            VARIABLE: json.dumps(task),
            "TF_NUM_INTRAOP_THREADS": str(max(1, here.cores // count)),
        }
        if here.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = str(index)
        made.append(variables)
    return made


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; held all at once, so that they differ."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            listener = held.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(int(listener.getsockname()[1]))
        return ports
