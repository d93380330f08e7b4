"""Workers that wait for one that never comes, and for one that comes late."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from shared import accelerator, rendezvous, worker
from shared.cluster import Cluster
from shared.config import AcceleratorSection
from shared.errors import DeviceError


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def test_a_chief_names_the_worker_that_does_not_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here:
        (gone,) = free_ports(1)
        there = f"127.0.0.1:{here.getsockname()[1]}"
        me = Cluster(("127.0.0.1:1", there, f"127.0.0.1:{gone}"), 0)
        with pytest.raises(
            DeviceError, match=f"Worker 0 of 3 .* 127.0.0.1:{gone}, .* within 0.3 s"
        ) as caught:
            rendezvous._reach_the_others(me, 0.3)
    assert "--accelerator.worker-seconds" in caught.value.remedy


def test_a_worker_that_comes_late_is_waited_for() -> None:
    (port,) = free_ports(1)
    came: list[float] = []

    def late() -> None:
        time.sleep(0.5)
        came.append(time.monotonic())
        with socket.create_server(("127.0.0.1", port)):
            time.sleep(1.0)

    thread = threading.Thread(target=late)
    thread.start()
    rendezvous._reach_the_others(Cluster(("127.0.0.1:1", f"127.0.0.1:{port}"), 0), 30.0)
    assert came
    assert time.monotonic() >= came[0]
    thread.join()


def meet(seconds: float) -> None:
    section = AcceleratorSection.model_validate({"device": "workers", "worker_seconds": seconds})
    with accelerator.opened(section):
        pass


@pytest.mark.soak
@pytest.mark.parametrize("index", [0, 1])
def test_nobody_waits_an_hour_for_a_worker_that_never_comes(index: int) -> None:
    """TensorFlow's own limit is an hour; its servers and their service are the real ones here."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    told = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    started = time.monotonic()
    with pytest.raises(DeviceError, match=f"Worker {index} of 2 waited .*{addresses[1 - index]}"):
        worker.call(meet, 3.0, environment={"TF_CONFIG": json.dumps(told)}, timeout=120.0)
    assert time.monotonic() - started < 60
