"""The device that training runs on: found, opened, proved, held by one run at a time, released.

Detection believes nobody: a strategy for a GPU that is not there constructs happily and computes
on the CPU, and a TPU resolver succeeds where there is none. So a product is computed on every
device and asked where it ran.

TensorFlow is imported inside functions only, and these run in a child process (``shared/worker.py``):
a GPU's memory is given back only when the process ends (tensorflow#36465).
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared import cluster, lock, placement, rendezvous, tpu
from shared.config import AcceleratorSection
from shared.errors import DeviceError
from shared.machine import Gpu, Machine, machine
from shared.placement import GPU_REMEDY
from shared.plan import ExecutionPlan
from shared.tpu import TPU_REMEDY
from shared.tpu import announced as tpu_announced

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = [
    "TPU_REMEDY",
    "Accelerator",
    "Gpu",
    "Machine",
    "Probe",
    "machine",
    "opened",
    "probe",
    "release",
    "resolve",
    "tpu_announced",
]

log = logging.getLogger("casebook.accelerator")


@dataclass(frozen=True)
class Accelerator:
    """An opened device.

    Attributes:
        strategy: Models are built in its ``scope()``; the training loop runs through it.
        device: ``cpu``, ``gpu``, ``gpus``, ``tpu`` or ``workers``.
        device_name: For people.
        replicas: Copies of the model that share a batch.
        proof: Where the test products really ran, one TensorFlow device name a replica.
    """

    strategy: tf.distribute.Strategy
    device: str
    device_name: str
    replicas: int
    proof: tuple[str, ...]


@dataclass(frozen=True)
class Probe:
    """What TensorFlow sees, and where it really computes.

    Attributes:
        devices: TensorFlow's physical devices.
        device: What ``auto`` (or the section's name) comes to; None where it cannot be had.
        placement: Where a test product really ran.
        tpu: The TPU's answer, or why there is none.
        problems: What is missing, each with its remedy.
    """

    tensorflow: str
    keras: str
    devices: tuple[str, ...]
    device: str | None
    placement: tuple[str, ...]
    tpu: str
    problems: tuple[DeviceError, ...] = ()


def resolve(section: AcceleratorSection) -> str:
    """The device that the section asks for, ``auto`` decided: workers, TPU, GPUs, GPU, CPU in this order.

    Raises:
        DeviceError: It cannot be had here, with the reason and what to install.
    """
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    wanted = section.device
    if wanted == "auto":
        if cluster.announced():
            return "workers"
        if tpu_announced():
            return "tpu"
        return ("cpu", "gpu")[gpus] if gpus < 2 else "gpus"
    if wanted == "gpu" and not gpus:
        raise DeviceError(_no_gpu("a GPU"), GPU_REMEDY)
    if wanted == "gpus" and gpus < 2:
        raise DeviceError(
            _no_gpu("several GPUs") if not gpus else "Several GPUs were asked for; TensorFlow sees one.",
            GPU_REMEDY if not gpus else "Take accelerator.device = gpu.",
        )
    if wanted == "workers":
        cluster.of_environment()
    return wanted


def _no_gpu(what: str) -> str:
    found = machine().gpus
    seen = (
        f"the driver knows {', '.join(gpu.name for gpu in found)}, but TensorFlow's GPU libraries are missing"
        if found
        else "the driver knows of none"
    )
    return f"{what[0].upper()}{what[1:]} was asked for and TensorFlow sees none: {seen}."


@contextlib.contextmanager
def opened(section: AcceleratorSection, *, plan: ExecutionPlan | None = None) -> Iterator[Accelerator]:
    """Within the block this process holds the device, set up and proved. For a child process.

    Waits while another run of this machine holds it. A lock of the operating system is used: it
    goes when its holder ends, however it ends.

    Args:
        plan: Where ``section.device`` is ``auto``, the device that the plan was measured on.

    Raises:
        DeviceError: The device cannot be had; the reason, and what to install.
    """
    if plan is not None and section.device == "auto" and plan.measured:
        section = section.model_copy(update={"device": plan.device})
    with lock.held():
        device = resolve(section)
        accelerator = _open(device, section)
        try:
            if plan is not None and plan.replicas != accelerator.replicas:
                raise DeviceError(
                    f"The plan is for {plan.replicas} replicas, this device has {accelerator.replicas}.",
                    "Plan again with --plan.replan true.",
                )
            yield accelerator
        finally:
            _close(accelerator)


def _close(accelerator: Accelerator) -> None:
    """Gives a TPU back to its system. Any other device's memory goes with its process."""
    if accelerator.device == "tpu":
        tpu.shut_down(accelerator.strategy.cluster_resolver)


def _open(device: str, section: AcceleratorSection) -> Accelerator:
    import tensorflow as tf

    if not os.environ.get("CASEBOOK_DEBUG"):
        logging.getLogger("tensorflow").setLevel(logging.WARNING)  # a line for every all-reduce it plans
    if section.deterministic:
        tf.config.experimental.enable_op_determinism()
    if device == "tpu":
        strategy, proof = tpu.start(tpu.address_of(section.tpu_address))
        return Accelerator(strategy, device, _name(device, section), strategy.num_replicas_in_sync, proof)
    if device == "workers":
        _grow_memory()
        # Without a limit a worker that is silent keeps the others waiting for ever.
        patience = tf.distribute.experimental.CommunicationOptions(timeout_seconds=section.worker_seconds)
        with rendezvous.within(section.worker_seconds):
            strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=patience)
    elif device == "gpus":
        _grow_memory()
        strategy = tf.distribute.MirroredStrategy()
    elif device == "gpu":
        _only(tf.config.list_physical_devices("GPU")[:1], "GPU")
        _grow_memory()
        strategy = tf.distribute.get_strategy()
    else:
        _only([], "GPU")
        strategy = _cpu_strategy(section.logical_cpus)
    proof = placement.proof(strategy, device)
    return Accelerator(strategy, device, _name(device, section), strategy.num_replicas_in_sync, proof)


