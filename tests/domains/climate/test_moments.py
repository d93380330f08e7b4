"""Moments as counted steps, durations with units."""

from __future__ import annotations

import cftime
import numpy as np
import pytest

from domains.climate import moments
from domains.climate.moments import Frequency
from shared.errors import InputError

from .conftest import years


def monthly(count: int, calendar: str = "standard") -> list[cftime.datetime]:
    return [cftime.datetime(2000 + n // 12, n % 12 + 1, 15, calendar=calendar) for n in range(count)]


def test_annual_monthly_and_daily_steps_are_recognised() -> None:
    assert str(moments.count(years(1990, 3), "360_day", "it").frequency) == "1 year"
    assert str(moments.count(monthly(14), "standard", "it").frequency) == "1 month"
    days = [cftime.datetime(2000, 2, 27 + n, calendar="360_day") for n in range(4)]
    assert str(moments.count(days, "360_day", "it").frequency) == "1 day"


def test_a_missing_moment_is_counted_and_named() -> None:
    times = [time for time in years(1990, 6) if time.year != 1993]
    counted = moments.count(times, "360_day", "it")
    assert np.diff(counted.steps).tolist() == [1, 1, 2, 1]
    assert counted.missing() == ["1 between 1992 and 1994"]


def test_first_of_january_does_not_vanish() -> None:
    days = [cftime.datetime(2000, 12, 30, calendar="noleap"), cftime.datetime(2000, 12, 31, calendar="noleap"),
            cftime.datetime(2001, 1, 2, calendar="noleap")]  # fmt: skip
    assert moments.count(days, "noleap", "it").missing() == ["1 between 2000-12-31 and 2001-01-02"]


def test_uneven_and_single_moments_are_refused() -> None:
    odd = [cftime.datetime(2000, 1, day, calendar="standard") for day in (1, 3, 6)]
    with pytest.raises(InputError, match="not evenly spaced"):
        moments.count(odd, "standard", "it")
    with pytest.raises(InputError, match="at least two"):
        moments.count(years(1990, 1), "360_day", "it")


def test_durations_carry_units() -> None:
    assert Frequency("year", 1).steps("10 years") == 10
    assert Frequency("month", 1).steps("2 years") == 24
    assert Frequency("month", 3).steps("6 months") == 2
    assert Frequency("hour", 6).steps("2 days") == 8
    assert Frequency("year", 1).steps("24 months") == 2
    assert Frequency("hour", 24).steps("5 steps") == 5


@pytest.mark.parametrize("text", ["10", "ten years", "", "0 years", "10 parsecs"])
def test_a_number_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="number and a unit"):
        Frequency("year", 1).steps(text)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Frequency("year", 1), "6 months"),
        (Frequency("month", 1), "10 days"),
        (Frequency("hour", 24), "6 hours"),
        (Frequency("year", 10), "5 years"),
    ],
)
def test_a_duration_that_is_no_whole_number_of_steps_is_refused(step: Frequency, text: str) -> None:
    with pytest.raises(InputError, match="no whole number of steps"):
        step.steps(text)


def test_later_keeps_to_the_calendar() -> None:
    end = cftime.datetime(2000, 2, 30, calendar="360_day")
    assert moments.later(end, Frequency("year", 1), 1) == cftime.datetime(2001, 2, 30, calendar="360_day")
    assert moments.later(end, Frequency("hour", 24), 1) == cftime.datetime(2000, 3, 1, calendar="360_day")
    assert (
        moments.later(cftime.datetime(2000, 1, 31, calendar="standard"), Frequency("month", 1), 1).day == 29
    )


def test_the_thirtieth_of_february_keeps_its_place() -> None:
    parts = np.array([[2000, 2, 28, 0], [2000, 2, 30, 0], [2000, 3, 1, 0]])
    assert (np.diff(moments.dates(parts)).astype(int) >= 0).all()
