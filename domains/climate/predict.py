"""New maps in, CF NetCDF out, written so that it reads back equal.

One file out for each file in. What can't be used is set aside with its reason.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domains.climate import grid as grids
from domains.climate import loader, moments
from domains.climate.config import ClimateConfig
from domains.climate.grid import Grid
from domains.climate.ingest import source_files
from domains.climate.loader import Series
from domains.climate.moments import Frequency
from domains.climate.output import write_checked
from shared import progress
from shared.contract import Published, Quarantined, Summary
from shared.errors import InputError

BATCH = 32


@dataclass(frozen=True, eq=False)
class Result:
    """What the model said of one file.

    Attributes:
        values: float32 ``[time, lat, lon]``, in the model's units; NaN where it has none.
        times: The moments that the maps are of.
        reference: Forecasts only: the last moment that was known.
        missing: Moments of the input without any value; they have no map in ``values``.
    """

    values: np.ndarray
    times: list[Any]
    calendar: str
    how: str
    reference: Any = None
    missing: tuple[Any, ...] = ()


def predict(model: Published, source: str, config: ClimateConfig, out: Path) -> Summary:
    """See :meth:`shared.contract.Domain.predict`."""
    from shared.runs.predictor import Predictor

    trained = ClimateConfig.model_validate(dict(model.config))
    decision = model.decision
    predictor = Predictor.load(model.path)
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    quarantine: list[Quarantined] = []
    facts: dict[str, Any] = {}
    told: dict[str, list[str]] = {}
    scored, remedy, headline = 0, "", ""
    with tempfile.TemporaryDirectory() as scratch:
        named, _, _ = source_files(source, Path(scratch))
        for number, (_, path) in enumerate(named):
            progress.emit("predict", number, len(named), note=path.name)
            try:
                series = loader.read(
                    path, variable=config.variable, unit=config.units, calendar=config.calendar
                )
                result = score(series, predictor, trained, decision)
            except InputError as error:
                quarantine.append(Quarantined(path.name, error.message))
                remedy = remedy or error.remedy
                continue
            target = _free(
                out / f"{path.stem}-{'fine' if decision['task'] == 'downscaling' else 'forecast'}.nc"
            )
            write_checked(
                target,
                result.values,
                result.times,
                result.calendar,
                decision,
                model,
                series,
                result.reference,
            )
            written.append(target)
            quarantine += [
                Quarantined(f"{path.name}/{time.isoformat()[:10]}", "All its values are missing.")
                for time in result.missing
            ]
            scored += len(result.times)
            told.setdefault(result.how, []).append(target.name)
            headline = headline or _headline(result, decision, series)
            note_range(facts, series, decision)
    progress.emit("predict", len(named), len(named))
    if not written:
        reasons = "; ".join(f"{one.item}: {one.reason}" for one in quarantine[:3])
        raise InputError(f"No usable file among {len(named)}. {reasons}", remedy or "Check --source.")
    if len(written) > 1:
        headline = f"{scored} maps in {len(written)} files. First: {headline}"
    for how, names in told.items():
        facts["input" if len(told) == 1 else ", ".join(names)] = how
    facts["files"] = ", ".join(path.name for path in written)
    facts["unit"] = decision["unit"]
    facts["read back"] = "equal in values, coordinates and times"
    return Summary(written[0], scored, headline, quarantine, facts)


def score(series: Series, predictor: Any, trained: ClimateConfig, decision: Any) -> Result:
    """What the model says of one series of maps.

    Args:
        predictor: Inputs ``[B, ...]`` to maps float32 ``[B, lat, lon]``, as a published model.

    Raises:
        InputError: Another variable, unit, grid or step than the model takes.
    """
    if series.converted.unit != decision["unit"]:
        raise InputError(
            f"It holds {series.variable} in {series.converted.given or 'no unit'}; the model was trained on "
            f"{decision['variable']} in {decision['unit']}.",
            "Give the same variable, in units that can be converted.",
        )
    asked, given = str(decision["standard_name"]), series.standard_name
    if asked and given and asked != given:
        raise InputError(f"It holds {given}; the model was trained on {asked}.", "Give the same variable.")
    by_task = _downscaled if decision["task"] == "downscaling" else _forecast
    return by_task(series, predictor, trained, decision)


def _downscaled(series: Series, predictor: Any, trained: ClimateConfig, decision: Any) -> Result:
    fine = Grid.from_dict(decision["grid"])
    factor = trained.downscaling.factor
    coarse = fine.coarse(factor)
    found = grids.matching(series.grid, coarse)
    if found is not None:
        maps, how = series.values[:, found[0]][:, :, found[1]], "downscaled from the coarse grid"
    else:
        found = grids.matching(series.grid, fine)
        if found is None:
            raise InputError(
                f"Its grid, {series.grid}, has neither the coarse cells that the model takes ({coarse}) nor the "
                f"fine ones ({fine}).",
                "Regrid it conservatively to the coarse grid, e.g. with `cdo remapcon`.",
            )
        maps = grids.coarsen(series.values[:, found[0]][:, :, found[1]], fine, factor)
        how = f"averaged over {factor} x {factor} cells, then downscaled: the input was fine already"
    empty = ~np.isfinite(maps).any(axis=(1, 2))
    if empty.all():
        raise InputError("All its values in the model's region are missing.")
    maps = maps[~empty]
    times = [time for time, gone in zip(series.times, empty, strict=True) if not gone]
    values = np.concatenate([predictor(maps[at : at + BATCH]) for at in range(0, len(maps), BATCH)])
    gone = tuple(time for time, nothing in zip(series.times, empty, strict=True) if nothing)
    return Result(_masked(values, decision), times, series.calendar, how, missing=gone)


def _forecast(series: Series, predictor: Any, trained: ClimateConfig, decision: Any) -> Result:
    grid = Grid.from_dict(decision["grid"])
    found = grids.matching(series.grid, grid)
    if found is None:
        raise InputError(
            f"Its grid, {series.grid}, hasn't the cells that the model takes ({grid}).",
            "Regrid it, e.g. with `cdo remapbil`.",
        )
    counted = moments.count(series.times, series.calendar, "It")
    frequency: Frequency = counted.frequency
    # In the data's own steps: "10 years" of monthly data would be another window.
    expected = decision["step"]
    if str(frequency) != expected:
        raise InputError(
            f"Its step is {frequency}; the model takes maps every {expected}.", "Average or select them."
        )
    history, lead = frequency.steps(trained.forecast.history), frequency.steps(trained.forecast.lead)
    if len(counted.steps) < history or counted.steps[-1] - counted.steps[-history] != history - 1:
        gaps = counted.missing()
        raise InputError(
            f"A forecast needs the last {trained.forecast.history} without a gap; it has {len(counted.steps)} maps"
            + (f", missing {gaps[-1]}." if gaps else "."),
            "Give the missing maps.",
        )
    window = series.values[-history:][:, found[0]][:, :, found[1]]
    values = predictor(window[None])
    valid = moments.later(series.times[-1], frequency, lead)
    return Result(
        _masked(values, decision),
        [valid],
        series.calendar,
        f"forecast of {valid.isoformat()[:10]} from {history} maps up to {series.times[-1].isoformat()[:10]}",
        series.times[-1],
    )


def _masked(values: np.ndarray, decision: Any) -> np.ndarray:
    """NaN where training never had a value; the network says a number there, which means nothing."""
    missing = np.asarray(decision["missing cells"], np.int64)
    values = np.array(values, np.float32)
    values.reshape(len(values), -1)[:, missing] = np.nan
    return values


def _headline(result: Result, decision: Any, series: Series) -> str:
    grid = Grid.from_dict(decision["grid"])
    area = np.broadcast_to(grid.area(), result.values.shape)
    known = np.isfinite(result.values)
    mean = float((np.where(known, result.values, 0.0) * area).sum() / (known * area).sum())
    name = series.standard_name or series.variable
    if result.reference is not None:
        text = (
            f"{name} in {result.times[0].isoformat()[:10]}: {mean:.2f} {decision['unit']} on the area's mean"
        )
        if "climatology" in decision:
            normal = np.asarray(decision["climatology"], np.float64)
            wanted = known[0] & np.isfinite(normal)
            gap = np.where(wanted, result.values[0] - np.where(wanted, normal, 0.0), 0.0)
            mean_gap = float((gap * area[0]).sum() / (wanted * area[0]).sum())
            text += f", {mean_gap:+.2f} from the training years' climatology"
        return text + "."
    first, last = (time.isoformat()[:10] for time in (result.times[0], result.times[-1]))
    return (
        f"{len(result.times)} maps of {name}, {first} to {last}, on {grid.shape[0]} x {grid.shape[1]} cells; "
        f"mean {mean:.2f} {decision['unit']}."
    )


def note_range(facts: dict[str, Any], series: Series, decision: Any) -> None:
    """Says where the input is outside of what training saw: there the model extrapolates."""
    known = np.isfinite(series.values)
    outside = known & ((series.values < decision["lowest"]) | (series.values > decision["highest"]))
    share = float(outside.sum() / known.sum())
    if share > 0:
        told = f"{share:.2%}" if share >= 1e-4 else "under 0.01%"
        facts[f"{series.variable} outside the training range"] = f"{told} of the input cells"


def _free(path: Path) -> Path:
    """The path, or with a number where several inputs have one name."""
    number, free = 2, path
    while free.exists():
        free = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return free