def _cpu_strategy(logical: int) -> tf.distribute.Strategy:
    import tensorflow as tf

    if logical == 1:
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        # A replica that waits in a sum for the others holds a thread. With as many threads as cores,
        # four replicas on two cores were once seen to stand still for minutes.
        if tf.config.threading.get_inter_op_parallelism_threads() < 4 * logical:
            tf.config.threading.set_inter_op_parallelism_threads(4 * logical)
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * logical)
    except RuntimeError as error:
        if len(tf.config.list_logical_devices("CPU")) != logical:
            raise DeviceError(
                f"The CPU cannot be split into {logical} devices: TensorFlow has already started in this process.",
                "Run it in a fresh process.",
            ) from error
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(logical)])


def _only(devices: list[Any], kind: str) -> None:
    """Hides all other devices of ``kind`` from TensorFlow."""
    import tensorflow as tf

    if tf.config.get_visible_devices(kind) == devices:
        return
    try:
        tf.config.set_visible_devices(devices, kind)
    except RuntimeError as error:
        raise DeviceError(
            "The device cannot be chosen: TensorFlow has already started in this process.",
            "Run it in a fresh process.",
        ) from error


def _grow_memory() -> None:
    """Lets every GPU's memory grow with need, equally on all, before anything touches one."""
    import tensorflow as tf

    try:
        for gpu in tf.config.get_visible_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:  # TensorFlow has started: it holds the memory already
        log.warning("GPU memory will not grow with need: %s", error)


def _name(device: str, section: AcceleratorSection) -> str:
    here = machine()
    cores = f"{here.cpu}, {here.cores} core{'s' if here.cores != 1 else ''}"
    if device == "cpu":
        return cores + (f" as {section.logical_cpus} logical devices" if section.logical_cpus > 1 else "")
    if device == "tpu":
        return f"TPU at {tpu.address_of(section.tpu_address)}"
    names = [gpu.name for gpu in here.gpus] or ["GPU"]
    if device == "gpu":
        return names[0]
    if device == "gpus":
        return f"{len(names)} x {names[0]}"
    return f"{cluster.of_environment().size} workers, each {here.gpus[0].name if here.gpus else cores}"


def probe(section: AcceleratorSection) -> Probe:
    """Asks TensorFlow what it sees and where it really computes. For a child with a time limit.

    Never raises for a device that is missing: that is its finding.
    """
    import keras
    import tensorflow as tf

    devices = tuple(f"{d.device_type} {d.name}" for d in tf.config.list_physical_devices())
    problems: list[DeviceError] = []
    if machine().gpus and not tf.config.list_physical_devices("GPU"):
        problems.append(DeviceError(_no_gpu("a GPU"), GPU_REMEDY))
    device: str | None = None
    proof: tuple[str, ...] = ()
    answer = "announced, and not asked" if tpu_announced() else "no sign of a TPU on this machine"
    try:
        device = resolve(section)
        if device != "workers":  # the others would have to answer
            found = _open(device, section)
            _close(found)
            proof = found.proof
            if device == "tpu":
                answer = f"a TPU answers with {found.replicas} replicas"
    except DeviceError as error:
        problems.append(error)
        answer = error.message if device == "tpu" else answer
        device = None
    return Probe(tf.__version__, keras.__version__, devices, device, proof, answer, tuple(problems))


def release(section: AcceleratorSection, *, timeout: float = 120.0) -> bool | None:
    """Runs the person's ``release_command``, e.g. to stop the cloud machine.

    Never raises: at a run's end, however it ended, there is nobody left to handle it.

    Returns:
        None where there is no command, else whether it succeeded; a failure is logged.
    """
    command = section.release_command
    if not command:
        return None
    try:
        done = subprocess.run(
            command, shell=True, timeout=timeout, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.error("The release command failed, the machine may still cost money: %s", error)
        return False
    if done.returncode:
        tail = (done.stderr or done.stdout).strip()[-500:]
        log.error(
            "The release command ended with %d, the machine may still cost money: %s", done.returncode, tail
        )
        return False
    log.info("The release command was run.")
    return True
