"""A model beside its baselines: values, intervals and paired differences from one set of resamples.

Models see the same test examples, so their scores rise and fall together. Differences are
therefore taken within each resample; two separate intervals that overlap say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from shared.contract import Metric, Predictions, Score
from shared.errors import CasebookError
from shared.evaluation import resampling
from shared.evaluation.resampling import Resamples, Units
from shared.evaluation.shapes import cells

MODEL = "model"
"""Name of the row that all others are compared with."""


@dataclass(frozen=True)
class Row:
    """One contender.

    Attributes:
        name: ``"model"``, or the baseline's name.
        value: Its score on all examples; NaN where undefined.
        low, high: Ends of the interval of ``value``; None where none can be had.
        difference: How much better the *model* is, positive whatever the direction of the
            score; None for the model itself.
        difference_low, difference_high: Ends of the interval of ``difference``.
        undefined: Resamples in which its score was undefined; they are left out.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    undefined: int = 0


@dataclass(frozen=True)
class Comparison:
    """What :func:`bootstrap` found. ``rows[0]`` is the model.

    Attributes:
        rows: The model, then the others in the order given.
        score, unit, higher_is_better, chance: From the :class:`Score`.
        examples: Test examples behind every number.
        units: Groups, or examples where there are none: what was resampled.
        resample, block: How; ``block`` is the mean stretch of ``"blocks"`` in units.
        resamples, confidence: How often, and for which confidence.
    """

    rows: tuple[Row, ...]
    score: str
    unit: str
    higher_is_better: bool
    chance: float | None
    examples: int
    units: int
    resample: Literal["groups", "blocks"]
    block: float | None
    resamples: int
    confidence: float

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name!r} was not compared; there are {', '.join(row.name for row in self.rows)}")

    @property
    def model(self) -> Row:
        return self.rows[0]

    @property
    def best_baseline(self) -> Row | None:
        """The strongest rival by its value; None where no rival has one."""
        rivals = [row for row in self.rows[1:] if np.isfinite(row.value)]
        pick = max if self.higher_is_better else min
        return pick(rivals, key=lambda row: row.value) if rivals else None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Comparison:
        """The inverse of :meth:`to_dict`, also after JSON, which has no NaN."""
        rows = [Row(**{**row, "value": float("nan") if row["value"] is None else row["value"]})
                for row in values["rows"]]  # fmt: skip
        return cls(**{**values, "rows": tuple(rows)})


