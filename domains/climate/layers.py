"""Keras layers that know a grid. Constant fields are non-trainable weights, saved with the model.

All are serializable, so that a published ``.keras`` file opens with this package imported.
What touches physical values (kelvin, pascal) runs in float32 whatever the policy: 101325 Pa is
infinite in float16, and 288.15 K has a step of 2 K in bfloat16.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

PACKAGE = "casebook.climate"


def _constant(layer: keras.layers.Layer, name: str, shape: tuple[int, ...], value: Any) -> Any:
    """A weight that training leaves alone; zeros until a saved model's values are loaded."""
    start = np.zeros(shape, np.float32) if value is None else np.asarray(value, np.float32)
    return layer.add_weight(
        name=name,
        shape=shape,
        initializer=lambda shape, dtype=None: ops.convert_to_tensor(start),
        trainable=False,
        dtype="float32",
    )


@keras.saving.register_keras_serializable(PACKAGE)
class Anomaly(keras.layers.Layer):
    """Maps in physical units as standardised anomalies with channels last.

    ``[B, lat, lon]`` becomes ``[B, lat, lon, 1]``, a history ``[B, steps, lat, lon]`` becomes
    ``[B, lat, lon, steps]``. A missing cell is 0: its climatology.

    Args:
        shape: ``(lat, lon)``.
        mean: Climatology of the training years, float ``[lat, lon]``; NaN counts as 0.
        scale: Standard deviation of the training anomalies, one number.
    """

    def __init__(self, shape: Any, mean: Any = None, scale: float | None = None, **keywords: Any) -> None:
        super().__init__(**{**keywords, "dtype": "float32"})
        self.grid_shape = tuple(int(n) for n in shape)
        self.mean = _constant(self, "mean", self.grid_shape, None if mean is None else np.nan_to_num(mean))
        self.scale = _constant(self, "scale", (), 1.0 if scale is None else scale)

    def call(self, x: Any) -> Any:
        anomaly = (x - self.mean) / self.scale
        # Inputs carry no gradient, so that where() is safe here; in a loss it would not be.
        anomaly = ops.where(ops.isfinite(anomaly), anomaly, ops.zeros_like(anomaly))
        return ops.moveaxis(anomaly, 1, -1) if len(x.shape) == 4 else ops.expand_dims(anomaly, -1)

    def compute_output_shape(self, shape: Any) -> tuple[Any, ...]:
        return (shape[0], *self.grid_shape, shape[1] if len(shape) == 4 else 1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "shape": list(self.grid_shape)}


@keras.saving.register_keras_serializable(PACKAGE)
class GridPadding(keras.layers.Layer):
    """Pads ``[B, lat, lon, channels]`` before a convolution, as the grid continues.

    Round the globe where the grid is periodic, so that 359 E and 0 E are neighbours; elsewhere
    by mirroring the edge, which invents no gradient. (Zero padding would tell the network
    where the map ends, and put a cold rim there.)

    Args:
        size: Cells to add on each side.
        periodic: Whether the longitude is.
    """

    def __init__(self, size: int = 1, periodic: bool = False, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.size = int(size)
        self.periodic = bool(periodic)

    def call(self, x: Any) -> Any:
        n = self.size
        if self.periodic:
            x = ops.concatenate([x[:, :, -n:], x, x[:, :, :n]], axis=2)
        else:
            x = ops.pad(x, [[0, 0], [0, 0], [n, n], [0, 0]], mode="symmetric")
        return ops.pad(x, [[0, 0], [n, n], [0, 0], [0, 0]], mode="symmetric")

    def compute_output_shape(self, shape: Any) -> tuple[Any, ...]:
        batch, rows, columns, channels = shape
        return batch, rows + 2 * self.size, columns + 2 * self.size, channels

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "size": self.size, "periodic": self.periodic}


