"""The numbers that models are judged by, each defined on examples that may count several times.

A metric here is a function of :class:`Predictions` that also knows, by ``resampled``, its
value on any number of bootstrap resamples at once, given how often each example was
drawn. Sorting once and counting often makes an interval cost milliseconds instead of minutes,
and one definition serves both, so the number and its interval cannot disagree.

A metric is NaN where it is undefined (an AUROC without positives); NaN in the truth is a
missing label and is left out. Binary and multi-label outputs hold probabilities, ``[n]`` or
``[n, labels]``; outputs of exclusive classes are ``[n, classes]`` with truth one-hot or a class
number ``[n]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.contract import Predictions
from shared.evaluation.comparison import Comparison, Row, bootstrap, interval
from shared.evaluation.shapes import cells, classes

__all__ = [
    "Averaged",
    "Comparison",
    "Counted",
    "Ranked",
    "Row",
    "accuracy",
    "auprc",
    "auroc",
    "bootstrap",
    "brier",
    "collapse",
    "interval",
    "log_loss",
    "mae",
    "mcc",
    "rmse",
    "weighted_rmse",
]


@dataclass(frozen=True)
class Averaged:
    """A mean over examples, or a function of it, such as Brier's score or an RMSE.

    Weighted sums stay beside their weights until the end, so that missing cells
    count for nothing and pooling examples equals pooling cells.

    Attributes:
        statistic: Function of Predictions that returns ``(sum [n], weight [n])`` of each example.
        finish: What is done to the mean, e.g. ``np.sqrt``.

    Example, for a domain's own score::

        Score("RMSE", Averaged(my_squared_error, finish=np.sqrt), higher_is_better=False)
    """

    statistic: Callable[[Predictions], tuple[np.ndarray, np.ndarray]]
    finish: Callable[[np.ndarray], np.ndarray] | None = None

    def __call__(self, predictions: Predictions) -> float:
        return _once(self, predictions)

    def resampled(self, predictions: Predictions, counts: np.ndarray) -> np.ndarray:
        """Values on resamples; ``counts`` float64 ``[R, n]``: how often each example was drawn."""
        sums, weights = self.statistic(predictions)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (counts @ sums) / (counts @ weights)
        return means if self.finish is None else self.finish(means)


@dataclass(frozen=True)
class Ranked:
    """A mean over labels of a number that depends on the order of the scores only.

    A label that the whole sample leaves undefined is left out; a resample in which one of
    the others is undefined is NaN, since a mean over other labels is another quantity.

    Attributes:
        curve: ``curve(positive, negative)`` of two float64 ``[R, steps]``: what was drawn of
            each class at every distinct score, highest score first. Returns ``[R]``.
        label: Number of one label, or None for the mean over all.
    """

    curve: Callable[[np.ndarray, np.ndarray], np.ndarray]
    label: int | None = None

    def __call__(self, predictions: Predictions) -> float:
        return _once(self, predictions)

    def resampled(self, predictions: Predictions, counts: np.ndarray) -> np.ndarray:
        truth, values = cells(predictions)
        if np.isnan(values[~np.isnan(truth)]).any():
            return np.full(len(counts), np.nan)  # no metric may look away from what a model failed to say
        labels = range(truth.shape[1]) if self.label is None else [self.label]
        once = np.ones((1, len(truth)))
        defined = []
        for label in labels:
            at_step = self._steps(truth[:, label], values[:, label])
            if np.isfinite(self.curve(*at_step(once)))[0]:
                defined.append(self.curve(*at_step(counts)))
        return np.mean(defined, axis=0) if defined else np.full(len(counts), np.nan)

    @staticmethod
    def _steps(
        truth: np.ndarray, values: np.ndarray
    ) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Sorts once; the function returned sums counts by class at each distinct score."""
        known = np.flatnonzero(~np.isnan(truth))
        order = known[np.argsort(-values[known], kind="stable")]
        positive = truth[order] > 0.5
        ranked = values[order]
        starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))

        def at_step(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if len(order) == 0:
                return np.zeros((len(counts), 1)), np.zeros((len(counts), 1))
            drawn = np.take(counts, order, axis=1)
            above, below = drawn * positive, drawn * ~positive
            if len(starts) == len(order):
                return above, below
            return np.add.reduceat(above, starts, axis=1), np.add.reduceat(below, starts, axis=1)

        return at_step


@dataclass(frozen=True)
class Counted:
    """A number that depends on the confusion matrix only.

    Binary outputs are decided at ``threshold``, exclusive classes by the largest.

    Attributes:
        of_matrix: Function of float64 ``[R, classes, classes]`` (truth, predicted) to ``[R]``.
    """

    of_matrix: Callable[[np.ndarray], np.ndarray]
    threshold: float = 0.5

    def __call__(self, predictions: Predictions) -> float:
        return _once(self, predictions)

    def resampled(self, predictions: Predictions, counts: np.ndarray) -> np.ndarray:
        truth, decided, number = classes(predictions, self.threshold)
        if np.isnan(predictions.values).any():
            return np.full(len(counts), np.nan)
        cell = np.zeros((len(truth), number * number))
        known = truth >= 0
        cell[known, truth[known] * number + decided[known]] = 1
        return self.of_matrix((counts @ cell).reshape(len(counts), number, number))


def _once(metric: Any, predictions: Predictions) -> float:
    return float(metric.resampled(predictions, np.ones((1, len(predictions))))[0])


def _area(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Chance that a positive outranks a negative, ties counting half."""
    above = np.cumsum(positive, axis=1) - positive / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return (above * negative).sum(axis=1) / (positive.sum(axis=1) * negative.sum(axis=1))


def _average_precision(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    found = np.cumsum(positive, axis=1)
    called = found + np.cumsum(negative, axis=1)
    precision = np.divide(found, called, out=np.zeros_like(found), where=called > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (positive * precision).sum(axis=1) / found[:, -1]


def _matthews(matrix: np.ndarray) -> np.ndarray:
    """Gorodkin's form for any number of classes; 0 where one class is always predicted (as scikit-learn)."""
    total, right = matrix.sum(axis=(1, 2)), np.trace(matrix, axis1=1, axis2=2)
    true, decided = matrix.sum(axis=2), matrix.sum(axis=1)
    covariance = right * total - (true * decided).sum(axis=1)
    spread_true, spread_decided = total**2 - (true**2).sum(axis=1), total**2 - (decided**2).sum(axis=1)
    product = np.sqrt(spread_true * spread_decided)
    value = np.divide(covariance, product, out=np.zeros_like(covariance), where=product > 0)
    return np.where(spread_true > 0, value, np.nan)


def _accuracy(matrix: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.trace(matrix, axis1=1, axis2=2) / matrix.sum(axis=(1, 2))


def _per_cell(cell: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Any:
    """Statistic of an example as the sum of ``cell(values, truth)`` over its cells with known truth."""

    def statistic(predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
        truth, values = cells(predictions)
        known = ~np.isnan(truth)
        # The target is filled before anything is computed of it, then masked.
        errors = np.where(known, cell(values, np.where(known, truth, 0.5)), 0.0)
        return errors.sum(axis=1), known.sum(axis=1).astype(np.float64)

    return statistic


def _surprise(values: np.ndarray, truth: np.ndarray) -> np.ndarray:
    values = np.clip(values, 1e-7, 1 - 1e-7)
    return -(truth * np.log(values) + (1 - truth) * np.log1p(-values))


auroc = Ranked(_area)
"""Area under the ROC curve, mean over labels; NaN without both classes. ``Ranked(auroc.curve, label=2)``: of one."""

auprc = Ranked(_average_precision)
"""Area under the precision-recall curve (average precision), mean over labels; chance is the prevalence."""

brier = Averaged(_per_cell(lambda values, truth: (values - truth) ** 2))
"""Mean squared distance of probability and outcome, over examples and labels; lower is better."""

log_loss = Averaged(_per_cell(_surprise))
"""Mean binary cross-entropy over examples and labels, probabilities clipped to 1e-7."""

mae = Averaged(_per_cell(lambda values, truth: np.abs(values - truth)))
"""Mean absolute error over all cells of known truth."""

rmse = Averaged(_per_cell(lambda values, truth: (values - truth) ** 2), finish=np.sqrt)
"""Root of the mean squared error over all examples and cells of known truth."""

mcc = Counted(_matthews)
"""Matthews correlation at 0.5; 0 where one class is always predicted, NaN where only one is true."""

accuracy = Counted(_accuracy)
"""Share decided right. Compare it with the base rate, or better use :data:`mcc`."""


def weighted_rmse(weights: np.ndarray) -> Averaged:
    """Root mean squared error under weights of cells, e.g. the cosine of latitude.

    Args:
        weights: Broadcast against one example, e.g. ``[lat, 1]``. They need not sum to 1:
            they are renormalised over the cells whose truth is known.
    """

    def statistic(predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
        truth = np.asarray(predictions.truth, dtype=np.float64)
        known = ~np.isnan(truth)
        squared = np.where(known, np.square(predictions.values - np.where(known, truth, 0.0)), 0.0)
        shape, axes = (len(truth), -1), 1
        cell = np.broadcast_to(np.asarray(weights, dtype=np.float64), truth.shape)
        return (squared * cell).reshape(shape).sum(axes), (known * cell).reshape(shape).sum(axes)

    return Averaged(statistic, finish=np.sqrt)


def collapse(predictions: Predictions, names: Sequence[str] = (), threshold: float = 0.5) -> str | None:
    """A sentence where a class that occurs is never predicted, for ``Evaluation.flags``; else None.

    Such a model's accuracy is the base rate, which looks like skill and is none. Exclusive
    classes only; for several labels call it by label.
    """
    truth, decided, number = classes(predictions, threshold)
    never = [one for one in range(number) if (truth == one).any() and not (decided == one).any()]
    if not never:
        return None
    known = truth[truth >= 0]
    share = np.bincount(known).max() / len(known)
    return (
        f"{', '.join(names[one] if names else f'class {one}' for one in never)} is never predicted: "
        f"accuracy near the base rate of {share:.0%} is no skill."
    )
