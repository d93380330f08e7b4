"""Standardizing: fit on train, apply to all. What it was fitted on is all it knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.errors import InputError


@dataclass(frozen=True)
class Standardizer:
    """Mean and standard deviation, taken from the values it was fitted on.

    Attributes:
        mean: float64, with length 1 along every axis that was averaged over.
        std: float64, the same shape; 1 where the values do not vary.
    """

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def fit(cls, values: np.ndarray, axis: int | tuple[int, ...] = 0) -> Standardizer:
        """Measures ``values`` along ``axis``.

        Sums run in float64, since a float32 mean of thousands of temperatures in kelvin is
        off by whole kelvins (numpy#29772). NaN is left out. A column that never varies gets
        standard deviation 1 and one that is all NaN mean 0, so that neither makes NaN or Inf later.

        Args:
            values: The *train* values, float or int ``[...]``.
            axis: Axes to average over, e.g. 0 for columns, ``(0, 1)`` for features of windows.

        Raises:
            InputError: There are no values, or some are infinite.

        >>> Standardizer.fit(np.array([[1.0, 5.0], [3.0, 5.0], [np.nan, 5.0]])).to_dict()
        {'mean': [[2.0, 5.0]], 'std': [[1.0, 1.0]]}
        """
        values = np.asarray(values)
        if values.size == 0:
            raise InputError(
                f"There are no values to fit a scaler on, received shape {values.shape}.",
                "Check that the train split is not empty.",
            )
        if bool(np.isinf(values).any()):
            first = tuple(int(i) for i in np.argwhere(np.isinf(values))[0])
            raise InputError(
                f"A scaler was given an infinite value, first at {first}.",
                "Set such rows aside before scaling; one of them would wipe out the others.",
            )
        known = ~np.isnan(values)
        count = known.sum(axis=axis, keepdims=True)
        # Deviations from the mean, not mean of squares: the latter cancels at 101325 Pa.
        mean = np.sum(values, axis=axis, dtype=np.float64, keepdims=True, where=known) / np.maximum(count, 1)
        squares = np.square(np.subtract(values, mean, dtype=np.float64))
        std = np.sqrt(np.sum(squares, axis=axis, keepdims=True, where=known) / np.maximum(count, 1))
        resolution = np.finfo(values.dtype if values.dtype.kind == "f" else np.float64).eps
        return cls(mean, np.where(std > resolution * np.abs(mean), std, 1.0))

    def transform(self, values: np.ndarray) -> np.ndarray:
        """``(values - mean) / std`` as float32, computed in float64; NaN stays NaN."""
        return ((np.asarray(values, dtype=np.float64) - self.mean) / self.std).astype(np.float32)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """From standard units back, as float32."""
        return (np.asarray(values, dtype=np.float64) * self.std + self.mean).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """As nested lists, for JSON; exact, since a float's shortest form reads back equal."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Standardizer:
        return cls(np.asarray(values["mean"], dtype=np.float64), np.asarray(values["std"], dtype=np.float64))
