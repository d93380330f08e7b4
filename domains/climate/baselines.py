"""Honest rivals of both tasks, in numpy: from the field's simple rules to strong linear models.

Everything is fitted on the train split; what must be chosen is chosen on validation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from domains.climate import grid as grids
from domains.climate.config import ClimateConfig
from domains.climate.data import Prepared, numbered
from domains.climate.grid import Grid
from shared.contract import Fold, Predictions

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
"""In standard deviations of the coarse anomalies, squared: candidates of both ridges."""

REACH = 2
"""Local ridge looks this many coarse cells around."""

RATE = 0.2
"""Of exponential smoothing: the weight of the newest map. The error on training years of the A1B run
is flat from 0.2 to 0.25; the textbook's value is taken as it is."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Coarse and fine maps of a split: float32 ``[n, h, w]`` and ``[n, h*f, w*f]``."""

    coarse: np.ndarray
    fine: np.ndarray


def pairs(data: Prepared, config: ClimateConfig, rows: np.ndarray) -> tuple[Pairs, Grid]:
    """The maps at ``rows`` with their block means, and the fine grid (cropped to whole blocks)."""
    factor = config.downscaling.factor
    fine_grid = data.grid.cropped(factor)
    fine = np.asarray(data.fields[rows, : fine_grid.shape[0], : fine_grid.shape[1]])
    return Pairs(grids.coarsen(fine, fine_grid, factor), fine), fine_grid


def mean_of(values: np.ndarray) -> np.ndarray:
    """Mean along the first axis in float64, NaN left out: a float32 mean is off by kelvins (numpy#29772)."""
    known = np.isfinite(values)
    total = np.sum(values, axis=0, dtype=np.float64, where=known)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / known.sum(axis=0)


def rmse(values: np.ndarray, truth: np.ndarray, area: np.ndarray) -> float:
    known = np.isfinite(truth)
    squared = np.where(known, values - np.where(known, truth, 0.0), 0.0) ** 2
    return float(np.sqrt((squared * area).sum() / (known * area).sum()))


def downscaling(data: Prepared, config: ClimateConfig, fold: Fold) -> dict[str, np.ndarray]:
    """Fine maps of the test split by each rival, float64 ``[n, lat, lon]``."""
    split = {name: pairs(data, config, rows)[0] for name, rows in fold.splits.items()}
    fine_grid = data.grid.cropped(config.downscaling.factor)
    factor, train, test = config.downscaling.factor, split["train"], split["test"]
    coarse_grid, area = fine_grid.coarse(factor), fine_grid.area()

    def bilinear(maps: Pairs) -> np.ndarray:
        return grids.interpolate(maps.coarse, coarse_grid, fine_grid)

    offset = mean_of(train.fine - bilinear(train))
    scale = float(np.nanstd(train.coarse.astype(np.float64) - mean_of(train.coarse))) or 1.0
    centre = mean_of(train.coarse)

    def anomalies(maps: Pairs) -> np.ndarray:
        return np.nan_to_num((maps.coarse - centre) / scale)

    def plain(maps: Pairs) -> np.ndarray:
        return bilinear(maps) + offset

    def conserving(maps: Pairs, values: np.ndarray) -> np.ndarray:
        off = maps.coarse - grids.coarsen(np.where(np.isfinite(offset), values, np.nan), fine_grid, factor)
        return values + np.kron(np.nan_to_num(off), np.ones((factor, factor)))

    residual = np.nan_to_num(train.fine - plain(train))
    local_residual = np.nan_to_num(train.fine - conserving(train, plain(train)))

    def ridge(penalty: float, maps: Pairs) -> np.ndarray:
        x, to = anomalies(train).reshape(len(train.coarse), -1), anomalies(maps).reshape(len(maps.coarse), -1)
        return plain(maps) + _ridge(x, residual.reshape(len(x), -1), to, penalty).reshape(maps.fine.shape)

    def local_ridge(penalty: float, maps: Pairs) -> np.ndarray:
        detail = _local_ridge(
            anomalies(train), local_residual, anomalies(maps), penalty, factor, coarse_grid.periodic
        )
        return conserving(maps, conserving(maps, plain(maps)) + detail)

    def best(model: Callable[[float, Pairs], np.ndarray]) -> float:
        validation = split["validation"]
        return min(PENALTIES, key=lambda p: rmse(model(p, validation), validation.fine, area))

    return {
        "bilinear": bilinear(test),
        "bilinear + offset": plain(test),
        "bilinear + offset, conserving": conserving(test, plain(test)),
        "ridge": ridge(best(ridge), test),
        "local ridge": local_ridge(best(local_ridge), test),
    }


