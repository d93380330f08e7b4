"""One map in (or a history of them), the model's map out, or its value at one place: in real time.

A line goes the way of a file once its numbers are read: the same orientation, units, checks and
grid; so it gets the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from domains.climate import grid as grids
from domains.climate import loader, units
from domains.climate.config import ClimateConfig
from domains.climate.grid import Grid
from domains.climate.loader import Series
from domains.climate.predict import note_range, score
from shared.contract import Answerer, Published
from shared.errors import InputError

_COMMON = '"latitude": [40.0, 44.0], "longitude": [230.0, 234.0], "units": "K"'
LINES = {
    "downscaling": f'{{"id": 1, "values": [[281.2, 280.9], [278.4, null]], {_COMMON}}}',
    "forecast": '{"id": 1, "values": [[[281.2, 280.9], [278.4, null]], ...], "times": ["1999-07-01", ...], '
    f'"calendar": "360_day", {_COMMON}}}',
}
_AT = ' ("at": [47.6, 237.7] asks for the value at one place)'
_MOMENT = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?(?:[T ](\d{2}):00(?::00)?)?")


def answerer(model: Published, config: ClimateConfig) -> Answerer:
    """See :meth:`shared.contract.Domain.answerer`."""
    from shared.runs.predictor import Predictor

    trained = ClimateConfig.model_validate(dict(model.config))
    decision = model.decision
    grid = Grid.from_dict(decision["grid"])
    shape = LINES[decision["task"]]
    predictor = Predictor.load(model.path, warm=True)

    def answer(line: Mapping[str, Any]) -> dict[str, Any]:
        place = _place(line, grid)
        series = _series(line, config, decision, shape)
        if decision["task"] == "downscaling" and len(series.times) > 1:
            raise InputError(f"A line holds one map; received {len(series.times)}.", "Send a line for each.")
        result = score(series, predictor, trained, decision)
        notes: dict[str, Any] = {}
        note_range(notes, series, decision)
        values = result.values[0]
        said: dict[str, Any] = {
            "variable": str(decision["variable"]),
            "unit": str(decision["unit"]),
            "latitude": grid.latitude.tolist(),
            "longitude": grid.longitude.tolist(),
            "values": values.tolist(),
        }
        if place is not None:
            row, column = place
            said |= {
                "latitude": float(grid.latitude[row]),
                "longitude": float(grid.longitude[column]),
                "value": float(values[row, column]),
            }
            del said["values"]
        if line.get("times") is not None:
            said["time"] = result.times[0].isoformat()
        return {**said, "input": result.how, "notes": [f"{what}: {told}" for what, told in notes.items()]}

    return Answerer(answer, shape + _AT)


def _series(line: Mapping[str, Any], config: ClimateConfig, decision: Any, shape: str) -> Series:
    """The maps of a line as a file's.

    Raises:
        InputError: Something is missing, or is not what it should be.
    """
    remedy = f"A line looks like this: {shape}"
    values = _numbers(line, "values", remedy)
    values = values[np.newaxis] if values.ndim == 2 else values
    latitude, longitude = (_numbers(line, name, remedy) for name in ("latitude", "longitude"))
    if latitude.ndim != 1 or longitude.ndim != 1 or values.shape[1:] != (latitude.size, longitude.size):
        raise InputError(
            f"values are [{', '.join(map(str, values.shape))}], latitude [{', '.join(map(str, latitude.shape))}], "
            f"longitude [{', '.join(map(str, longitude.shape))}]; expected values along latitude, then longitude.",
            remedy,
        )
    # CF: a time without a calendar is of the standard one.
    calendar = str(line.get("calendar") or config.calendar or "standard")
    if config.calendar and calendar != config.calendar:
        raise InputError(
            f"The moments are of the calendar {calendar}; {config.calendar} is asked for.",
            "Convert them, or leave --calendar out.",
        )
    unit = str(line.get("units") or config.units)
    if not unit:
        raise InputError('A line states its "units".', remedy)
    return loader.series(
        values.astype(np.float32),
        latitude,
        longitude,
        _times(line, len(values), calendar, decision, remedy),
        calendar=calendar,
        converted=units.conversion(unit),
        variable=str(line.get("variable") or decision["variable"]),
        attributes={"standard_name": str(line.get("standard_name") or "")},
    )


def _numbers(line: Mapping[str, Any], name: str, remedy: str) -> np.ndarray:
    """A list of numbers, float64; null is NaN."""
    given = line.get(name)
    try:
        found = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        found = np.zeros(())
    if not isinstance(given, list) or found.ndim == 0 or found.size == 0:
        told = "nothing" if given is None else "text, an uneven list or another kind of value"
        raise InputError(f'A line needs "{name}" as an even list of numbers; received {told}.', remedy)
    return found


def _times(line: Mapping[str, Any], count: int, calendar: str, decision: Any, remedy: str) -> list[Any]:
    """cftime moments; a map that is only made finer needs none."""
    import cftime

    given = line.get("times")
    if given is None and decision["task"] == "downscaling":
        return [cftime.datetime(1, 1, 1, calendar=calendar)] * count
    if not isinstance(given, list) or len(given) != count:
        raise InputError(f'A line needs "times", one for each of its {count} maps.', remedy)
    moments = []
    for text in given:
        found = _MOMENT.fullmatch(str(text))
        try:
            if found is None:
                raise ValueError("expected the form 1999-07-01")
            year, month, day, hour = (
                int(part or least) for part, least in zip(found.groups(), (0, 0, 1, 0), strict=True)
            )
            moments.append(cftime.datetime(year, month, day, hour, calendar=calendar))
        except ValueError as error:
            raise InputError(
                f"{str(text)[:40]!r} is no moment of the calendar {calendar}: {error}.", remedy
            ) from None
    return moments


def _place(line: Mapping[str, Any], grid: Grid) -> tuple[int, int] | None:
    """Row and column of the cell that "at" names, or None where the whole map is asked for.

    Raises:
        InputError: Not a latitude and a longitude, or outside of the model's cells.
    """
    at = line.get("at")
    if at is None:
        return None
    if not isinstance(at, list) or len(at) != 2 or not all(isinstance(number, (int, float)) for number in at):
        raise InputError('"at" takes [latitude, longitude].', "E.g. [47.6, 237.7].")
    found = grids.nearest(grid, float(at[0]), float(at[1]))
    if found is None:
        raise InputError(f"{at} lies outside of the model's cells: {grid}.", "Ask for a place inside.")
    return found
