"""Units are read, converted and stated; impossible ones are refused."""

from __future__ import annotations

import numpy as np
import pytest

from domains.climate import units
from shared.errors import InputError


@pytest.mark.parametrize(
    ("given", "value", "unit", "expected"),
    [
        ("degC", 15.0, "K", 288.15),
        ("Celsius", 0.0, "K", 273.15),
        ("degF", 212.0, "K", 373.15),
        ("K", 288.15, "K", 288.15),
        ("hPa", 1013.25, "Pa", 101325.0),
        ("mbar", 1.0, "Pa", 100.0),
        ("m/s", 3.0, "m s-1", 3.0),
        ("knots", 1.0, "m s-1", 0.514444),
        ("mm/day", 86400.0, "kg m-2 s-1", 1.0),
        ("furlong", 7.0, "furlong", 7.0),
    ],
)
def test_conversion(given: str, value: float, unit: str, expected: float) -> None:
    converted = units.conversion(given)
    assert converted.unit == unit
    assert converted(np.array([value]))[0] == pytest.approx(expected, rel=1e-6)
    assert converted.inverse(converted(np.array([value])))[0] == pytest.approx(value, rel=1e-5, abs=1e-4)
    assert converted(np.array([value])).dtype == np.float32


def test_impossible_units_are_refused() -> None:
    with pytest.raises(InputError, match="average 15 K"):
        units.check_plausible(15.0, units.conversion("K"), "air_temperature")
    with pytest.raises(InputError, match="no such field on Earth"):
        units.check_plausible(1013.0, units.conversion("Pa"), "air_pressure_at_mean_sea_level")
    units.check_plausible(0.3, units.conversion("K"), "air_temperature_anomaly")
