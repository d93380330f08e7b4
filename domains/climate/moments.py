"""Time in climate data: moments of any calendar as counted steps, and durations with units.

Each moment of a scenario gets the number of its step, so that a window is right when its
numbers are consecutive, whatever the calendar; a missing 1 January shows as a missing
number. Moments are kept as year, month, day, hour, which every calendar has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shared.errors import InputError

Unit = Literal["year", "month", "hour"]
HOURS = {"hour": 1, "day": 24, "week": 168}
_DURATION = re.compile(r"^\s*(\d+)\s*(year|month|week|day|hour|step)s?\s*$")


@dataclass(frozen=True)
class Frequency:
    """The distance of two steps: ``count`` years, months or hours."""

    unit: Unit
    count: int

    def __str__(self) -> str:
        unit, count = (self.unit, self.count)
        if self.unit == "hour" and count % 24 == 0:
            return _plural(count // 24, "day")
        return _plural(count, unit)

    def steps(self, duration: str) -> int:
        """How many steps a duration such as ``"10 years"`` is.

        Raises:
            InputError: Not a duration with a unit, or no whole number of steps.

        >>> Frequency("month", 1).steps("2 years")
        24
        """
        found = _DURATION.match(duration.lower())
        if not found or int(found[1]) == 0:
            raise InputError(
                f"A duration needs a number and a unit, received {duration!r}.",
                'Write e.g. "10 years", "6 months", "5 days" or "12 hours".',
            )
        number, unit = int(found[1]), found[2]
        if unit == "step":
            return number
        amount: float
        if unit in HOURS:
            amount, kind = number * HOURS[unit], "hour"
        elif self.unit == "month":
            amount, kind = number * (12 if unit == "year" else 1), "month"
        else:
            amount, kind = number if unit == "year" else number / 12, "year"
        steps = amount / self.count
        if kind != self.unit or steps != int(steps) or steps < 1:
            raise InputError(
                f"{duration!r} is no whole number of steps: the data come every {self}.",
                f"Give a multiple of {self}.",
            )
        return int(steps)

    def duration(self, steps: int) -> str:
        """The inverse of :meth:`steps`, for people.

        >>> Frequency("year", 1).duration(10)
        '10 years'
        """
        return str(Frequency(self.unit, self.count * steps))


@dataclass(frozen=True)
class Moments:
    """The moments of one series, ascending.

    Attributes:
        fields: int ``[n, 4]``: year, month, day, hour.
        steps: int64 ``[n]``: number of each moment's step; a gap where it jumps.
        frequency: What one step is.
    """

    fields: np.ndarray
    steps: np.ndarray
    frequency: Frequency

    def missing(self) -> list[str]:
        """The gaps, each by the moments around it."""
        names = labels(self.fields, self.frequency)
        return [
            f"{self.steps[i + 1] - self.steps[i] - 1} between {names[i]} and {names[i + 1]}"
            for i in np.flatnonzero(np.diff(self.steps) > 1)
        ]


def fields(times: Sequence[Any]) -> np.ndarray:
    """Year, month, day, hour of cftime moments, int64 ``[n, 4]``."""
    return np.array([[t.year, t.month, t.day, t.hour] for t in times], np.int64).reshape(-1, 4)


def count(times: Sequence[Any], calendar: str, what: str) -> Moments:
    """Numbers the steps of ascending cftime moments.

    Raises:
        InputError: Fewer than two moments, or distances that are no multiples of one step.
    """
    import cftime

    parts = fields(times)
    if len(parts) < 2:
        raise InputError(f"{what} has {len(parts)} moment, at least two are needed to know its step.")
    months = parts[:, 0] * 12 + parts[:, 1] - 1
    between = np.diff(months)
    same_day = bool((parts[:, 1:] == parts[0, 1:]).all())
    if same_day and (between > 0).all():
        return _numbered(parts, months // 12, "year", what)
    if (between > 0).all():
        return _numbered(parts, months, "month", what)
    hours = cftime.date2num(list(times), "hours since 1850-01-01", calendar=calendar)
    return _numbered(parts, np.round(np.asarray(hours)).astype(np.int64), "hour", what)


def _numbered(parts: np.ndarray, amounts: np.ndarray, unit: Unit, what: str) -> Moments:
    between = np.diff(amounts)
    step = int(between.min())
    if step <= 0 or (between % step).any():
        raise InputError(
            f"{what} is not evenly spaced in time: steps of {np.unique(between)[:4].tolist()} {unit}s.",
            "Give a series with one step, e.g. all monthly means.",
        )
    return Moments(parts, amounts // step, Frequency(unit, step))


def labels(parts: np.ndarray, frequency: Frequency) -> list[str]:
    """Names of moments, as short as the step allows: ``2010``, ``2010-03``, ``2010-03-01``, ``2010-03-01T06``."""
    if frequency.unit == "year":
        return [f"{y:04d}" for y, *_ in parts]
    if frequency.unit == "month":
        return [f"{y:04d}-{m:02d}" for y, m, *_ in parts]
    if frequency.count % 24 == 0:
        return [f"{y:04d}-{m:02d}-{d:02d}" for y, m, d, _ in parts]
    return [f"{y:04d}-{m:02d}-{d:02d}T{h:02d}" for y, m, d, h in parts]


def dates(parts: np.ndarray) -> np.ndarray:
    """The moments as datetime64[D], for comparing spans only.

    A 360-day calendar has a 30 February and numpy has none: days beyond 28 count as the 28th,
    which keeps the order. (Comparing such a calendar with datetime64 directly selects nothing,
    silently: xarray#3666.)
    """
    months = (parts[:, 0] - 1970) * 12 + parts[:, 1] - 1
    return months.astype("datetime64[M]").astype("datetime64[D]") + (np.minimum(parts[:, 2], 28) - 1)


def later(time: Any, frequency: Frequency, steps: int) -> Any:
    """The cftime moment ``steps`` steps after ``time``, in its own calendar."""
    import datetime

    amount = frequency.count * steps
    if frequency.unit == "hour":
        return time + datetime.timedelta(hours=amount)
    months = time.year * 12 + time.month - 1 + amount * (12 if frequency.unit == "year" else 1)
    first = time.replace(day=1, year=months // 12, month=months % 12 + 1)
    return first.replace(day=min(time.day, first.daysinmonth))


def _plural(number: int, unit: str) -> str:
    return f"{number} {unit}" + ("s" if number != 1 else "")
