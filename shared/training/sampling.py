"""What a training uses of its machine: CPU, memory and GPUs, looked at now and then from a thread.

Shares of the CPU need no sampling: they are differences of the system's own counters over the whole
epoch. Memory and GPUs are looked at every few seconds, for the peak and the mean.

What it costs, measured on 2 cores of a server's CPU: 0.13 ms a look at the host, 0.17 ms a ``take``. At
one look in two seconds that is less than a ten-thousandth of a core. A GPU's driver adds two calls each.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import psutil

from shared import machine

log = logging.getLogger("casebook.training")

GIB = 1024**3
_NOTHING = (0, 1 << 62, 0)
"""Peak of resident memory, least free memory and peak of GPU memory before anything was seen, bytes."""


class Sampler:
    """Samples while its context is open; :meth:`take` gives the numbers since the last one.

    >>> with Sampler(60.0) as sampler:
    ...     sorted(sampler.take())[:3]
    ['cpu_share', 'host_free_gb', 'host_memory_gb']

    Args:
        interval: Seconds between looks; 0: never, and :meth:`take` gives nothing.
        allocator_peak: Returns the largest number of bytes that TensorFlow has held on one GPU
            since the last call; default: the driver's account alone, which counts all processes.
    """

    def __init__(self, interval: float, *, allocator_peak: Callable[[], int] | None = None) -> None:
        self.interval = interval
        self._allocator_peak = allocator_peak
        self._lock = threading.Lock()
        self._left = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = psutil.Process()
        self._cores = machine.machine().cores
        self._gpus = Gpus()
        self._failed = False
        self._resident, self._free, self._gpu_bytes = _NOTHING
        self._gpu_shares: list[float] = []

    def __enter__(self) -> Sampler:
        if self.interval > 0:
            self._counters = self._count()
            # A daemon: a training that is left without a word must not wait for it.
            self._thread = threading.Thread(target=self._sample, name="casebook-sampler", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)  # a driver that hangs must not hold the training
            self._thread = None
        self._gpus.close()

    def take(self) -> dict[str, float]:
        """The numbers since the last call, or since the context was entered.

        Returns:
            ``cpu_share``: of the cores that this process may use, what it used on average, 0..1;
            ``machine_share``: of all the machine's cores, what all processes used; ``host_memory_gb``:
            peak of this process's resident memory, GiB; ``host_free_gb``: least that was free on the
            host or in the container. With GPUs ``gpu_share``: of the time, how much they worked, averaged
            over them, 0..1; ``gpu_memory_gb``: peak on the fullest one, all processes together. With
            ``allocator_peak`` ``gpu_allocated_gb``. Empty where nothing was sampled.
        """
        if self._thread is None:
            return {}
        self._look()  # the end of an epoch counts, and an epoch may be shorter than the interval
        if self._failed:
            return {}
        with self._lock:
            found = self._numbers()
            self._clear()
        if self._allocator_peak is not None:
            found["gpu_allocated_gb"] = round(self._allocator_peak() / GIB, 4)
        return found

    def _sample(self) -> None:
        while not self._left.wait(self.interval):
            self._look()

    def _look(self) -> None:
        if self._failed:
            return
        try:
            resident = self._process.memory_info().rss
            free = machine.memory()[1]
            used = self._gpus.look()
        except (OSError, psutil.Error) as error:
            self._failed = True
            log.warning("Use of this machine is not sampled any more: %r", error)
            return
        with self._lock:
            self._resident = max(self._resident, resident)
            self._free = min(self._free, free)
            if used:
                self._gpu_shares.append(sum(share for share, _ in used) / len(used))
                self._gpu_bytes = max(self._gpu_bytes, *(taken for _, taken in used), 0)

    def _numbers(self) -> dict[str, float]:
        before, self._counters = self._counters, self._count()
        seconds, mine, busy, all_of_it = (
            now - then for now, then in zip(self._counters, before, strict=True)
        )
        found = {
            "cpu_share": _share(mine, seconds * self._cores),
            "machine_share": _share(busy, all_of_it),
            "host_memory_gb": round(self._resident / GIB, 4),
            "host_free_gb": round(self._free / GIB, 4),
        }
        if self._gpu_shares:
            found["gpu_share"] = round(sum(self._gpu_shares) / len(self._gpu_shares), 4)
            found["gpu_memory_gb"] = round(self._gpu_bytes / GIB, 4)
        return found

    def _count(self) -> tuple[float, float, float, float]:
        """Seconds: of the clock, of this process's CPU, of all cores at work, of all cores."""
        mine, host = self._process.cpu_times(), psutil.cpu_times()
        every = sum(host) - getattr(host, "guest", 0.0) - getattr(host, "guest_nice", 0.0)
        idle = host.idle + getattr(host, "iowait", 0.0)
        return time.perf_counter(), mine.user + mine.system, every - idle, every

    def _clear(self) -> None:
        self._resident, self._free, self._gpu_bytes = _NOTHING
        self._gpu_shares = []


def _share(part: float, whole: float) -> float:
    return round(min(1.0, max(0.0, part / whole)), 4) if whole > 0 else 0.0


class Gpus:
    """The GPUs that this process may see, by NVIDIA's driver library; none where there is no driver.

    TensorFlow is not asked: it would open the devices. The library is opened at the first look.
    """

    def __init__(self) -> None:
        self._library: Any = None
        self._handles: list[Any] | None = None

    def look(self) -> list[tuple[float, int]]:
        """(share of the last moment at work, bytes in use) of each; empty once the driver has failed."""
        if self._handles is None:
            self._handles = self._open()
        if not self._handles:
            return []
        try:
            return [self._one(handle) for handle in self._handles]
        except self._library.NVMLError as error:
            log.warning("The GPU driver does not tell how busy its GPUs are: %s", error)
            self._handles = []
            return []

    def close(self) -> None:
        if self._library is not None:
            library, self._library, self._handles = self._library, None, []
            with suppress(library.NVMLError):  # it may have left by itself
                library.nvmlShutdown()

    def _one(self, handle: Any) -> tuple[float, int]:
        rates = self._library.nvmlDeviceGetUtilizationRates(handle)
        return rates.gpu / 100, int(self._library.nvmlDeviceGetMemoryInfo(handle).used)

    def _open(self) -> list[Any]:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return []
        self._library = pynvml
        try:
            visible = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), pynvml.nvmlDeviceGetCount())
            return [
                pynvml.nvmlDeviceGetHandleByIndex(one)
                if isinstance(one, int)
                else pynvml.nvmlDeviceGetHandleByUUID(one)
                for one in visible
            ]
        except pynvml.NVMLError as error:
            log.warning("The GPU driver does not tell how busy its GPUs are: %s", error)
            return []


def visible_gpus(variable: str | None, count: int) -> list[int | str]:
    """The driver's numbers, or the ids, of the GPUs that CUDA shows by ``CUDA_VISIBLE_DEVICES``.

    The driver's library knows nothing of that variable. As CUDA does, the first entry that cannot be
    meant ends the list. Numbers are taken in the order of the bus, which ``CUDA_DEVICE_ORDER`` may turn.

    >>> visible_gpus(None, 2), visible_gpus("1", 2), visible_gpus("", 2), visible_gpus("0,7,1", 2)
    ([0, 1], [1], [], [0])
    """
    if variable is None:
        return list(range(count))
    found: list[int | str] = []
    for entry in (part.strip() for part in variable.split(",")):
        if entry.startswith(("GPU-", "MIG-")):
            found.append(entry)
        elif entry.isdigit() and int(entry) < count:
            found.append(int(entry))
        else:
            break
    return found
