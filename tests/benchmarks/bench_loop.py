"""Our loop against ``model.fit``: the same model, loss, batch and data in memory, on the CPU.

Run by ``make bench``; asserts nothing. A ratio above 1 says that ours is faster. Time runs from the
end of one epoch to the end of the next, the median without the first: compilation is left out on
both sides, all else is in, such as our copy of weights and optimizer to go back to. Ours
also clips gradients to a norm, counts steps with NaN and weighs examples, as it does by default;
``fit`` has its defaults: no clipping. ``fit`` is given arrays, and a tf.data set as its guide makes
one (cache, shuffle, batch, prefetch). Ours takes one step a call, and as many as a plan would choose
(about 0.1 s); ``fit`` its default of one, and as many as ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
import turns
from networks import CNN, LSTM, XRAY_HEAD, Network
from turns import Seconds

from shared import training
from shared.config import TrainSection
from shared.plan import ExecutionPlan
from shared.trial import steps_per_call


def main() -> None:
    short = turns.quick(__doc__)
    epochs, repeats = (3, 1) if short else (4, turns.REPEATS)
    tf.config.set_visible_devices([], "GPU")
    print(f"model.fit's time for an epoch over our loop's, median of {repeats} turns (lowest to highest)")
    for network, count in ((LSTM, 1024), (CNN, 2048), (XRAY_HEAD, 8192)):
        compare(Task(network, *network.examples(count)), epochs, repeats)


@dataclass(frozen=True)
class Task:
    """A network with all its examples."""

    network: Network
    x: np.ndarray
    y: np.ndarray

    def ours(self, epochs: int, several: int) -> Seconds:
        keras.utils.clear_session()
        clock = Clock()
        training.fit(
            self.network.build,
            lambda: tf.data.Dataset.from_tensor_slices((self.x, self.y)),
            ExecutionPlan(batch_size=self.network.batch, steps_per_call=several),
            loss=self.network.loss,
            epochs=epochs,
            train=TrainSection(patience=0, warmup_share=0, schedule="constant"),
            callbacks=[clock],
        )
        return clock.of_an_epoch()

    def fit(self, epochs: int, several: int, **data: Any) -> Seconds:
        keras.utils.clear_session()
        model, clock = self.network.build(), Clock()
        model.compile("adam", self.network.loss, steps_per_execution=several)
        model.fit(**data, epochs=epochs, callbacks=[clock], verbose=0)
        return clock.of_an_epoch()

    def fit_arrays(self, epochs: int, several: int) -> Seconds:
        return self.fit(epochs, several, x=self.x, y=self.y, batch_size=self.network.batch)

    def fit_dataset(self, epochs: int, several: int) -> Seconds:
        cached = tf.data.Dataset.from_tensor_slices((self.x, self.y)).cache().shuffle(len(self.x))
        batches = cached.batch(self.network.batch).prefetch(tf.data.AUTOTUNE)
        return self.fit(epochs, several, x=batches, shuffle=False)


class Clock(keras.callbacks.Callback):
    """The ends of epochs; both loops take it."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[Seconds] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.ends.append(Seconds.now())

    def of_an_epoch(self) -> Seconds:
        return turns.median([b - a for a, b in zip(self.ends, self.ends[1:], strict=False)])


def compare(task: Task, epochs: int, repeats: int) -> None:
    batch = task.network.batch
    steps = len(task.x) // batch
    # As a plan finds it, but timed with its input: of a step, and by the CPU where others use it too.
    chosen = steps_per_call(min(vars(task.ours(3, 1)).values()) / steps, steps)
    ways: dict[str, Callable[[], Seconds]] = {}
    for several in sorted({1, chosen}):
        calls = f"{several} a call" if several > 1 else "1 a call"
        ways[f"fit(arrays), {calls}"] = lambda n=several: task.fit_arrays(epochs, n)  # type: ignore[misc]
        ways[f"ours, {calls}"] = lambda n=several: task.ours(epochs, n)  # type: ignore[misc]
    ways["fit(tf.data), 1 a call"] = lambda: task.fit_dataset(epochs, 1)
    found = turns.in_turns(ways, repeats)
    print(f"{task.network.title}, batch {batch}, {steps} steps an epoch")
    for mine in (name for name in ways if name.startswith("ours")):
        print(f"  {mine}: {len(task.x) / turns.median(found[mine]).clock:,.0f} samples/s; against")
        for theirs in (name for name in ways if name.startswith("fit")):
            clock, cpu = (
                turns.ratio(
                    [getattr(s, kind) for s in found[theirs]], [getattr(s, kind) for s in found[mine]]
                )
                for kind in ("clock", "cpu")
            )
            print(f"    {theirs:24} {clock:22} by the clock, {cpu:22} in CPU time")


if __name__ == "__main__":
    main()