def _ridge(x: np.ndarray, y: np.ndarray, to: np.ndarray, penalty: float | np.ndarray) -> np.ndarray:
    """Ridge regression without intercept (x is centred): predictions at ``to``, ``[m, outputs]``.

    Solved in the smaller of the two spaces, examples or features. ``penalty``: one, or one a feature.
    """
    weights = np.broadcast_to(np.asarray(penalty, np.float64), x.shape[1:])
    if x.shape[1] <= len(x):
        return to @ np.linalg.solve(x.T @ x + np.diag(weights), x.T @ y)
    scaled = x / weights
    return to @ (scaled.T @ np.linalg.solve(x @ scaled.T + np.eye(len(x)), y))


def _local_ridge(
    x: np.ndarray, y: np.ndarray, to: np.ndarray, penalty: float, factor: int, periodic: bool
) -> np.ndarray:
    """Each block's cells from the coarse cells around it; farther ones are penalised more."""
    _, rows, columns = x.shape
    out = np.zeros((len(to), *y.shape[1:]))
    reach = np.arange(-REACH, REACH + 1)
    for i in range(rows):
        for j in range(columns):
            near = [
                (a, b % columns if periodic else b, np.hypot(a - i, b - j))
                for a in i + reach
                for b in j + reach
                if 0 <= a < rows and (periodic or 0 <= b < columns)
            ]
            a, b, distance = (np.array(part) for part in zip(*near, strict=True))
            block = np.s_[:, i * factor : (i + 1) * factor, j * factor : (j + 1) * factor]
            said = _ridge(x[:, a, b], y[block].reshape(len(y), -1), to[:, a, b], penalty * np.exp(distance))
            out[block] = said.reshape(len(to), factor, factor)
    return out


def forecast(data: Prepared, config: ClimateConfig, fold: Fold) -> dict[str, np.ndarray]:
    """Maps of the test split by each rule, float64 ``[n, lat, lon]``."""
    examples = numbered(data, config)
    test, train = fold.splits["test"], fold.splits["train"]
    past = np.asarray(data.fields[examples.start[test][:, None] + np.arange(examples.history)], np.float64)
    said = {
        "climatology": _climatology(data, examples.target[train], examples.target[test]),
        "persistence": past[:, -1],
    }
    for length in (5, 10):
        if length <= examples.history:
            said[f"mean of {data.frequency.duration(length)}"] = mean_along_steps(past[:, -length:])
    said["exponential"] = _smoothed(data)[examples.start[test] + examples.history - 1]
    return said


def mean_along_steps(past: np.ndarray) -> np.ndarray:
    """``[n, steps, lat, lon]`` averaged along steps; a missing map's weight goes to the others."""
    known = np.isfinite(past)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known, past, 0.0).sum(axis=1) / known.sum(axis=1)


def _smoothed(data: Prepared) -> np.ndarray:
    """Exponential smoothing of each scenario from its first map on, float64 ``[maps, lat, lon]``.

    Each row knows itself and what came before, as far back as there is no gap.
    """
    out = np.array(data.fields, np.float64)
    for row in range(1, len(out)):
        follows = data.scenario[row] == data.scenario[row - 1] and data.steps[row] == data.steps[row - 1] + 1
        if not follows:
            continue
        new, old = out[row], out[row - 1]
        mixed = RATE * new + (1 - RATE) * old
        out[row] = np.where(np.isfinite(mixed), mixed, np.where(np.isfinite(new), new, old))
    return out


def _climatology(data: Prepared, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Mean of the training maps of the same month (of all, for annual data), for each test map."""
    by_month = data.frequency.unit != "year"
    month = data.parts[:, 1] if by_month else np.zeros(len(data.parts), np.int64)
    whole = mean_of(data.fields[train])
    means = {m: mean_of(data.fields[train[month[train] == m]]) for m in np.unique(month[train])}
    return np.stack([means.get(m, whole) for m in month[test]])


def as_predictions(said: dict[str, np.ndarray], fold: Fold, truth: np.ndarray) -> dict[str, Predictions]:
    rows = fold.splits["test"]
    groups = None if fold.groups is None else fold.groups[rows]
    return {
        name: Predictions(fold.keys[rows], values.astype(np.float32), truth.astype(np.float32), groups)
        for name, values in said.items()
    }
