"""The networks that benchmarks train: one of each domain's kind, with examples of their shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from domains.xray.model import head, masked_loss

layers = keras.layers
SQUARED = keras.losses.mean_squared_error


@dataclass(frozen=True)
class Network:
    """A model with what it is trained on.

    Attributes:
        x, y: Shapes of one example and of its truth.
        batch: Examples in a step.
    """

    title: str
    build: Callable[[], keras.Model]
    x: tuple[int, ...]
    y: int
    loss: Callable[[Any, Any], Any] = SQUARED
    batch: int = 32

    def examples(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Noise and coin tosses, float32 ``[count, *x]`` and ``[count, y]``."""
        draw = np.random.default_rng(0)
        x = draw.normal(size=(count, *self.x)).astype("float32")
        return x, draw.integers(0, 2, size=(count, self.y)).astype("float32")


def _lstm() -> keras.Model:
    window = keras.Input((60, 8), name="window")
    hidden = layers.LSTM(64)(layers.LSTM(64, return_sequences=True)(window))
    return keras.Model(window, layers.Dense(2)(hidden))


def _cnn() -> keras.Model:
    x = picture = keras.Input((32, 32, 3), name="picture")
    for _ in range(2):
        x = layers.Conv2D(16, 3, activation="relu", padding="same")(x)
    return keras.Model(picture, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))


def _xray_head() -> keras.Model:
    return head(1280, np.zeros(5), 0.2)


def _xray_loss(y: Any, said: Any) -> Any:
    """Made where it is used: a constant at import would start TensorFlow before workers are set up."""
    return masked_loss(np.ones(5))(y, said)


def _efficientnet() -> keras.Model:
    body = keras.applications.EfficientNetB0(include_top=False, weights=None, input_shape=(96, 96, 3))
    pooled = layers.GlobalAveragePooling2D()(body.output)
    return keras.Model(body.input, layers.Dense(1)(pooled))


LSTM = Network("LSTM 60x8 -> 64 -> 64 -> 2", _lstm, (60, 8), 2)
CNN = Network("CNN 32x32x3, 2 x 16 filters", _cnn, (32, 32, 3), 1)
XRAY_HEAD = Network("head on EfficientNet's 1280 frozen features", _xray_head, (1280,), 5, _xray_loss)
EFFICIENTNET = Network("EfficientNetB0 96x96x3", _efficientnet, (96, 96, 3), 1, batch=8)
