"""Workers meet at the start of a training: how long they wait for one that never comes.

TensorFlow's strategy waits an hour for all workers to be there, and has no setting for it; the limit of
its collective operations begins only after that. So the chief begins when it can reach the others, whose
servers listen from the moment they have started, and they wait for the chief's no longer than that.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

from shared import cluster, progress
from shared.cluster import Cluster
from shared.errors import DeviceError

_PAUSE = 0.1
_TOLD_AFTER = 3.0
"""Seconds after which a person is told what is waited for; those of one machine need less."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Around what makes the strategy of several workers: they wait so long for each other.

    Raises:
        DeviceError: Some worker did not come.
    """
    import tensorflow as tf

    me = cluster.of_environment()
    if me.index == 0:
        _reach_the_others(me, seconds)
    else:
        # A private part of TensorFlow: where it has moved, its own hour holds.
        with contextlib.suppress(ImportError, AttributeError, TypeError):
            _limit_registration(me.size, seconds)
    try:
        yield
    except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError) as error:
        raise _did_not_come(me, me.addresses[0], seconds) from error


def _reach_the_others(me: Cluster, seconds: float) -> None:
    started = time.monotonic()
    for address in me.addresses[1:]:
        host, _, port = address.rpartition(":")
        while True:
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
                break
            except OSError as error:  # nobody listens there yet, or no such host is known yet
                waited = time.monotonic() - started
                if waited > seconds:
                    raise _did_not_come(me, address, seconds) from error
                if waited > _TOLD_AFTER:
                    progress.emit("waiting for workers", int(waited), note=address)
                time.sleep(_PAUSE)


def _limit_registration(size: int, seconds: float) -> None:
    """As ``CollectiveAllReduceExtended`` does it, which leaves alone what is configured, but with a limit."""
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=max(1, int(seconds * 1000)),
        coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=size)],
    )


def _did_not_come(me: Cluster, address: str, seconds: float) -> DeviceError:
    return DeviceError(
        f"Worker {me.index} of {me.size} waited for the one at {address}, which was not there within "
        f"{seconds:g} s.",
        "Start the same command on every machine, each with its own index in TF_CONFIG, and look at the output "
        "of the one that is missing, and at firewalls. --accelerator.worker-seconds says how long to wait.",
    )
