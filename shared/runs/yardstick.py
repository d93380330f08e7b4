"""One yardstick for all forms of a model: the same test examples, score, batch and clock. For a child."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shared import input_pipeline, progress
from shared.contract import Predictions, Split, find
from shared.evaluation.predictions import mean, read_predictions
from shared.machine import machine
from shared.plan import ExecutionPlan
from shared.runs import forms
from shared.runs.forms import Trained

if TYPE_CHECKING:
    import keras

MOST_EXAMPLES = 5_000
"""Test examples that forms are judged on; of a larger split so many, evenly spread over it."""
BATCH = 32
"""Examples in the batch that latency is measured on, and in which a split is predicted."""
_CACHE_BYTES = 256 << 20
_CALLS, _SECONDS = 50, 0.4
"""Latency is the median of so many calls, or of those that fit into so many seconds."""

Run = Callable[[Any], np.ndarray]
"""Inputs ``[B, ...]`` (array, or dict or list of them) to outputs float32 ``[B, ...]``."""


class Yardstick:
    """Measures forms of the members of one fold against the trained ones.

    Args:
        members: Folders that ``train_member`` filled; what they said of the test split is the truth
            about the trained model.
    """

    def __init__(
        self, domain: str, prepared: str, config: Mapping[str, Any], fold: int, members: Sequence[str]
    ) -> None:
        self.domain = find(domain)
        self.prepared = Path(prepared)
        self.config = self.domain.Config.model_validate(dict(config))
        self.fold = self.domain.folds(self.prepared, self.config)[fold]
        said = mean([read_predictions(Path(member) / "test.npz") for member in members])
        self.positions = spread(len(said), MOST_EXAMPLES)
        self.said: Predictions = said.take(self.positions)
        self.score = self.domain.score(self.prepared, self.config)
        here = machine()
        self.trained = Trained(
            score=float(self.score.of(self.said)),
            name=self.score.name,
            unit=self.score.unit,
            higher_is_better=self.score.higher_is_better,
            examples=len(self.said),
            test_examples=len(said),
            batch=BATCH,
            device=f"{here.cpu}, {here.cores} core{'s' if here.cores != 1 else ''}",
        )
        self._source = self._examples("test", self.positions)

    def predict(self, run: Run) -> np.ndarray:
        """What ``run`` says of the test examples, float32 ``[n, ...]``, in their order."""
        values, done = [], 0
        for x in self._batches():
            values.append(np.asarray(run(x), np.float32))
            done = min(done + BATCH, len(self.positions))
            progress.emit("judging the export", done, len(self.positions))
        return np.concatenate(values)[: len(self.positions)]

    def measure(
        self, run: Run, places: Sequence[Path], *, values: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Size, latency, difference and score of a form; plain data for :mod:`shared.runs.forms`.

        Args:
            run: All members' mean.
            places: The form's files or folders, of all members.
            values: What it says of the test examples, where that is known already.
        """
        if values is None:
            values = self.predict(run)
        x = next(self._batches())
        first, batch = (_rows(x, count) for count in (1, BATCH))
        return {
            **forms.sizes(places),
            "one_ms": latency(lambda: run(first)),
            "batch_ms": latency(lambda: run(batch)),
            "difference": difference(values, self.said.values),
            "score": float(self.score.of(replace(self.said, values=values))),
        }

    def rebuilt(self, folder: str | Path) -> keras.Model:
        """The model of a member, or of a pruned one, under the current dtype policy."""
        from shared.training.member import rebuild

        return rebuild(self.domain, self.prepared, self.config, self.fold, Path(folder))

    def example(self) -> Any:
        """The first test example, without batch axis."""
        import tensorflow as tf

        return tf.nest.map_structure(lambda part: part[0], next(self._batches()))

    def representative(self, count: int) -> list[Any]:
        """Inputs ``[1, ...]`` of ``count`` examples, evenly spread over the *train* split: for calibration."""
        source = self._examples("train", spread(len(self.fold.splits["train"]), count))
        found: list[Any] = []
        for x, *_ in input_pipeline.evaluation_batches(source, ExecutionPlan(batch_size=1)):
            found.append(_as_arrays(x))
        return found[: source.count]

    def _examples(self, split: Split, positions: np.ndarray) -> Any:
        chosen = {**self.fold.splits, split: np.asarray(self.fold.splits[split])[positions]}
        source = self.domain.examples(self.prepared, self.config, replace(self.fold, splits=chosen), split)
        return input_pipeline.cached(source, ExecutionPlan(cache_bytes=_CACHE_BYTES))

    def _batches(self) -> Iterator[Any]:
        for x, *_ in input_pipeline.evaluation_batches(self._source, ExecutionPlan(batch_size=BATCH)):
            yield _as_arrays(x)


def spread(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the positions 0..count-1, evenly spread, first and last among them: int64.

    >>> spread(5, 9).tolist(), spread(9, 3).tolist()
    ([0, 1, 2, 3, 4], [0, 4, 8])
    """
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def difference(values: np.ndarray, trained: np.ndarray) -> float:
    """Largest difference of two models' outputs, in units of the standard deviation of the second's.

    Where the trained model says NaN (a cell that it knows nothing of), the other must, too; a NaN
    of one alone makes the difference NaN.
    """
    known = ~np.isnan(trained)
    if not np.array_equal(known, ~np.isnan(values)):
        return float("nan")
    if not known.any():
        return 0.0
    spread = float(np.std(trained[known], dtype=np.float64)) or 1.0
    return float(np.max(np.abs(values[known].astype(np.float64) - trained[known]))) / spread


def latency(call: Callable[[], Any]) -> float:
    """Median milliseconds of a call, after two that are not counted (the first one compiles)."""
    call()
    call()
    taken: list[float] = []
    while len(taken) < _CALLS and sum(taken) < _SECONDS:
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return round(float(np.median(taken)) * 1000, 4)


def _as_arrays(x: Any) -> Any:
    import tensorflow as tf

    return tf.nest.map_structure(np.asarray, x)


def _rows(x: Any, count: int) -> Any:
    """``count`` examples of a batch; its first ones again and again where it has fewer."""
    import tensorflow as tf

    return tf.nest.map_structure(lambda part: part[np.arange(count) % len(part)], x)
