"""Units: read from the file, converted to one per quantity, stated on every output.

A small table instead of a units package: the quantities of surface climate, and nothing
silently guessed. Unknown units pass unchanged and must then agree between files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shared.errors import InputError

_SAME = {
    "K": ("k", "kelvin", "kelvins", "degk", "deg_k", "degree_k", "degrees_k", "degree_kelvin"),
    "degC": (
        "degc",
        "deg_c",
        "celsius",
        "degree_celsius",
        "degrees_celsius",
        "degree_c",
        "degrees_c",
        "c",
        "°c",
    ),
    "degF": ("degf", "deg_f", "fahrenheit", "degree_fahrenheit", "degrees_fahrenheit", "degree_f", "°f"),
    "Pa": ("pa", "pascal", "pascals"),
    "hPa": ("hpa", "mbar", "millibar", "millibars", "mb", "hectopascal"),
    "kPa": ("kpa",),
    "m s-1": ("m s-1", "m/s", "m s**-1", "meter per second", "metre second-1", "ms-1", "m s^-1"),
    "knot": ("knot", "knots", "kt", "kts"),
    "kg m-2 s-1": ("kg m-2 s-1", "kg/m2/s", "kg m**-2 s**-1", "kg m^-2 s^-1", "mm s-1", "mm/s"),
    "mm day-1": ("mm day-1", "mm/day", "mm d-1", "mm/d", "mm day**-1"),
}
_CANONICAL = {name.lower(): unit for unit, names in _SAME.items() for name in names}

_TO = {  # unit: (target, factor, offset)
    "degC": ("K", 1.0, 273.15),
    "degF": ("K", 5.0 / 9.0, 273.15 - 32.0 * 5.0 / 9.0),
    "hPa": ("Pa", 100.0, 0.0),
    "kPa": ("Pa", 1000.0, 0.0),
    "knot": ("m s-1", 1852.0 / 3600.0, 0.0),
    "mm day-1": ("kg m-2 s-1", 1.0 / 86400.0, 0.0),
}

_PLAUSIBLE = {"K": (120.0, 400.0)}
_LOWEST = {"K": 0.0, "m s-1": -1000.0, "kg m-2 s-1": -0.01}
_UNDECLARED = 1e20
"""Numbers of this size stand for missing values (1e20, 1e30, NetCDF's 9.97e36), never for weather."""
_PRESSURES = ("air_pressure_at_mean_sea_level", "air_pressure_at_sea_level", "surface_air_pressure")
"""Between these the mean of a field on Earth lies."""


@dataclass(frozen=True)
class Conversion:
    """From a file's units to ours: ``values * factor + offset``."""

    given: str
    unit: str
    factor: float = 1.0
    offset: float = 0.0

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """The values in ``unit``, float32, computed in float64."""
        if self.factor == 1.0 and self.offset == 0.0:
            return np.asarray(values, np.float32)
        return (np.asarray(values, np.float64) * self.factor + self.offset).astype(np.float32)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        return ((np.asarray(values, np.float64) - self.offset) / self.factor).astype(np.float32)

    def __str__(self) -> str:
        return self.unit if self.given == self.unit else f"{self.given} converted to {self.unit}"


def conversion(given: str) -> Conversion:
    """How values in units ``given`` become ours; unknown units stay as they are.

    >>> str(conversion("celsius"))
    'celsius converted to K'
    """
    unit = _CANONICAL.get(" ".join(given.split()).lower(), given.strip())
    if unit not in _TO:
        return Conversion(given.strip(), unit)
    target, factor, offset = _TO[unit]
    return Conversion(given.strip(), target, factor, offset)


def check_plausible(mean: float, converted: Conversion, standard_name: str) -> None:
    """Refuses values whose stated units cannot be true, e.g. 15 "K" or a sea-level pressure of 1013 "Pa".

    Raises:
        InputError: The mean is impossible in these units.
    """
    low, high = (
        (40_000.0, 120_000.0)
        if standard_name in _PRESSURES and converted.unit == "Pa"
        else _PLAUSIBLE.get(converted.unit, (-np.inf, np.inf))
    )
    if "anomaly" in standard_name or low <= mean <= high:
        return
    raise InputError(
        f"The units say {converted.given!r}, but the values average {mean:.4g} {converted.unit}, "
        "which no such field on Earth does.",
        "Correct the units attribute in the file (or, for anomalies, give a standard_name ending in _anomaly).",
    )


def check_markers(lowest: float, highest: float, converted: Conversion, standard_name: str) -> None:
    """Refuses a marker for missing values that the file doesn't declare: -9999 among temperatures, 1e20.

    Raises:
        InputError: A value is impossible in these units.
    """
    floor = -np.inf if "anomaly" in standard_name else _LOWEST.get(converted.unit, -np.inf)
    if floor <= lowest and max(-lowest, highest) < _UNDECLARED:
        return
    wrong = np.array([lowest if lowest < floor or -lowest >= _UNDECLARED else highest])
    raise InputError(
        f"It holds the value {float(converted.inverse(wrong)[0]):.5g} {converted.given}: a marker for missing "
        "values that the file does not declare?",
        "Set the variable's attribute _FillValue to it, e.g. with `ncatted`, or `cdo setmissval`.",
    )
