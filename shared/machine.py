"""What this machine is, without importing TensorFlow: cores, memory, CPU flags, GPUs."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FLAGS_THAT_MATTER = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "bf16")


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it; None where the driver does not say."""

    name: str
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    driver: str | None = None


@dataclass(frozen=True)
class Machine:
    """What there is to run on.

    Attributes:
        cpu: Model name.
        cores: Cores that this process may use, by affinity and container quota; at least 1.
        memory_bytes: RAM that this process may use, by machine and container.
        memory_available_bytes: Of it, free at the moment of asking.
        flags: The CPU features that decide on speed, of :data:`FLAGS_THAT_MATTER`.
        gpus: NVIDIA GPUs by the driver's account; TensorFlow may still not be able to use them.
    """

    cpu: str
    cores: int
    memory_bytes: int
    memory_available_bytes: int
    flags: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    system: str
    python: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def machine() -> Machine:
    """Looks at this machine. Takes milliseconds; imports no TensorFlow."""
    total, available = memory()
    model, flags = _cpu()
    return Machine(
        cpu=model,
        cores=_cores(),
        memory_bytes=total,
        memory_available_bytes=available,
        flags=flags,
        gpus=_gpus(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
    )


def _cpu() -> tuple[str, tuple[str, ...]]:
    model, flags = "", set[str]()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and not model:
                model = value.strip()
            elif key.strip().lower() in ("flags", "features") and not flags:
                flags = set(value.split())
    except OSError:
        pass  # not Linux
    return model or platform.processor() or platform.machine(), tuple(
        flag for flag in FLAGS_THAT_MATTER if flag in flags
    )


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read_words("/sys/fs/cgroup/cpu.max")
    if len(quota) == 2 and quota[0] != "max":
        cores = min(cores, max(1, round(int(quota[0]) / int(quota[1]))))
    return cores


def memory() -> tuple[int, int]:
    """RAM that this process may use, by machine and container, and how much of it is free; in bytes."""
    import psutil

    host = psutil.virtual_memory()
    total, available = int(host.total), int(host.available)
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, used = _read_words(limit_file), _read_words(used_file)
        if limit and limit[0].isdigit() and int(limit[0]) < total:
            total = int(limit[0])
            if used and used[0].isdigit():
                available = min(available, max(0, total - int(used[0])))
    return total, available


def _read_words(path: str) -> list[str]:
    try:
        return Path(path).read_text().split()
    except OSError:
        return []


def _gpus() -> tuple[Gpu, ...]:
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        return tuple(_gpu(pynvml, index, driver) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: Any, index: int, driver: str) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: Any) -> Any:
        try:
            return question(handle)
        except pynvml.NVMLError:
            return None

    memory = ask(pynvml.nvmlDeviceGetMemoryInfo)
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability)
    return Gpu(
        name=str(ask(pynvml.nvmlDeviceGetName) or f"GPU {index}"),
        memory_bytes=None if memory is None else int(memory.total),
        compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
        driver=driver,
    )
