"""Which examples a bootstrap resample holds: whole groups, or stretches of consecutive groups."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

_CELLS = 500_000
"""Counts held at a time: 4 MB as float64, so that a chunk stays near the processor."""


@dataclass(frozen=True)
class Units:
    """What is drawn together.

    Attributes:
        of_example: Number of each example's unit, int ``[n]``.
        count: Number of units.
    """

    of_example: np.ndarray
    count: int

    @classmethod
    def of(cls, groups: np.ndarray | None, examples: int) -> Units:
        """Units in the order of their *names* (ISO dates: in time), or each example its own, as it stands."""
        if groups is None:
            return cls(np.arange(examples), examples)
        unique, inverse = np.unique(np.asarray(groups).astype(str), return_inverse=True)
        return cls(inverse, len(unique))

    def means(self, values: np.ndarray) -> np.ndarray:
        """Mean of ``values`` ``[n]`` within each unit, ``[count]``, NaN left out (0 where nothing is known)."""
        known = np.isfinite(values)
        sums = np.bincount(self.of_example[known], values[known], minlength=self.count)
        return sums / np.maximum(np.bincount(self.of_example[known], minlength=self.count), 1)


@dataclass(frozen=True)
class Resamples:
    """The same resamples for everyone who iterates: they depend on the arguments only.

    Attributes:
        units: What is drawn together.
        number: How many resamples.
        kind: ``"groups"`` draws units one by one, ``"blocks"`` stretches of consecutive ones.
        block: Mean length of a stretch in units, for ``"blocks"``.
        seed: Of the draws.
    """

    units: Units
    number: int
    kind: Literal["groups", "blocks"] = "groups"
    block: float = 1.0
    seed: int = 0

    def draws(self) -> Iterator[np.ndarray]:
        """Chunks of drawn units, int ``[r, count]``, in all ``number`` rows."""
        count, examples = self.units.count, len(self.units.of_example)
        generator = np.random.default_rng(self.seed)
        rows = max(1, _CELLS // max(count, examples))
        blocks = _stationary(count, self.block, generator) if self.kind == "blocks" else None
        for start in range(0, self.number, rows):
            size = min(rows, self.number - start)
            if blocks is None:
                yield generator.integers(0, count, size=(size, count))
            else:
                yield np.stack([next(blocks) for _ in range(size)])

    def counts(self, drawn: np.ndarray) -> np.ndarray:
        """How often each example is in each resample of a chunk, float64 ``[r, n]``."""
        rows, count = len(drawn), self.units.count
        flat = (drawn + np.arange(rows)[:, None] * count).ravel()
        by_unit = np.bincount(flat, minlength=rows * count).reshape(rows, count)
        return by_unit[:, self.units.of_example].astype(np.float64)

    def positions(self, drawn: np.ndarray) -> Iterator[np.ndarray]:
        """The examples of each resample of a chunk, in the order drawn, int ``[m]``."""
        order = np.argsort(self.units.of_example, kind="stable")
        length = np.bincount(self.units.of_example, minlength=self.units.count)
        first = np.cumsum(length) - length
        for row in drawn:
            lengths = length[row]
            offset = np.repeat(first[row] - (np.cumsum(lengths) - lengths), lengths)
            yield order[offset + np.arange(len(offset))]


def _stationary(count: int, block: float, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """The stationary bootstrap of Politis and Romano (1994), as ``arch`` draws it."""
    from arch.bootstrap import StationaryBootstrap

    bootstrap = StationaryBootstrap(block, np.arange(count), seed=generator)  # type: ignore[arg-type]
    while True:
        yield bootstrap.update_indices()


def block_length(series: list[np.ndarray]) -> float:
    """Mean block length for the stationary bootstrap of series of one length.

    The longest of the automatic choices of Politis and White (2004, corrected by Patton,
    Politis and White 2009), since all series share their resamples. At least 1, which is
    the ordinary bootstrap, at most a third of the series.
    """
    from arch.bootstrap import optimal_block_length

    longest = 1.0
    for values in series:
        if len(values) < 10 or np.ptp(values) == 0:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a nearly constant series divides by zero
            found = float(optimal_block_length(values)["stationary"].iloc[0])
        if np.isfinite(found):
            longest = max(longest, min(found, len(values) / 3))
    return longest
