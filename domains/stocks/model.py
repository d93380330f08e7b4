"""The network: windows of features in, the probability of a higher close out.

Normalisation is part of the model, learnt from the fold's training sessions only, so the
published model takes features as they are and cannot be fed with another scale.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from domains.stocks import data, features
from shared.contract import Fold, Phase

if TYPE_CHECKING:
    from domains.stocks.config import ModelSection, StocksConfig

EPOCHS = 15
LEARNING_RATE = 2e-3
_CLIP = 6.0
"""Standard deviations beyond which an input says nothing more: a crash may not saturate the cells."""


def phases(prepared: Path, config: StocksConfig, fold: Fold) -> list[Phase]:
    """One phase: the LSTM, from its random start."""
    rows = data.train_rows(prepared, config, fold)
    return [
        Phase(
            name="lstm",
            build=lambda previous: lstm(rows, config.window.sessions, config.model),
            loss=up_loss,
            epochs=EPOCHS,
            learning_rate=LEARNING_RATE,
            metrics={"AUROC": UpAUROC},
        )
    ]


def lstm(train_rows: np.ndarray, sessions: int, section: ModelSection) -> keras.Model:
    """Windows float32 ``[B, sessions, 7]`` to probabilities of up, float32 ``[B, 1]``.

    Args:
        train_rows: Features that normalisation learns mean and variance from, ``[m, 7]``.
    """
    inputs = keras.Input((sessions, len(features.NAMES)), name="window")
    normalization = keras.layers.Normalization(dtype="float32", name="normalization")
    normalization.adapt(train_rows)
    x = normalization(inputs)
    x = Clip(_CLIP, name="clip")(x)
    for layer in range(section.layers):
        more = layer < section.layers - 1
        x = keras.layers.LSTM(section.units, return_sequences=more, name=f"lstm_{layer}")(x)
    x = keras.layers.Dropout(section.dropout, name="dropout")(x)
    # Half precision has no number between 0.9995 and 1: the head stays in float32.
    outputs = keras.layers.Dense(1, activation="sigmoid", dtype="float32", name="up")(x)
    return keras.Model(inputs, outputs, name="stocks_lstm")


@keras.saving.register_keras_serializable("casebook.stocks")
class Clip(keras.layers.Layer):
    """Values limited to ``[-limit, limit]``, in float32."""

    def __init__(self, limit: float, **kwargs: Any) -> None:
        super().__init__(dtype="float32", **kwargs)
        self.limit = limit

    def call(self, x: Any) -> Any:
        return keras.ops.clip(x, -self.limit, self.limit)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("dtype", None)
        return {**config, "limit": self.limit}


def up_loss(y_true: Any, y_pred: Any) -> Any:
    """Binary cross-entropy of the label, ``[B]``; column 1 of the truth (what was earned) is not seen."""
    return keras.losses.binary_crossentropy(y_true[:, :1], y_pred)


@keras.saving.register_keras_serializable("casebook.stocks")
class UpAUROC(keras.metrics.AUC):
    """AUROC of the label, column 0 of the truth."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(y_true[:, :1], y_pred, sample_weight)
