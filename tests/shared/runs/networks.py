"""A domain whose network is chosen by its configuration: one for each way a converter can behave.

Installed into a test's own site folder (``conftest.py``), so that children find it too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from pydantic import Field

from shared.config import DomainConfig, TrainSection
from shared.contract import Domain, Fold, Phase, Score, Source, Split

COUNT = 240


class NetworksConfig(DomainConfig):
    network: Literal["dense", "conv", "lstm", "loop", "faint", "named", "lambda"] = "dense"
    train: TrainSection = TrainSection(epochs=2)
    units: int = Field(24, ge=1)


@keras.saving.register_keras_serializable("networks")
class Loop(keras.layers.Layer):
    """An LSTM in a loop of its own, which is no recurrent layer of Keras: nothing can unroll it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cell = keras.layers.LSTMCell(8)

    def build(self, shape: Any) -> None:
        self.cell.build((shape[0], shape[2]))

    def call(self, x: Any) -> Any:
        def step(state: Any, now: Any) -> Any:
            return self.cell(now, list(state))[1]

        start = self.cell.get_initial_state(batch_size=tf.shape(x)[0])
        hidden, _ = tf.scan(step, tf.transpose(x, [1, 0, 2]), start)
        return hidden[-1]


@keras.saving.register_keras_serializable("networks")
class Faint(keras.layers.Layer):
    """One, but by weights that are all zero in half precision: there it divides zero by zero."""

    def build(self, shape: Any) -> None:
        start = 1e-9 * np.random.default_rng(0).normal(size=(shape[-1], 32)).astype(np.float32)
        self.faint = self.add_weight(
            name="faint", shape=start.shape, initializer=lambda *_, **__: tf.constant(start), trainable=False
        )

    def call(self, x: Any) -> Any:
        size = tf.reduce_sum(tf.square(tf.matmul(x, self.faint)), axis=-1, keepdims=True)
        return size / tf.sqrt(size * size)


class Networks(Domain):
    name = "networks"
    title = "Is the first corner brighter than the last?"
    Config = NetworksConfig

    def folds(self, prepared: Path, config: Any) -> list[Fold]:
        ends = {"train": (0, 140), "validation": (140, 180), "test": (180, COUNT)}
        splits: dict[Split, np.ndarray] = {name: np.arange(*span) for name, span in ends.items()}  # type: ignore[misc]
        return [Fold("only", splits, np.array([f"{number:03d}" for number in range(COUNT)]))]

    def examples(self, prepared: Path, config: Any, fold: Fold, split: Split) -> Source:
        x = np.random.default_rng(0).normal(size=(COUNT, 8, 8)).astype(np.float32)
        y = (x[:, 0, 0] + x[:, 0, 1] > x[:, 7, 7]).astype(np.float32)[:, None]
        x[:, 3] = 0.0
        chosen = fold.splits[split]
        data = x[chosen] if config.network != "named" else {"left": x[chosen], "right": x[chosen, 0]}
        return Source(len(chosen), dataset=tf.data.Dataset.from_tensor_slices((data, y[chosen])))

    def phases(self, prepared: Path, config: Any, fold: Fold) -> list[Phase]:
        loss = keras.losses.binary_crossentropy
        return [Phase("only", lambda previous: network(config.network, config.units), loss, 2, 1e-2)]

    def score(self, prepared: Path, config: Any) -> Score:
        from shared.evaluation.metrics import auroc

        return Score("AUROC", auroc, higher_is_better=True, chance=0.5)

    def ingest(self, *args: Any, **kwargs: Any) -> Any: ...
    def baselines(self, *args: Any, **kwargs: Any) -> Any: ...
    def evaluate(self, *args: Any, **kwargs: Any) -> Any: ...
    def predict(self, *args: Any, **kwargs: Any) -> Any: ...
    def synthesize(self, *args: Any, **kwargs: Any) -> Any: ...


def network(kind: str, units: int = 24) -> keras.Model:
    """Pictures ``[B, 8, 8]`` to ``[B, 1]``, by a network of this kind."""
    layers = keras.layers
    x = inputs = keras.Input((8, 8), name="picture")
    if kind == "named":
        right = keras.Input((8,), name="right")
        left = keras.Input((8, 8), name="left")
        x = layers.Concatenate()([layers.Flatten()(left), right])
        return keras.Model(
            {"left": left, "right": right}, layers.Dense(1, activation="sigmoid", name="brighter")(x)
        )
    if kind == "conv":
        x = layers.Reshape((8, 8, 1))(x)
        x = layers.Conv2D(units, 3, activation="relu")(x)
        x = layers.DepthwiseConv2D(3, activation="relu")(x)
        x = layers.GlobalAveragePooling2D()(x)
    elif kind == "lstm":
        x = layers.Bidirectional(layers.LSTM(units))(x)
    elif kind == "loop":
        x = Loop()(x)
    else:
        x = layers.Dense(units, activation="relu")(layers.Flatten()(x))
        x = layers.BatchNormalization()(x)
    if kind == "lambda":
        x = layers.Lambda(lambda x: 2.0 * x, output_shape=(units,))(x)
    outputs = layers.Dense(1, activation="sigmoid", name="brighter")(x)
    if kind == "faint":  # last: LiteRT's own limits of a relu make a NaN a number
        outputs = layers.Multiply()([outputs, Faint()(layers.Flatten()(inputs))])
    return keras.Model(inputs, outputs)


domain = Networks()