def bootstrap(
    score: Score,
    predictions: Mapping[str, Predictions],
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Scores ``predictions["model"]`` beside all others, with percentile intervals.

    Everyone is scored on the same resamples. A score whose function has ``resampled`` (all of
    :mod:`shared.evaluation.metrics`) is computed on all of them at once, any other function by
    one call a resample.

    Args:
        score: The number, its direction, and whether groups or stretches of consecutive groups
            are drawn. For stretches, groups are put in order of their names: name them by
            ISO dates. Without groups each example is its own, in the order given.
        predictions: Name to predictions, ``"model"`` among them. The others must hold the same
            keys and the same truth; another order is put right.
        resamples: At least 100 for intervals to mean anything; 1000 is usual.
        confidence: Of every interval.
        seed: Of the draws; the same seed draws the same resamples.

    Raises:
        CasebookError: A rival was not predicted on the same examples, or there are none.
    """
    if MODEL not in predictions:
        raise CasebookError(f"One of the predictions must be named {MODEL!r}, received {list(predictions)}.")
    model = predictions[MODEL]
    contenders = {MODEL: model} | {
        name: _aligned(name, other, model) for name, other in predictions.items() if name != MODEL
    }
    if len(model) == 0:
        raise CasebookError("There are no test examples to compare models on.")
    units = Units.of(model.groups, len(model))
    block = _block(score, contenders, units)
    plan = Resamples(units, resamples if units.count > 1 else 0, score.resample, block or 1.0, seed)
    drawn = _scores(score, contenders, plan)
    sign = 1.0 if score.higher_is_better else -1.0
    values = {name: float(score.of(one)) for name, one in contenders.items()}
    rows = []
    for name, value in values.items():
        row = Row(name, value, *_ends(drawn[name], confidence), undefined=int(np.isnan(drawn[name]).sum()))
        if name != MODEL:
            low, high = _ends(sign * (drawn[MODEL] - drawn[name]), confidence)
            row = replace(
                row, difference=sign * (values[MODEL] - value), difference_low=low, difference_high=high
            )
        rows.append(row)
    return Comparison(
        tuple(rows), score.name, score.unit, score.higher_is_better, score.chance, len(model), units.count,
        score.resample, block, resamples, confidence,
    )  # fmt: skip


def interval(
    score: Score,
    predictions: Predictions,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    name: str = "",
    note: str = "",
) -> Metric:
    """One number with its interval, as a :class:`Metric`; ``name`` defaults to the score's."""
    compared = bootstrap(score, {MODEL: predictions}, resamples=resamples, confidence=confidence, seed=seed)
    row = compared.model
    if row.undefined:
        note = f"{note}; " * bool(note) + f"undefined in {row.undefined} of {resamples} resamples"
    return Metric(name or score.name, row.value, row.low, row.high, score.unit, note)


def _scores(score: Score, contenders: Mapping[str, Predictions], plan: Resamples) -> dict[str, np.ndarray]:
    """Every contender's score on every resample, float64 ``[resamples]``."""
    at_once = getattr(score.of, "resampled", None)
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for drawn in plan.draws():
        if at_once is not None:
            counts = plan.counts(drawn)
            for name, one in contenders.items():
                found[name] += np.asarray(at_once(one, counts), dtype=np.float64).tolist()
            continue
        for positions in plan.positions(drawn):
            for name, one in contenders.items():
                found[name].append(float(score.of(one.take(positions))))
    return {name: np.asarray(values, dtype=np.float64) for name, values in found.items()}


def _ends(values: np.ndarray, confidence: float) -> tuple[float | None, float | None]:
    defined = values[np.isfinite(values)]
    if len(defined) < 2:
        return None, None
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _block(score: Score, contenders: Mapping[str, Predictions], units: Units) -> float | None:
    """The stated block length, or one long enough for every contender's errors and their differences."""
    if score.resample == "groups":
        return None
    if score.block is not None:
        return max(1.0, float(score.block))
    errors = {}
    for name, one in contenders.items():
        truth, values = cells(one)
        known = ~np.isnan(truth)
        squared = np.where(known, np.square(values - np.where(known, truth, 0.0)), 0.0)
        errors[name] = units.means(squared.sum(axis=1) / np.maximum(known.sum(axis=1), 1))
    differences = [errors[MODEL] - other for name, other in errors.items() if name != MODEL]
    return resampling.block_length([*errors.values(), *differences])


def _aligned(name: str, other: Predictions, model: Predictions) -> Predictions:
    """``other`` in the order of ``model``'s examples.

    Raises:
        CasebookError: They hold other examples or another truth; names the first such key.
    """
    if not np.array_equal(other.keys, model.keys):
        where = {key: position for position, key in enumerate(other.keys)}
        missing = [key for key in model.keys if key not in where]
        if missing or len(where) != len(model) or len(other) != len(model):
            raise CasebookError(
                f"{name!r} was predicted on other examples than the model: {len(other)} against {len(model)}, "
                f"the first that differs is {missing[0] if missing else 'one that comes twice or only there'}.",
                "A comparison is fair only on the same examples: predict all of them with both.",
            )
        other = other.take(np.array([where[key] for key in model.keys]))
    mine, theirs = (np.asarray(one.truth, dtype=np.float32) for one in (model, other))
    if mine.shape != theirs.shape or not np.array_equal(mine, theirs, equal_nan=True):
        raise CasebookError(
            f"{name!r} has another truth than the model for the same examples.",
            "Truth comes from the data, not from who predicts it: take it from the same array.",
        )
    return other
