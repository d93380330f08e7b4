from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared import machine as module
from shared.machine import Gpu, machine


def test_this_machine():
    here = machine()
    assert here.cpu
    assert 1 <= here.cores <= (os.cpu_count() or 1)
    assert 0 < here.memory_available_bytes <= here.memory_bytes
    assert set(here.flags) <= set(module.FLAGS_THAT_MATTER)
    assert here.to_dict()["python"].startswith("3.")


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("200000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8)]
)
def test_cores_respect_the_containers_quota(monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(module, "_read_words", lambda path: quota.split() if path.endswith("cpu.max") else [])
    assert module._cores() == cores


def test_memory_respects_the_containers_limit(monkeypatch):
    content = {"memory.max": "1000000", "memory.current": "400000"}
    monkeypatch.setattr(module, "_read_words", lambda path: content.get(Path(path).name, "").split())
    assert module.memory() == (1000000, 600000)
    content["memory.max"] = "max"
    assert module.memory()[0] > 1000000


def test_a_gpu_that_answers_in_part():
    class NVMLError(Exception):
        pass

    def refuse(handle):
        raise NVMLError

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        nvmlDeviceGetMemoryInfo=refuse,
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
    )
    assert module._gpu(nvml, 0, "570.1") == Gpu("NVIDIA H200", None, (9, 0), "570.1")
