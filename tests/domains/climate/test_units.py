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


@pytest.mark.parametrize(
    ("values", "unit", "name"),
    [
        ((-9999.0, 20.0), "degC", "air_temperature"),
        ((280.0, 1e20), "K", "air_temperature"),
        ((-9999.0, 0.0), "mm day-1", "precipitation_flux"),
        ((-9.97e36, 0.0), "1", ""),
    ],
)
def test_undeclared_markers_of_missing_values_are_refused(
    values: tuple[float, float], unit: str, name: str
) -> None:
    converted = units.conversion(unit)
    low, high = converted(np.array(values)).tolist()
    marker = max(values, key=abs)
    with pytest.raises(InputError, match="marker for missing values") as caught:
        units.check_markers(low, high, converted, name)
    assert f"{marker:.5g} {unit}" in caught.value.message


def test_cold_days_and_anomalies_are_no_markers() -> None:
    units.check_markers(
        *units.conversion("degC")(np.array([-89.0, 56.0])).tolist(), units.conversion("degC"), ""
    )
    units.check_markers(-12.0, 9.0, units.conversion("K"), "air_temperature_anomaly")
    units.check_markers(-1e-6, 0.01, units.conversion("kg m-2 s-1"), "precipitation_flux")
