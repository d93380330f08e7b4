"""Training an LSTM: our step on Keras against torch.nn.LSTM, in samples per CPU-second.

Run by ``make bench``; asserts nothing. A ratio above 1 says that ours is faster. Both train the
same network in float32 on the same batch in memory, 60 steps of 8 features through one and two
layers of 64 units to 2 outputs: squared error, gradients clipped to a norm of 1, Adam (torch's
fused one, its fastest). Each library has a process of its own and one thread to compute with,
and the seconds are those of its process: two threads of torch collapse where others use the
machine. Ours takes 16 steps a call. ``unroll`` is our step on ``LSTM(unroll=True)``.
"""

from __future__ import annotations

import functools
import importlib.util
import multiprocessing
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import turns

SESSIONS, FEATURES, UNITS, OUTPUTS = 60, 8, 64, 2
STEPS_PER_CALL = 16
EXAMPLES = 4096
"""In a turn of one library."""
INSTALL = 'torch is not installed: `pip install -e ".[bench]"`, or `pip install torch==2.13.0` (others bring gigabytes)'

Train = Callable[[int], None]
"""Takes that many steps."""


@dataclass(frozen=True)
class Task:
    layers: int
    batch: int

    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(0)
        x = draw.normal(size=(self.batch, SESSIONS, FEATURES)).astype("float32")
        return x, draw.normal(size=(self.batch, OUTPUTS)).astype("float32")


def main() -> None:
    short = turns.quick(__doc__)
    if importlib.util.find_spec("torch") is None:
        print(INSTALL)
        return
    repeats = 1 if short else turns.REPEATS
    tasks = [Task(layers, batch) for layers in (1, 2) for batch in (32, 256)]
    with Library(keras_step) as ours, Library(unrolled_step) as unrolled, Library(torch_step) as torch:
        libraries = {"ours": ours, "ours, unroll": unrolled, "torch": torch}
        print(f"samples per CPU-second over torch's, median of {repeats} turns (lowest to highest)")
        for task in tasks:
            found = turns.in_turns(
                {
                    name: functools.partial(library.seconds_per_step, task)
                    for name, library in libraries.items()
                },
                repeats,
            )
            print(f"60x8 -> {' -> '.join(['64'] * task.layers)} -> 2, batch {task.batch}")
            for name, seconds in found.items():
                speed = task.batch / statistics.median(seconds)
                print(
                    f"  {name:14} {turns.ratio(found['torch'], seconds):22} {speed:8,.0f} samples per CPU-second"
                )


class Library:
    """A process in which one library trains, and nothing else."""

    def __init__(self, make: Callable[[Task], Train]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=answer, args=(make, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join()

    def seconds_per_step(self, task: Task) -> float:
        """CPU-seconds of the process for a step."""
        self._pipe.send(task)
        return float(self._pipe.recv())


def answer(make: Callable[[Task], Train], pipe: Connection) -> None:
    """Lives in the process: trains what it is told to, until the pipe is closed."""
    os.environ.update(
        TF_CPP_MIN_LOG_LEVEL="3", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1", OMP_NUM_THREADS="1"
    )
    made: dict[Task, Train] = {}
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        if task not in made:
            made[task] = make(task)
            made[task](STEPS_PER_CALL)  # compiles
        calls = EXAMPLES // (STEPS_PER_CALL * task.batch)
        spent = [turns.took(lambda train=made[task]: train(STEPS_PER_CALL)).cpu for _ in range(calls)]
        pipe.send(statistics.median(spent) / STEPS_PER_CALL)


def keras_step(task: Task) -> Train:
    return _keras(task)


def unrolled_step(task: Task) -> Train:
    return _keras(task, unroll=True)


def _keras(task: Task, **options: Any) -> Train:
    import keras
    import tensorflow as tf

    from shared.plan import ExecutionPlan
    from shared.training.step import make_stepper

    lstms = [
        keras.layers.LSTM(UNITS, return_sequences=layer < task.layers - 1, **options)
        for layer in range(task.layers)
    ]
    model = keras.Sequential([keras.Input((SESSIONS, FEATURES)), *lstms, keras.layers.Dense(OUTPUTS)])
    plan = ExecutionPlan(batch_size=task.batch)
    stepper = make_stepper(model, keras.losses.mean_squared_error, plan, rate=1e-3)
    one = tf.data.Dataset.from_tensors((*task.examples(), np.ones(task.batch, "float32")))
    batches = stepper.iterate(one.repeat())

    def train(steps: int) -> None:
        stepper.run(batches, steps)

    return train


def torch_step(task: Task) -> Train:
    import torch

    torch.set_num_threads(1)
    if torch.get_num_interop_threads() != 1:  # it can be set once a process
        torch.set_num_interop_threads(1)
    lstm = torch.nn.LSTM(FEATURES, UNITS, task.layers, batch_first=True)
    head = torch.nn.Linear(UNITS, OUTPUTS)
    weights = [*lstm.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(weights, lr=1e-3, fused=True)
    x, y = (torch.from_numpy(part) for part in task.examples())

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            outputs, _ = lstm(x)
            loss = torch.nn.functional.mse_loss(head(outputs[:, -1]), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()

    return train


if __name__ == "__main__":
    main()
