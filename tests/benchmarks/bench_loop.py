"""Our loop against ``model.fit``: the same model, batch and data in memory, in turns, as a ratio.

Run by ``make bench``; asserts nothing. A ratio above 1 says that ours is faster. Compilation is
left out on both sides: the median epoch counts, without the first. ``fit`` has its defaults, ours
takes 16 steps a call.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from shared import training
from shared.config import TrainSection
from shared.plan import ExecutionPlan

BATCH, EPOCHS, REPEATS, COUNT = 32, 6, 3, 4096
layers = keras.layers


def lstm() -> keras.Model:
    return keras.Sequential([keras.Input((40, 8)), layers.LSTM(24), layers.Dense(1, dtype="float32")])


def cnn() -> keras.Model:
    convolutions = [layers.Conv2D(16, 3, activation="relu", padding="same") for _ in range(2)]
    head = [layers.GlobalAveragePooling2D(), layers.Dense(1, dtype="float32")]
    return keras.Sequential([keras.Input((32, 32, 3)), *convolutions, *head])


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((64,)), layers.Dense(64, "relu"), layers.Dense(1, dtype="float32")])


def main() -> None:
    print(
        f"samples/s of our loop over model.fit's, batch {BATCH}, median of {REPEATS} turns (lowest to highest)"
    )
    for model_fn in (dense, lstm, cnn):
        shape = model_fn().input_shape[1:]
        draw = np.random.default_rng(0)
        x = draw.normal(size=(COUNT, *shape)).astype("float32")
        y = draw.normal(size=(COUNT, 1)).astype("float32")
        ratios = [ours(model_fn, x, y) / keras_fit(model_fn, x, y) for _ in range(REPEATS)]
        print(
            f"  {model_fn.__name__:6} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def ours(model_fn: Callable[[], keras.Model], x: np.ndarray, y: np.ndarray) -> float:
    trained = training.fit(
        model_fn,
        lambda: tf.data.Dataset.from_tensor_slices((x, y)),
        ExecutionPlan(batch_size=BATCH, steps_per_call=16),
        loss=keras.losses.mean_squared_error,
        epochs=EPOCHS,
        train=TrainSection(patience=0, schedule="constant"),
    )
    return COUNT / statistics.median(row["seconds"] for row in trained.history[1:])


def keras_fit(model_fn: Callable[[], keras.Model], x: np.ndarray, y: np.ndarray) -> float:
    model = model_fn()
    model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensor_slices((x, y)).cache().shuffle(COUNT).batch(BATCH).prefetch(2)
    times: list[float] = []
    for _ in range(EPOCHS):
        started = time.perf_counter()
        model.fit(data, verbose=0, shuffle=False)
        times.append(time.perf_counter() - started)
    return COUNT / statistics.median(times[1:])


if __name__ == "__main__":
    main()
