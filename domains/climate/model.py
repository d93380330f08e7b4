"""The two networks, their examples as tensors, and their loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.climate import baselines
from domains.climate import grid as grids
from domains.climate.config import ClimateConfig
from domains.climate.data import Prepared, numbered
from shared.contract import Fold, Phase, Source, Split

if TYPE_CHECKING:
    import keras

EPOCHS = {"downscaling": 60, "forecast": 40}
LEARNING_RATE = {"downscaling": 7e-3, "forecast": 1e-3}


def source(data: Prepared, config: ClimateConfig, fold: Fold, split: Split) -> Source:
    """The examples of a split, gathered in the graph from tensors that stand in memory once.

    Downscaling: x ``[h, w]`` block means, y ``[h*f, w*f]``. Forecast: x ``[history, lat, lon]``,
    y ``[lat, lon]``. Physical units, float32; NaN where missing.
    """
    import tensorflow as tf

    positions = fold.splits[split]
    if config.task == "downscaling":
        maps, _ = baselines.pairs(data, config, numbered(data, config).target[positions])
        with tf.device("CPU:0"):
            coarse, fine = tf.constant(maps.coarse), tf.constant(maps.fine)
        return Source(len(positions), gather=lambda at: (tf.gather(coarse, at), tf.gather(fine, at)))

    examples = numbered(data, config)
    with tf.device("CPU:0"):
        # One copy of every map; a window of ten maps is ten numbers until it is gathered.
        fields = tf.constant(np.asarray(data.fields))
        start = tf.constant(examples.start[positions], tf.int64)
        target = tf.constant(examples.target[positions], tf.int64)
    steps = tf.range(examples.history, dtype=tf.int64)

    def windows(at: Any) -> tuple[Any, Any]:
        rows = tf.gather(start, at)[:, None] + steps
        return tf.gather(fields, rows), tf.gather(fields, tf.gather(target, at))

    return Source(len(positions), gather=windows)


def phases(data: Prepared, config: ClimateConfig, fold: Fold) -> list[Phase]:
    """One phase. Every statistic in the network is of the train split."""
    build, area, scale = (_downscaling if config.task == "downscaling" else _forecast)(data, config, fold)
    return [
        Phase(
            name=config.task,
            build=lambda previous: build(),
            loss=masked_squared_error(area, scale),
            epochs=EPOCHS[config.task],
            learning_rate=LEARNING_RATE[config.task],
        )
    ]


def masked_squared_error(area: np.ndarray, scale: float) -> Callable[[Any, Any], Any]:
    """Area-weighted mean squared error over known cells, in units of ``scale``; one value an example.

    The target is filled *before* anything is subtracted: masking the squared error afterwards
    gives a finite loss and NaN gradients. Weights are renormalised over the known cells.

    Args:
        area: float ``[lat, lon]``.
    """
    weights = area.astype(np.float32)

    def loss(y_true: Any, y_pred: Any) -> Any:
        from keras import ops

        y_true = ops.cast(y_true, "float32")
        known = ops.isfinite(y_true)
        # Both are filled: where the climatology is missing, the prediction is NaN, too.
        error = ops.where(known, y_pred, 0.0) - ops.where(known, y_true, 0.0)
        weight = ops.cast(known, "float32") * weights
        total = ops.sum(weight, axis=(1, 2))
        return ops.sum(ops.square(error / scale) * weight, axis=(1, 2)) / ops.maximum(total, 1e-6)

    return loss


def _downscaling(
    data: Prepared, config: ClimateConfig, fold: Fold
) -> tuple[Callable[[], keras.Model], np.ndarray, float]:
    settings = config.downscaling
    train, fine_grid = baselines.pairs(data, config, fold.splits["train"])
    coarse_grid = fine_grid.coarse(settings.factor)
    fine_mean = baselines.mean_of(train.fine)
    coarse_mean = baselines.mean_of(train.coarse)
    anomaly = train.coarse - coarse_mean
    scale = float(np.sqrt(np.nanmean(np.square(anomaly)))) or 1.0
    rows, columns = grids.interpolation(coarse_grid, fine_grid)
    simple = fine_mean + rows @ np.nan_to_num(anomaly) @ columns.T
    detail_scale = float(np.sqrt(np.nanmean(np.square(train.fine - simple)))) or 1.0
    weights = grids.blocks(np.where(np.isfinite(fine_mean), fine_grid.area(), 0.0), settings.factor)
    weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-9)
    # A cell that train never saw has no climatology; 0 keeps the network finite and is masked.
    known_mean = np.nan_to_num(fine_mean)

    def build() -> keras.Model:
        import keras

        from domains.climate import layers

        shape = coarse_grid.shape
        x = keras.Input(shape, name="coarse", dtype="float32")
        coarse = layers.Anomaly(shape, coarse_mean, scale, name="anomaly")(x)
        hidden = coarse
        for number in range(settings.depth):
            hidden = layers.GridPadding(1, coarse_grid.periodic, name=f"pad_{number}")(hidden)
            hidden = keras.layers.Conv2D(settings.width, 3, activation="gelu", name=f"conv_{number}")(hidden)
            if settings.dropout:
                hidden = keras.layers.SpatialDropout2D(settings.dropout, name=f"drop_{number}")(hidden)
        # The neighbourhood as it is, beside what the convolutions make of it: the linear part is easy.
        near = layers.GridPadding(1, coarse_grid.periodic, name="pad_linear")(coarse)
        near = keras.layers.Conv2D(9, 3, name="linear")(near)
        if settings.depth:
            hidden = keras.layers.Conv2D(settings.features, 1, name="features")(hidden)
            near = keras.layers.Concatenate(name="all_features")([near, hidden])
        detail = layers.Composition(settings.factor**2, name="detail")(near)
        fine = layers.Refine(
            shape, settings.factor, known_mean, scale, detail_scale, rows, columns, weights, name="fine"
        )([coarse, detail])
        return keras.Model(x, fine, name="downscaling")

    return build, fine_grid.area(), detail_scale


def _forecast(
    data: Prepared, config: ClimateConfig, fold: Fold
) -> tuple[Callable[[], keras.Model], np.ndarray, float]:
    settings = config.forecast
    examples = numbered(data, config)
    target = data.fields[examples.target[fold.splits["train"]]]
    mean = baselines.mean_of(target)
    scale = float(np.sqrt(np.nanmean(np.square(target - mean)))) or 1.0
    weights = (1 - baselines.RATE) ** np.arange(examples.history - 1, -1, -1)
    shape, periodic = data.grid.shape, data.grid.periodic
    known_mean = np.nan_to_num(mean)

    def build() -> keras.Model:
        import keras

        from domains.climate import layers

        x = keras.Input((examples.history, *shape), name="history", dtype="float32")
        past = layers.Anomaly(shape, mean, scale, name="anomaly")(x)
        memory = layers.Memory(examples.history, weights, name="memory")(past)
        hidden = past
        for number in range(settings.depth):
            hidden = layers.GridPadding(1, periodic, name=f"pad_{number}")(hidden)
            hidden = keras.layers.Conv2D(settings.width, 3, activation="gelu", name=f"conv_{number}")(hidden)
            if settings.dropout:
                hidden = keras.layers.SpatialDropout2D(settings.dropout, name=f"drop_{number}")(hidden)
        # Starts at nothing: the untrained network is the exponential mean that it corrects.
        change = keras.layers.Conv2D(1, 1, kernel_initializer="zeros", dtype="float32", name="change")(hidden)
        total = keras.layers.Add(dtype="float32", name="total")([memory, change])
        fine = layers.Physical(shape, known_mean, scale, name="map")(total)
        return keras.Model(x, fine, name="forecast")

    return build, data.grid.area(), scale
