"""Use of the machine: true numbers, at the end of every epoch, and a thread that leaves."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from shared import machine
from shared.training.sampling import GIB, Gpus, Sampler

HOST = {"cpu_share", "machine_share", "host_memory_gb", "host_free_gb"}


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "casebook-sampler"]


def test_the_share_of_the_cpu_is_what_was_used():
    cores = machine.machine().cores
    with Sampler(60.0) as sampler:
        sampler.take()
        used, started = time.process_time(), time.perf_counter()
        while time.process_time() - used < 0.4:
            pass
        found = sampler.take()
        used, taken = time.process_time() - used, time.perf_counter() - started
    assert set(found) == HOST
    assert found["cpu_share"] == pytest.approx(used / (taken * cores), abs=0.06)  # ticks of 10 ms
    assert 0 < found["machine_share"] <= 1


def test_a_peak_between_two_looks_of_the_epoch_is_seen_once():
    with Sampler(0.01) as sampler:
        before = sampler.take()["host_memory_gb"]
        much = bytearray(GIB // 16)
        much[::4096] = b"x" * len(much[::4096])
        deadline = time.monotonic() + 10
        while sampler._resident < (before + 0.05) * GIB and time.monotonic() < deadline:
            time.sleep(0.01)
        del much
        assert sampler.take()["host_memory_gb"] > before + 0.05
        after = sampler.take()
    assert after["host_memory_gb"] < before + 0.05
    assert 0 < after["host_free_gb"] <= machine.memory()[0] / GIB


def test_switched_off_there_is_no_thread_and_no_number():
    with Sampler(0) as sampler:
        assert not threads()
        assert sampler.take() == {}


def test_the_thread_leaves_with_its_context_also_by_an_error():
    sampler = Sampler(0.01)
    with suppress(ValueError), sampler:
        assert threads()
        raise ValueError("stop")
    assert not threads()
    assert sampler.take() == {}


def test_a_process_that_leaves_without_a_word_is_not_kept():
    code = "from shared.training.sampling import Sampler; Sampler(0.01).__enter__(); print('left')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode, done.stderr) == ("left", 0, "")


def test_what_the_system_does_not_tell_ends_sampling_with_one_warning(monkeypatch, caplog):
    def denied(self: Any) -> Any:
        raise psutil.AccessDenied

    with caplog.at_level(logging.WARNING, "casebook.training"), Sampler(60.0) as sampler:
        monkeypatch.setattr(psutil.Process, "memory_info", denied)
        assert sampler.take() == {}
        assert sampler.take() == {}
    assert caplog.text.count("is not sampled any more") == 1


def test_the_allocators_peak_is_asked_for_where_it_is_given():
    with Sampler(60.0, allocator_peak=lambda: GIB // 2) as sampler:
        assert sampler.take()["gpu_allocated_gb"] == 0.5


class Driver:
    """Stands in for NVIDIA's driver library, which no machine without its GPUs has."""

    class NVMLError(Exception):
        pass

    def __init__(self, busy: list[int], tells: bool = True, there: bool = True) -> None:
        self.busy, self.tells, self.there, self.opened = busy, tells, there, 0

    def nvmlInit(self) -> None:
        if not self.there:
            raise self.NVMLError("no driver")
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.busy)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        return int(name.removeprefix("GPU-"))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if not self.tells:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=self.busy[handle])

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=(handle + 1) * GIB)


@pytest.mark.parametrize(
    ("visible", "share", "memory"), [(None, 0.4, 3.0), ("1", 0.5, 2.0), ("GPU-0,2", 0.35, 3.0)]
)
def test_gpus_that_are_visible_are_counted(monkeypatch, visible, share, memory):
    driver = Driver([20, 50, 50])
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    sampler = Sampler(60.0)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    with sampler:
        found = sampler.take()
        assert driver.opened == 1
    assert (found["gpu_share"], found["gpu_memory_gb"]) == (share, memory)
    assert driver.opened == 0


def test_a_driver_that_does_not_tell_is_asked_once(monkeypatch, caplog):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Driver([20], tells=False))
    gpus = Gpus()
    with caplog.at_level(logging.WARNING, "casebook.training"):
        assert gpus.look() == gpus.look() == []
    assert caplog.text.count("Not Supported") == 1
    gpus.close()


def test_no_driver_is_no_news(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "pynvml", Driver([], there=False))
    assert Gpus().look() == []
    assert not caplog.text
