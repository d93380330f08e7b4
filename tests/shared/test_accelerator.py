"""What can be had is proved, what cannot says why; one run at a time; released however a run ends."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from shared import accelerator, lock, placement, progress, worker
from shared.accelerator import Gpu, machine, opened, probe, release, resolve
from shared.config import AcceleratorSection
from shared.errors import DeviceError
from shared.plan import ExecutionPlan


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASEBOOK_LOCKS", str(tmp_path))
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("TPU_NAME", raising=False)


def section(**kwargs) -> AcceleratorSection:
    return AcceleratorSection.model_validate(kwargs)


def with_gpus(monkeypatch, count: int, driver: int = 0) -> None:
    """As if TensorFlow saw ``count`` GPUs and the driver knew of ``driver``."""
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [SimpleNamespace()] * count)
    gpus = tuple(Gpu("NVIDIA T4") for _ in range(driver))
    real = machine()
    monkeypatch.setattr(
        accelerator, "machine", lambda: SimpleNamespace(gpus=gpus, cpu=real.cpu, cores=real.cores)
    )


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (1, "gpu"), (2, "gpus"), (8, "gpus")])
def test_auto_takes_the_best_that_is_there(monkeypatch, gpus, device):
    with_gpus(monkeypatch, gpus)
    assert resolve(section()) == device


def test_auto_follows_a_tpu_and_a_cluster(monkeypatch):
    with_gpus(monkeypatch, 0)
    monkeypatch.setenv("TPU_NAME", "local")
    assert resolve(section()) == "tpu"
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert resolve(section()) == "workers"


@pytest.mark.parametrize(
    ("device", "gpus", "driver", "message", "remedy"),
    [
        ("gpu", 0, 0, "the driver knows of none", r"\.\[gpu\]"),
        ("gpu", 0, 1, "the driver knows NVIDIA T4, but TensorFlow's GPU libraries are missing", "gpu"),
        ("gpus", 0, 2, "Several GPUs was asked for", "gpu"),
        ("gpus", 1, 1, "TensorFlow sees one", "accelerator.device = gpu"),
    ],
)
def test_what_cannot_be_had_says_why_and_what_to_install(monkeypatch, device, gpus, driver, message, remedy):
    with_gpus(monkeypatch, gpus, driver)
    with pytest.raises(DeviceError, match=message) as caught:
        resolve(section(device=device))
    assert remedy.replace("\\", "") in caught.value.remedy


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "TF_CONFIG is not set"),
        ("{not json", "cannot be used"),
        ('{"cluster": {}}', "cannot be used: it has no 'worker'"),
        (
            '{"cluster": {"worker": "host1:2222"}, "task": {"type": "worker", "index": 0}}',
            "cluster.worker is no list",
        ),
        (
            '{"cluster": {"worker": ["host1"]}, "task": {"type": "worker", "index": 0}}',
            "'host1' is no address with a port",
        ),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
            "task index 1 of 1 workers",
        ),
    ],
)
def test_workers_need_a_sound_cluster(monkeypatch, config, message):
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(DeviceError, match=message) as caught:
        resolve(section(device="workers"))
    assert '"cluster"' in caught.value.remedy


def test_a_cluster_of_workers(monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG",
        json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}),
    )
    assert resolve(section(device="workers")) == "workers"


def test_the_cpu_is_opened_and_proved():
    with opened(section(device="cpu")) as device:
        assert device.device == "cpu"
        assert device.replicas == device.strategy.num_replicas_in_sync == 1
        assert device.proof[0].endswith("CPU:0")
        assert machine().cpu in device.device_name


def test_a_product_that_ran_elsewhere_is_no_proof(monkeypatch):
    with pytest.raises(DeviceError, match=r"could not run on /device:GPU:0|ran on"):
        placement.prove("/device:GPU:0")
    monkeypatch.setattr(
        tf, "device", lambda name: contextlib.nullcontext()
    )  # placement asked for, and ignored
    with pytest.raises(DeviceError, match=r"for /device:GPU:0 ran on .*CPU:0"):
        placement.prove("/device:GPU:0")


def test_a_plan_for_other_replicas_is_refused():
    with (
        pytest.raises(DeviceError, match="for 2 replicas, this device has 1"),
        opened(section(device="cpu"), plan=ExecutionPlan(replicas=2)),
    ):
        pass


def test_a_measured_plan_decides_for_auto(monkeypatch):
    with_gpus(monkeypatch, 0)
    plan = ExecutionPlan(device="gpu", measured=True)
    with pytest.raises(DeviceError, match="A GPU was asked for"), opened(section(), plan=plan):
        pass


def two_logical_cpus() -> tuple[int, tuple[str, ...], str]:
    with opened(section(device="cpu", logical_cpus=2)) as device:
        return device.replicas, device.proof, device.device_name


@pytest.mark.slow
def test_logical_cpus_mirror():
    replicas, proof, name = worker.call(two_logical_cpus, timeout=60)
    assert replicas == 2
    assert [place[-5:] for place in proof] == ["CPU:0", "CPU:1"]
    assert name.endswith("as 2 logical devices")


def test_logical_cpus_after_the_start_of_tensorflow_are_refused():
    tf.constant(1) + 1
    with pytest.raises(DeviceError, match="already started"), opened(section(device="cpu", logical_cpus=3)):
        pass


def no_tpu() -> str:
    with opened(section(device="tpu")):
        return ""


@pytest.mark.slow
def test_a_tpu_that_is_not_there_names_its_wheel():
    with pytest.raises(DeviceError, match="TPU at 'local' cannot be had") as caught:
        worker.call(no_tpu, timeout=60)
    assert "tensorflow-tpu" in caught.value.remedy


@pytest.mark.slow
def test_a_probe_finds_and_never_raises():
    found = worker.call(probe, section(), timeout=60)
    assert found.device == "cpu"
    assert found.placement[0].endswith("CPU:0")
    assert found.tpu.startswith("no sign")
    missing = worker.call(probe, section(device="gpus"), timeout=60)
    assert missing.device is None
    assert missing.problems[-1].remedy


# --- one run at a time ---

HOLDER = "import shared.lock as l, time\nwith l.held():\n    print('held', flush=True)\n    time.sleep(60)\n"


@pytest.fixture
def holder() -> Any:
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_run_waits_and_a_killed_holder_holds_no_longer(holder):
    heard: list[progress.Progress] = []
    threading.Timer(0.5, holder.kill).start()  # SIGKILL
    with progress.listening(heard.append), lock.held():
        assert holder.wait(timeout=10) == -signal.SIGKILL
    assert heard[0].label == "waiting for the accelerator"
    assert str(holder.pid) in heard[0].note


def test_the_same_process_may_enter_again():
    with lock.held(), lock.held():
        assert lock.lock_path().read_text() == str(os.getpid())
    with lock.held():
        pass


# --- release ---


def test_release_runs_the_persons_command(tmp_path):
    sign = tmp_path / "stopped"
    assert release(section(release_command=f"touch '{sign}'")) is True
    assert sign.exists()
    assert release(section()) is None


@pytest.mark.parametrize(
    ("command", "told"), [("echo no such zone >&2; exit 3", "no such zone"), ("sleep 9", "timed out")]
)
def test_a_failing_release_is_told_and_never_raises(caplog, command, told):
    with caplog.at_level(logging.ERROR, "casebook.accelerator"):
        assert release(section(release_command=command), timeout=0.5) is False
    assert told in caplog.text
    assert "may still cost money" in caplog.text
