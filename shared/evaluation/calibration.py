"""Probabilities that mean what they say, and the threshold at which a field acts.

Everything here is fitted on *validation* and stored with the model, never on test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shared.errors import InputError

_NEAREST = 1e-7
"""How near probabilities may come to 0 and 1 before their logarithm is taken."""


def temperature(
    values: np.ndarray, truth: np.ndarray, *, logits: bool = False, classes: bool = False
) -> float:
    """The temperature that makes probabilities fit the truth best (Guo et al., ICML 2017).

    One number divides all logits: above 1 the model was too sure of itself, below 1 not sure
    enough. It changes no order, so neither AUROC nor a decision at 0.5.

    Args:
        values: Of the validation set: probabilities ``[n]`` or ``[n, labels]``; with ``logits``
            what comes before the sigmoid or softmax.
        truth: 0 or 1 in the same shape, NaN where a label is missing; with ``classes`` also a
            class number ``[n]``.
        classes: The last axis holds exclusive classes (softmax) instead of labels (sigmoid).

    Returns:
        Between 0.05 and 20; 1 where validation cannot tell, because it is empty or holds one
        class only.

    >>> truth = np.array([1, 1, 1, 0] * 50)  # right three times in four
    >>> sure = np.full(200, 0.99)            # and always almost certain
    >>> round(float(apply(sure, temperature(sure, truth))[0]), 2)
    0.75
    """
    from scipy.optimize import minimize_scalar

    scores, target = _prepared(values, truth, logits, classes)
    if len(target) == 0 or (len(np.unique(target)) < 2 and not classes):
        return 1.0

    def surprise(log_temperature: float) -> float:
        scaled = scores / np.exp(log_temperature)
        if classes:
            picked = scaled[np.arange(len(target)), target.astype(int)]
            return float(np.mean(np.logaddexp.reduce(scaled, axis=1) - picked))
        return float(np.mean(np.logaddexp(0, np.where(target > 0.5, -scaled, scaled))))

    best = minimize_scalar(surprise, bounds=(np.log(0.05), np.log(20)), method="bounded")
    return float(np.exp(best.x))


def apply(
    values: np.ndarray, temperature: float, *, logits: bool = False, classes: bool = False
) -> np.ndarray:
    """Calibrated probabilities, float32 in the shape of ``values``; arguments as in :func:`temperature`."""
    scores = _logits(np.asarray(values, dtype=np.float64), logits, classes) / temperature
    if classes:
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return (scores / scores.sum(axis=-1, keepdims=True)).astype(np.float32)
    return (0.5 * (1 + np.tanh(scores / 2))).astype(np.float32)  # the sigmoid, without overflow


@dataclass(frozen=True)
class Reliability:
    """A reliability curve: what was said against what happened, in bins of equal width.

    Attributes:
        said: Mean probability in each bin, NaN in an empty one; float64 ``[bins]``.
        happened: Share of positives in each bin.
        count: Probabilities in each bin.
        error: Expected calibration error: mean of ``|said - happened|``, weighted by count.
    """

    said: np.ndarray
    happened: np.ndarray
    count: np.ndarray
    error: float


def reliability(values: np.ndarray, truth: np.ndarray, *, bins: int = 10) -> Reliability:
    """Curve and expected calibration error (Naeini et al., AAAI 2015) of binary probabilities.

    Args:
        values: Probabilities ``[n]`` or ``[n, labels]``; labels are pooled.
        truth: 0 or 1 in the same shape; NaN is left out.
        bins: Bins of equal width between 0 and 1.

    >>> round(reliability(np.array([0.9] * 10), np.array([1] * 6 + [0] * 4)).error, 3)
    0.3
    """
    said, target = _known(values, truth)
    number = np.clip((said * bins).astype(int), 0, bins - 1)
    count = np.bincount(number, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = np.bincount(number, said, minlength=bins) / count
        happened = np.bincount(number, target, minlength=bins) / count
    gap = np.where(count > 0, np.abs(means - happened), 0.0)
    error = float((gap * count).sum() / count.sum()) if count.sum() else float("nan")
    return Reliability(means, happened, count, error)


@dataclass(frozen=True)
class OperatingPoint:
    """Where a probability becomes a call: positive from ``threshold`` up.

    Attributes:
        threshold: A probability that was seen in validation.
        sensitivity: Share of the positives that are called, at least what was asked for.
        specificity: Share of the negatives that are left alone; NaN where there are none.
        flagged: Share of all examples that are called: the work that the threshold makes.
        positives: How many positives this rests on.
    """

    threshold: float
    sensitivity: float
    specificity: float
    flagged: float
    positives: int


def operating_point(
    truth: np.ndarray, values: np.ndarray, *, sensitivity: float = 0.95
) -> OperatingPoint | None:
    """The highest threshold that still finds the stated share of positives.

    Args:
        truth: 0 or 1, ``[n]``, of the *validation* set; NaN is left out.
        values: Probabilities ``[n]``, calibrated as they will be in use.
        sensitivity: Share of positives that must be found, in (0, 1].

    Returns:
        None where validation holds no positive: then there is nothing to choose by.

    >>> point = operating_point(np.array([0, 0, 1, 1, 1, 1]), np.array([.1, .5, .3, .6, .7, .9]), sensitivity=.75)
    >>> point.threshold, point.sensitivity, point.specificity
    (0.6, 0.75, 1.0)
    """
    if not 0 < sensitivity <= 1:
        raise InputError(
            f"A sensitivity lies above 0 and up to 1, received {sensitivity}.", "Give a share such as 0.95."
        )
    said, target = _known(values, truth)
    positives = np.sort(said[target > 0.5])[::-1]
    if len(positives) == 0:
        return None
    # The nudge keeps 0.95 * 20 at 19: its float product may lie just above.
    threshold = positives[int(np.ceil(sensitivity * len(positives) - 1e-9)) - 1]
    called = said >= threshold
    negatives = target <= 0.5
    return OperatingPoint(
        threshold=float(threshold),
        sensitivity=float(called[~negatives].mean()),
        specificity=float((~called[negatives]).mean()) if negatives.any() else float("nan"),
        flagged=float(called.mean()),
        positives=len(positives),
    )


def _known(values: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and truth where truth is known, float64 ``[m]``."""
    said, target = (np.asarray(one, dtype=np.float64).ravel() for one in (values, truth))
    if said.shape != target.shape:
        raise InputError(
            f"Probabilities and truth must have one shape, received {np.shape(values)} and {np.shape(truth)}.",
            "Give one probability for every label.",
        )
    known = ~np.isnan(target)
    return said[known], target[known]


def _prepared(
    values: np.ndarray, truth: np.ndarray, logits: bool, classes: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and target where truth is known: ``[m]`` each, or ``[m, classes]`` and ``[m]``."""
    if not classes:
        said, target = _known(values, truth)
        return _logits(said, logits, classes), target
    scores = _logits(np.asarray(values, dtype=np.float64), logits, classes)
    target = np.asarray(truth, dtype=np.float64)
    known = ~np.isnan(target.reshape(len(target), -1)).any(axis=1)
    numbers = target.argmax(axis=1) if target.shape == scores.shape else target.reshape(-1)
    return scores[known], numbers[known]


def _logits(values: np.ndarray, logits: bool, classes: bool) -> np.ndarray:
    if logits:
        return values
    values = np.clip(values, _NEAREST, 1 - _NEAREST)
    return np.log(values) if classes else np.log(values) - np.log1p(-values)
