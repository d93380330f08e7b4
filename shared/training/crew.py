"""The workers that train one model together: who leads, what falls to each, how they agree.

Every worker runs the same program on the same numbers; gradients, sums and statistics are reduced
over all. What could differ between them (a file that only one can read, a clock, a metric in its
last digit) is decided by the chief and told to all, because workers that decide differently wait
for each other for ever.

A worker that is killed makes the others' next collective operation fail after some ten seconds
(UnavailableError); one that is silent, after ``accelerator.worker_seconds``. All stop then, and a
restart resumes from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from shared.errors import DeviceError
from shared.training import checkpoint
from shared.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class Crew:
    """All workers of a strategy, seen by one of them.

    Attributes:
        size: How many workers; 1 under every strategy of one process.
        index: Which of them this process is; 0 is the chief, who alone writes files.
        replicas: Copies of the model in this process.
    """

    strategy: tf.distribute.Strategy
    size: int = 1
    index: int = 0
    replicas: int = 1

    @property
    def chief(self) -> bool:
        return self.index == 0

    @property
    def part(self) -> tuple[int, int]:
        """Which part of each global batch this worker takes, of how many."""
        return self.index, self.size

    def agree(self, value: Any) -> Any:
        """The chief's ``value``, plain data, on every worker. NaN comes back as NaN."""
        if self.size == 1:
            return value
        return json.loads(self._from_chief(json.dumps(value).encode() if self.chief else b""))

    def share(self, moment: Checkpoint | None) -> Checkpoint | None:
        """The chief's moment on every worker, to the bit."""
        if self.size == 1:
            return moment
        packed = checkpoint.packed(moment) if self.chief and moment is not None else b""
        received = self._from_chief(packed)
        return checkpoint.unpacked(received) if received else None

    def wait(self) -> None:
        """Until all workers are here: who leaves early takes the connections of the others along."""
        self.agree(None)

    def all_say(self, words: str, *, most: int = 1024) -> list[str]:
        """What each worker says, on every worker, in their order; ``most`` bytes of it."""
        if self.size == 1:
            return [words]
        text = np.zeros([self.size, most], np.int32)
        mine = np.frombuffer(words.encode()[:most], np.uint8)
        text[self.index, : len(mine)] = mine
        summed = np.asarray(_summed(self.strategy, tf.constant(text), self.replicas))
        return [bytes(row.astype(np.uint8)).rstrip(b"\0").decode(errors="ignore") for row in summed]

    def _from_chief(self, data: bytes) -> bytes:
        (length,) = self._sum(np.array([len(data)], np.int32))
        if not length:
            return b""
        whole = np.zeros(-(-int(length) // 4) * 4, np.uint8)
        if self.chief:
            whole[: len(data)] = np.frombuffer(data, np.uint8)
        # Sums of integers are exact; of floats, -0.0 would come out as 0.0.
        return self._sum(whole.view(np.int32)).view(np.uint8)[: int(length)].tobytes()

    def _sum(self, values: np.ndarray) -> np.ndarray:
        mine = values if self.chief else np.zeros_like(values)
        return np.asarray(_summed(self.strategy, tf.constant(mine), self.replicas))


@tf.function(reduce_retracing=True)
def _summed(strategy: tf.distribute.Strategy, values: Any, replicas: int) -> Any:
    def on_replica(given: Any) -> Any:
        context = tf.distribute.get_replica_context()
        first = tf.cast(tf.equal(context.replica_id_in_sync_group % replicas, 0), given.dtype)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, given * first)

    return strategy.experimental_local_results(strategy.run(on_replica, args=(values,)))[0]


def of(strategy: tf.distribute.Strategy) -> Crew:
    """The crew of a strategy: one, but for the strategy of several workers."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return Crew(strategy, replicas=strategy.num_replicas_in_sync)
    resolver = strategy.cluster_resolver
    size = resolver.cluster_spec().num_tasks("worker")
    return Crew(strategy, size, int(resolver.task_id), strategy.num_replicas_in_sync // size)


def distributed(strategy: tf.distribute.Strategy, batches: tf.data.Dataset) -> Iterator[Any]:
    """An iterator of batches, each shared over the replicas of this process.

    Args:
        batches: Of one size, known from its element spec. Under several workers each gives its
            own part of the global batch; TensorFlow's own sharding would give all the same one.
    """
    if strategy.num_replicas_in_sync == 1:
        return iter(batches)
    crew = of(strategy)
    if crew.size == 1:
        return iter(strategy.experimental_distribute_dataset(batches))
    rows = int(tf.nest.flatten(batches.element_spec)[0].shape[0])

    def mine(_: Any) -> tf.data.Dataset:
        return batches if crew.replicas == 1 else batches.rebatch(rows // crew.replicas)

    return iter(strategy.distribute_datasets_from_function(mine))


LOST = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError)
"""What a collective operation fails with where another worker is gone or silent."""


@contextlib.contextmanager
def told(crew: Crew) -> Iterator[None]:
    """Says what a failed collective operation means: another worker is gone.

    Raises:
        DeviceError: With TensorFlow's error as its cause.
    """
    try:
        yield
    except (
        *LOST,
        tf.errors.InternalError,
        tf.errors.CancelledError,
        tf.errors.FailedPreconditionError,
    ) as error:
        if crew.size == 1 or not (isinstance(error, LOST) or "ollective" in str(error)):
            raise
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise DeviceError(
            f"Worker {crew.index} of {crew.size} stopped, because another one was lost: {first.strip()[:200]}",
            "Look at the other workers' logs. `casebook resume` goes on from the last checkpoint.",
        ) from error
