"""From a network's output to something to act on: calibrated probabilities and operating points.

Chosen on validation, stored with the model. A film is called for a label when its calibrated
probability reaches that label's threshold, the highest one that finds the stated share of the sick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.contract import Predictions
from shared.evaluation import calibration

_PRIOR = 2.0


@dataclass(frozen=True)
class Decision:
    """How outputs become calls.

    Attributes:
        labels: Names, in the order of the outputs.
        slope, intercept: Calibrated log-odds are ``slope * log-odds + intercept``, float64
            ``[labels]``. The slope is one over the temperature; the intercept takes back what weighting
            a rare label's positives did to its probabilities.
        threshold: Calibrated probability from which a film is called; NaN where validation held no
            positive.
        sensitivity: What the operating point was to reach on validation.
    """

    labels: tuple[str, ...]
    slope: np.ndarray
    intercept: np.ndarray
    threshold: np.ndarray
    sensitivity: float

    @classmethod
    def chosen(cls, validation: Predictions, labels: Sequence[str], sensitivity: float) -> Decision:
        """Calibration and operating points from predictions on validation, ``[n, labels]``."""
        slope, intercept, threshold = [], [], []
        for column in range(len(labels)):
            truth, said = validation.truth[:, column], validation.values[:, column]
            a, b = fit(said, truth)
            calibrated = scaled(said, a, b)
            point = calibration.operating_point(truth, calibrated, sensitivity=sensitivity)
            slope.append(a)
            intercept.append(b)
            threshold.append(np.nan if point is None else eased(calibrated, truth, point.threshold))
        return cls(tuple(labels), np.array(slope), np.array(intercept), np.array(threshold), sensitivity)

    def probabilities(self, values: np.ndarray) -> np.ndarray:
        """Calibrated probabilities of outputs ``[n, labels]``, float32."""
        return scaled(values, self.slope, self.intercept)

    def calls(self, probabilities: np.ndarray) -> np.ndarray:
        """Which are called, bool ``[n, labels]``; never where there is no threshold."""
        with np.errstate(invalid="ignore"):
            return probabilities >= self.threshold.astype("float32")

    def to_dict(self) -> dict[str, Any]:
        return {
            "labels": list(self.labels),
            "temperature": [1.0 / float(a) for a in self.slope],
            "intercept": [float(b) for b in self.intercept],
            "threshold": [None if np.isnan(t) else float(t) for t in self.threshold],
            "sensitivity": self.sensitivity,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Decision:
        return cls(
            tuple(values["labels"]),
            1.0 / np.array(values["temperature"], "float64"),
            np.array(values["intercept"], "float64"),
            np.array([np.nan if t is None else t for t in values["threshold"]], "float64"),
            float(values["sensitivity"]),
        )


def eased(probabilities: np.ndarray, truth: np.ndarray, threshold: float) -> float:
    """``threshold`` lowered as far as validation's specificity allows, half-way to the next healthy film.

    The highest threshold that finds 90% of the sick lies exactly on a sick film. Where the network
    separates well that may be 99%, and new sick films at 98% would be missed for nothing.

    >>> eased(np.array([0.1, 0.2, 0.8, 0.9, 0.95]), np.array([0, 0, 1, 1, 1]), 0.95)  # half-way in log-odds
    0.5
    """
    healthy = probabilities[(truth == 0) & (probabilities < threshold)]
    if len(healthy) == 0:
        return threshold
    below = float(healthy.max())
    above = float(probabilities[~np.isnan(truth) & (probabilities > below)].min())
    middle = float(_log_odds(np.array([below, above])).mean())
    return round(1.0 / (1.0 + float(np.exp(-middle))), 6)


def scaled(values: np.ndarray, slope: Any, intercept: Any) -> np.ndarray:
    """Probabilities after ``slope * log-odds + intercept``, float32."""
    odds = _log_odds(values) * slope + intercept
    return (0.5 * (1.0 + np.tanh(odds / 2))).astype("float32")


def fit(values: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Slope and intercept that make probabilities ``[n]`` fit ``truth`` ``[n]`` best (Platt 1999).

    Newton's method on the cross-entropy, held near (1, 0) by a weak prior, so that a small or perfectly
    separated validation set cannot make every probability 0 or 1. NaN in truth is left out; (1, 0)
    where validation holds one answer only.
    """
    known = ~np.isnan(truth)
    x, y = _log_odds(values[known]), truth[known].astype("float64")
    if len(np.unique(y)) < 2:
        return 1.0, 0.0
    inputs = np.stack([x, np.ones_like(x)], axis=1)
    start = np.array([1.0, 0.0])
    at, prior = start.copy(), np.diag([_PRIOR, 0.1])
    for _ in range(50):
        p = 0.5 * (1 + np.tanh(inputs @ at / 2))
        gradient = inputs.T @ (p - y) + prior @ (at - start)
        curvature = (inputs * (p * (1 - p))[:, None]).T @ inputs + prior
        step = np.linalg.solve(curvature, gradient)
        at = at - step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
        if np.abs(step).max() < 1e-9:
            break
    # A negative slope would turn the order around: then validation says that the model knows nothing.
    return max(float(at[0]), 0.05), float(at[1])


def _log_odds(values: np.ndarray) -> np.ndarray:
    p = np.clip(np.asarray(values, "float64"), 1e-7, 1 - 1e-7)
    return np.log(p) - np.log1p(-p)