@keras.saving.register_keras_serializable(PACKAGE)
class Composition(keras.layers.Layer):
    """Each block's fine detail from its features: ``[B, lat, lon, k]`` to ``[B, lat, lon, units]``.

    A matrix shared by all places plus one of each place's own: mountains and coasts stand still,
    so that the same features mean another detail elsewhere. Both start near zero: the untrained
    model is the interpolation that it refines.

    Args:
        units: Fine cells per block.
    """

    def __init__(self, units: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.units = int(units)

    def build(self, shape: Any) -> None:
        _, rows, columns, features = shape
        self.shared = self.add_weight(
            name="shared",
            shape=(features, self.units),
            initializer=keras.initializers.RandomNormal(stddev=0.05),
        )
        self.local = self.add_weight(
            name="local", shape=(rows, columns, features, self.units), initializer="zeros"
        )
        self.bias = self.add_weight(name="bias", shape=(rows, columns, self.units), initializer="zeros")

    def call(self, x: Any) -> Any:
        weights = ops.cast(self.shared + self.local, x.dtype)
        return ops.einsum("bijk,ijks->bijs", x, weights) + ops.cast(self.bias, x.dtype)

    def compute_output_shape(self, shape: Any) -> tuple[Any, ...]:
        return (*shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable(PACKAGE)
class Refine(keras.layers.Layer):
    """Coarse anomalies and learned detail as the fine map in physical units, float32.

    ``mean + scale * (interpolated anomaly + detail)``, then shifted block by block so that
    each block's area mean is the coarse value it came from: what is known is not predicted.

    Args:
        coarse_shape: ``(lat, lon)`` of the coarse grid.
        factor: Fine cells per coarse cell along each side.
        mean: Fine climatology of the training years, ``[lat*f, lon*f]``; NaN stays NaN on output.
        scale: Of the coarse anomalies, as in :class:`Anomaly`.
        detail_scale: Of the detail, in units of physics.
        rows, columns: Interpolation matrices, see :func:`domains.climate.grid.interpolation`.
        weights: Area of each fine cell within its block, ``[lat, lon, f*f]``, each block
            summing to 1, or 0 where a block has no known cell.

    Call arguments: ``[coarse anomaly [B, lat, lon, 1], detail [B, lat, lon, f*f]]``; returns ``[B, lat*f, lon*f]``.
    """

    def __init__(
        self,
        coarse_shape: Any,
        factor: int,
        mean: Any = None,
        scale: float | None = None,
        detail_scale: float | None = None,
        rows: Any = None,
        columns: Any = None,
        weights: Any = None,
        **keywords: Any,
    ) -> None:
        super().__init__(**{**keywords, "dtype": "float32"})
        h, w = (int(n) for n in coarse_shape)
        self.coarse_shape, self.factor = (h, w), int(factor)
        f = self.factor
        self.mean = _constant(self, "mean", (h * f, w * f), mean)
        self.scale = _constant(self, "scale", (), 1.0 if scale is None else scale)
        self.detail_scale = _constant(self, "detail_scale", (), 1.0 if detail_scale is None else detail_scale)
        self.rows = _constant(self, "rows", (h * f, h), rows)
        self.columns = _constant(self, "columns", (w * f, w), columns)
        self.weights_in_block = _constant(self, "weights", (h, w, f * f), weights)

    def call(self, inputs: Any) -> Any:
        coarse, detail = inputs
        coarse = ops.cast(coarse[..., 0], "float32") * self.scale
        fine = ops.einsum("ab,nbc,dc->nad", self.rows, coarse, self.columns)
        cells = self._blocks(fine) + ops.cast(detail, "float32") * self.detail_scale
        off = ops.expand_dims(coarse, -1) - ops.sum(cells * self.weights_in_block, axis=-1, keepdims=True)
        known = ops.cast(ops.sum(self.weights_in_block, axis=-1, keepdims=True) > 0, "float32")
        return self._map(cells + off * known) + self.mean

    def _blocks(self, fine: Any) -> Any:
        (h, w), f = self.coarse_shape, self.factor
        return ops.reshape(
            ops.transpose(ops.reshape(fine, (-1, h, f, w, f)), (0, 1, 3, 2, 4)), (-1, h, w, f * f)
        )

    def _map(self, cells: Any) -> Any:
        (h, w), f = self.coarse_shape, self.factor
        return ops.reshape(
            ops.transpose(ops.reshape(cells, (-1, h, w, f, f)), (0, 1, 3, 2, 4)), (-1, h * f, w * f)
        )

    def compute_output_shape(self, shapes: Any) -> tuple[Any, ...]:
        (h, w), f = self.coarse_shape, self.factor
        return shapes[0][0], h * f, w * f

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "coarse_shape": list(self.coarse_shape), "factor": self.factor}


@keras.saving.register_keras_serializable(PACKAGE)
class Memory(keras.layers.Layer):
    """A learned weighted mean of the past: ``[B, lat, lon, steps]`` to ``[B, lat, lon, 1]``.

    Weights are a softmax, so that they are positive and sum to 1.

    Args:
        weights: Where they start, ``[steps]``, positive; e.g. an exponential smoothing.
    """

    def __init__(self, steps: int, weights: Any = None, **keywords: Any) -> None:
        super().__init__(**{**keywords, "dtype": "float32"})
        self.steps = int(steps)
        start = np.zeros(self.steps) if weights is None else np.log(np.maximum(weights, 1e-6))
        self.logits = self.add_weight(
            name="logits",
            shape=(self.steps,),
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(start.astype(np.float32)),
        )

    def call(self, x: Any) -> Any:
        return ops.sum(x * ops.softmax(self.logits), axis=-1, keepdims=True)

    def compute_output_shape(self, shape: Any) -> tuple[Any, ...]:
        return (*shape[:-1], 1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "steps": self.steps}


@keras.saving.register_keras_serializable(PACKAGE)
class Physical(keras.layers.Layer):
    """Standardised anomalies ``[B, lat, lon, 1]`` back in physical units ``[B, lat, lon]``, float32.

    Args:
        shape: ``(lat, lon)``.
        mean, scale: As in :class:`Anomaly`.
    """

    def __init__(self, shape: Any, mean: Any = None, scale: float | None = None, **keywords: Any) -> None:
        super().__init__(**{**keywords, "dtype": "float32"})
        self.grid_shape = tuple(int(n) for n in shape)
        self.mean = _constant(self, "mean", self.grid_shape, mean)
        self.scale = _constant(self, "scale", (), 1.0 if scale is None else scale)

    def call(self, x: Any) -> Any:
        return ops.cast(x[..., 0], "float32") * self.scale + self.mean

    def compute_output_shape(self, shape: Any) -> tuple[Any, ...]:
        return (shape[0], *self.grid_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "shape": list(self.grid_shape)}
