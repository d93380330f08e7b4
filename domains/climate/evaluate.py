"""How the field judges maps: area-weighted errors in physical units, where and when they are made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.climate import baselines, figures
from domains.climate.config import ClimateConfig
from domains.climate.grid import Grid
from shared.contract import Evaluation, Figure, FoldResult, Metric, Predictions, Score, Table
from shared.evaluation import metrics
from shared.evaluation.predictions import pooled

if TYPE_CHECKING:
    import xarray

LIMITS = (
    "Valid for the model's own grid, variable and climate: it was judged on a scenario or years like those it "
    "was trained on, and says nothing of another climate model, of observations, or of a warmer world than "
    "training saw.",
    "The interval is over years of one realisation; the spread between climate models is not in it.",
)
DOWNSCALING_LIMIT = (
    "Coarse maps are block means of the fine ones (a perfect-model test). A real coarse model has biases of its "
    "own, which this does not correct."
)
FORECAST_LIMIT = (
    "Next-year temperature is mostly weather: the best a forecast can do is little better than the mean of the "
    "past years. No forcing (greenhouse gases, volcanoes) is known to the model, nor the month of monthly maps."
)


def evaluate(results: Sequence[FoldResult], config: ClimateConfig, out: Path) -> Evaluation:
    """Metrics, tables and figures; see :meth:`shared.contract.Domain.evaluate`."""
    about = results[-1].fold.about
    grid, unit = Grid.from_dict(about["grid"]), str(about["unit"])
    said = {"model": pooled([result.test for result in results])}
    for name in results[-1].baselines:
        said[name] = pooled([result.baselines[name] for result in results])
    model = said["model"]
    score = score_on(grid, unit)
    best = min((name for name in said if name != "model"), key=lambda name: score.of(said[name]))
    errors = {name: _by_xarray(one, grid) for name, one in said.items()}
    tables = [_overview(errors, unit), _by_decade(said, score)]
    found = [
        metrics.interval(score, model, resamples=config.gate.resamples, confidence=config.gate.confidence),
        *_metrics(model, errors, grid, unit, best),
    ]
    if "climatology" in said:
        found.append(_anomaly_correlation(model, said["climatology"], grid))
    return Evaluation(
        metrics=found,
        tables=tables,
        figures=_figures(said, best, errors, grid, unit, config.task, out),
        decision=_decision(results, grid),
        flags=_flags(errors, grid, said, unit),
        limits=(*LIMITS, DOWNSCALING_LIMIT if config.task == "downscaling" else FORECAST_LIMIT),
    )


def score_on(grid: Grid, unit: str) -> Score:
    """The number that the gate compares: RMSE weighted by area, resampled in stretches of years."""
    of = metrics.weighted_rmse(grid.area())
    return Score("RMSE", of, higher_is_better=False, resample="blocks", unit=unit)


def as_array(values: np.ndarray, grid: Grid) -> xarray.DataArray:
    """Maps ``[n, lat, lon]`` as xarray, float64."""
    import xarray

    return xarray.DataArray(
        np.asarray(values, np.float64),
        dims=("example", "latitude", "longitude"),
        coords={"latitude": grid.latitude, "longitude": grid.longitude},
    )


def _by_xarray(predictions: Predictions, grid: Grid) -> dict[str, Any]:
    """Verification by the ``scores`` package: RMSE, mean error, and both as maps.

    It is independent of our own score, and the report shows both: they must agree.
    """
    from scores.continuous import additive_bias, mae, rmse
    from scores.functions import create_latitude_weights

    truth = as_array(predictions.truth, grid)
    # Where the truth is missing the forecast must be, too, or the weights are not renormalised.
    values = as_array(predictions.values, grid).where(truth.notnull())
    weights = create_latitude_weights(truth["latitude"])
    return {
        "rmse": float(rmse(values, truth, weights=weights)),
        "bias": float(additive_bias(values, truth, weights=weights)),
        "mae": float(mae(values, truth, weights=weights)),
        "rmse map": rmse(values, truth, preserve_dims=("latitude", "longitude")).values,
        "bias map": additive_bias(values, truth, preserve_dims=("latitude", "longitude")).values,
    }


def _overview(errors: Mapping[str, Mapping[str, Any]], unit: str) -> Table:
    own = errors["model"]["rmse"]
    rows = [
        [
            name,
            round(e["rmse"], 4),
            round(e["bias"], 4),
            round(e["mae"], 4),
            # Nothing has skill over what makes no error.
            "" if name == "model" or not e["rmse"] else f"{1 - (own / e['rmse']) ** 2:+.1%}",
        ]
        for name, e in errors.items()
    ]
    return Table(
        "Error over the test, area-weighted",
        ["", f"RMSE ({unit})", f"bias ({unit})", f"MAE ({unit})", "skill of the model over it"],
        rows,
        "Computed by the `scores` package. Skill is 1 - MSE(model) / MSE(other): 0 is no better, 1 is perfect.",
    )


def _by_decade(said: Mapping[str, Predictions], score: Score) -> Table:
    groups = said["model"].groups
    names = said["model"].keys if groups is None else groups
    decades: dict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(names):
        scenario, _, year = str(name).rpartition("/")
        decades[f"{scenario} {year[:3]}0s"].append(position)
    rows = [
        [
            decade,
            len(positions),
            *(round(score.of(one.take(np.array(positions))), 4) for one in said.values()),
        ]
        for decade, positions in decades.items()
    ]
    return Table(f"RMSE by decade ({score.unit})", ["decade", "maps", *said], rows)


def _metrics(
    model: Predictions, errors: Mapping[str, Mapping[str, Any]], grid: Grid, unit: str, best: str
) -> list[Metric]:
    area = grid.area()
    ours, other = errors["model"], errors[best]
    better = (ours["rmse map"] < other["rmse map"]).astype(float)
    seen = np.isfinite(ours["rmse map"])
    return [
        Metric("bias", ours["bias"], unit=unit, note="mean of model minus truth, area-weighted"),
        Metric("mean absolute error", ours["mae"], unit=unit),
        Metric(
            "spread ratio",
            _spread(model.values, model.truth, area),
            note="standard deviation in time, model over truth: below 1 is too smooth",
        ),
        Metric("largest error of a cell", float(np.nanmax(ours["rmse map"])), unit=unit, note="RMSE in time"),
        Metric(
            f"area better than {best}",
            float((better * area * seen).sum() / (area * seen).sum()),
            note="share of the area where the model's RMSE in time is lower",
        ),
    ]


def _spread(values: np.ndarray, truth: np.ndarray, area: np.ndarray) -> float:
    known = np.isfinite(truth)
    spreads = []
    for maps in (values, truth):
        maps = np.where(known, maps, np.nan).astype(np.float64)
        seen = known.any(axis=0)
        variance = np.zeros(area.shape)
        variance[seen] = np.nanvar(maps[:, seen], axis=0)
        spreads.append((variance * area).sum())
    return float(np.sqrt(spreads[0] / spreads[1])) if spreads[1] > 0 else float("nan")


def _anomaly_correlation(model: Predictions, climatology: Predictions, grid: Grid) -> Metric:
    """Centred on the climatology of the *training* years; the test's own would know the answer."""
    known = np.isfinite(model.truth)
    area = np.broadcast_to(grid.area(), model.truth.shape)
    normal = climatology.values.astype(np.float64)
    f, o = (np.where(known, maps - normal, 0.0) for maps in (model.values, model.truth))
    bottom = np.sqrt((area * f * f).sum() * (area * o * o).sum())
    return Metric(
        "anomaly correlation",
        float((area * f * o).sum() / bottom) if bottom > 0 else float("nan"),
        note="anomalies from the training years' climatology",
    )


def _decision(results: Sequence[FoldResult], grid: Grid) -> dict[str, Any]:
    """What predict must know beside the weights: the grid, and which cells never have a value."""
    fold = results[-1].fold
    truth = np.concatenate([results[-1].validation.truth, results[-1].test.truth])
    missing = np.flatnonzero(~np.isfinite(truth).any(axis=0).ravel())
    decision: dict[str, Any] = {
        "task": fold.about["task"],
        "grid": grid.to_dict(),
        "variable": fold.about["variable"],
        "standard_name": fold.about.get("standard_name", ""),
        "unit": fold.about["unit"],
        "step": fold.about["step"],
        "trained on": fold.about["train"],
        "missing cells": missing.tolist(),
        "lowest": fold.about["lowest in training"],
        "highest": fold.about["highest in training"],
    }
    if "climatology" in results[-1].baselines:
        climatology = results[-1].baselines["climatology"].values
        if bool((climatology == climatology[:1]).all()):  # one for all, not one a month
            decision["climatology"] = [[round(float(v), 4) for v in row] for row in climatology[0]]
    return decision


def _flags(
    errors: Mapping[str, Mapping[str, Any]], grid: Grid, said: Mapping[str, Predictions], unit: str
) -> list[str]:
    flags = []
    ours = errors["model"]
    own = baselines.rmse(said["model"].values, said["model"].truth, grid.area())
    if abs(own - ours["rmse"]) > 1e-3 * max(own, 1e-9):
        flags.append(
            f"The `scores` package finds an RMSE of {ours['rmse']:.4g} {unit} where ours is {own:.4g}."
        )
    if abs(ours["bias"]) > 0.5 * ours["rmse"]:
        flags.append(f"Most of the error is bias: {ours['bias']:+.3g} of {ours['rmse']:.3g} {unit}.")
    return flags


def _figures(
    said: Mapping[str, Predictions],
    best: str,
    errors: Mapping[str, Mapping[str, Any]],
    grid: Grid,
    unit: str,
    task: str,
    out: Path,
) -> list[Figure]:
    out.mkdir(parents=True, exist_ok=True)
    model, rival = said["model"], said[best]
    per_map = [
        baselines.rmse(v[None], t[None], grid.area()) for v, t in zip(model.values, model.truth, strict=True)
    ]
    simplest = "bilinear" if task == "downscaling" else "climatology"
    typical = int(np.argsort(per_map)[len(per_map) // 2])
    figures.errors_in_time(out / "rmse-by-year.png", said, grid, unit)
    figures.bias_maps(
        out / "bias-map.png",
        {name: errors[name] for name in ("model", best)},
        grid,
        unit,
    )
    figures.example(
        out / "example.png",
        str(model.keys[typical]),
        model.truth[typical],
        {"model": model.values[typical], best: rival.values[typical]},
        (simplest, said[simplest].values[typical]),
        grid,
        unit,
    )
    what = "fine map" if task == "downscaling" else "map"
    return [
        Figure(
            out / "rmse-by-year.png", f"Area-weighted RMSE of each test map in {unit}, model and baselines."
        ),
        Figure(
            out / "bias-map.png",
            f"Mean error and RMSE in time of the model and of the best baseline ({best}), {unit}. Dots of one colour "
            "in one place are a bias that training left.",
        ),
        Figure(
            out / "example.png",
            f"The test map with the median error, {model.keys[typical]}: the true {what}, the model's and the best "
            f"baseline's ({best}); below, what was to be found over {simplest}, and what each got wrong.",
        ),
    ]
