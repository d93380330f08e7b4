"""One NetCDF or Zarr into maps on a canonical grid, or a sentence that says why not.

Coordinates are found by what they are (standard_name, axis, units; cf-xarray), not by
what they are called. Formats are told by their first bytes. HDF5 is read by h5netcdf and the
classic format by scipy: netCDF4's library crashes a process that reads in threads
(xarray#4100), so it is never asked for, whatever is installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domains.climate import coordinates, units
from domains.climate import grid as grids
from domains.climate.grid import Grid
from shared.errors import InputError

SUFFIXES = (".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".zarr")
_READ_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class Series:
    """One file's maps in canonical orientation and units.

    Attributes:
        values: float32 ``[time, lat, lon]``; NaN where missing.
        times: cftime moments ``[time]``, ascending.
        variable, standard_name, long_name: As the file says.
        converted: Which units were given, which the values have.
        scenario: The file's own word for the experiment (``experiment_id``, "Model scenario"), or "".
        synthetic: The file says that it was made up (a global attribute ``synthetic``).
    """

    values: np.ndarray
    grid: Grid
    times: list[Any]
    calendar: str
    variable: str
    standard_name: str
    long_name: str
    converted: units.Conversion
    scenario: str
    synthetic: bool


def is_dataset(path: Path) -> bool:
    """Whether a path looks like a NetCDF file or a Zarr store, by name or by content."""
    if path.is_dir():
        return any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zmetadata"))
    return path.suffix.lower() in SUFFIXES


def find(source: Path) -> list[Path]:
    """The files and stores under ``source``, sorted; a file or store stands for itself.

    Raises:
        InputError: Nothing there.
    """
    if not source.exists():
        raise InputError(f"There is no file or folder {source}.", "Check --source.")
    if source.is_file() or is_dataset(source):
        return [source]
    found: list[Path] = []
    for path in sorted(source.iterdir()):
        if path.name.startswith("."):
            continue
        if is_dataset(path):
            found.append(path)
        elif path.is_dir():
            found += [below for below in sorted(path.iterdir()) if is_dataset(below)]
    if not found:
        raise InputError(
            f"The folder {source} holds no NetCDF file or Zarr store.",
            f"Put files there that end in {', '.join(SUFFIXES)}: in the folder or one level below.",
        )
    return found


def read(
    path: Path,
    *,
    variable: str = "",
    unit: str = "",
    calendar: str = "",
    latitude: tuple[float, float] | None = None,
    longitude: tuple[float, float] | None = None,
) -> Series:
    """Reads one file or store.

    Args:
        variable: Name or standard_name; empty: the only one on a latitude-longitude grid.
        unit: Taken where the file states none.
        calendar: Converted to it where the file has another.
        latitude, longitude: Region, see :func:`domains.climate.grid.region`.

    Raises:
        InputError: The file can't be read or used; the message names what is wrong, not the path.
    """
    with _opened(path) as dataset:
        name = coordinates.choose(dataset, variable)
        lat, lon = coordinates.horizontal(dataset, name)
        array, time = coordinates.with_time(dataset, name, lat, lon)
        if calendar and array[time].dt.calendar != calendar:
            array = _to_calendar(array, time, calendar)
        given = str(array.attrs.get("units", "")) or unit
        if not given:
            raise InputError(
                f"The variable {name} states no units.", "Set its `units` attribute, or give --units."
            )
        converted = units.conversion(given)
        array = array.transpose(time, lat, lon)
        return series(
            _float32(array),
            dataset[lat].values,
            dataset[lon].values,
            list(array[time].values),
            calendar=str(array[time].dt.calendar),
            converted=converted,
            variable=name,
            attributes={**dataset.attrs, **array.attrs},
            region=(latitude, longitude),
        )


def series(
    values: np.ndarray,
    latitude: np.ndarray,
    longitude: np.ndarray,
    times: list[Any],
    *,
    calendar: str,
    converted: units.Conversion,
    variable: str,
    attributes: Mapping[str, Any],
    region: tuple[tuple[float, float] | None, tuple[float, float] | None] = (None, None),
) -> Series:
    """Maps as they were given, in canonical orientation and units, by time; checked to be possible.

    Args:
        values: float32 ``[time, lat, lon]`` in the units that ``converted`` takes.
        times: cftime moments ``[time]``, in any order.
        attributes: ``standard_name``, ``long_name`` and the like, where they are known.
        region: Latitudes and longitudes to cut to, see :func:`domains.climate.grid.region`.

    Raises:
        InputError: The grid or the values cannot be.
    """
    values, where = grids.canonical(values, latitude, longitude)
    values, where = grids.region(values, where, *region)
    values = converted(values)
    _check(values, converted, str(attributes.get("standard_name", "")))
    order = np.argsort(np.array(times), kind="stable")
    return Series(
        values=values[order],
        grid=where,
        times=[times[position] for position in order],
        calendar=calendar,
        variable=variable,
        standard_name=str(attributes.get("standard_name", "")),
        long_name=str(attributes.get("long_name", "")),
        converted=converted,
        scenario=str(attributes.get("experiment_id", "") or attributes.get("Model scenario", "")),
        synthetic=str(attributes.get("synthetic", "")).lower() in ("true", "1", "yes"),
    )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import cf_xarray  # noqa: F401  (registers the .cf accessor)
    import xarray

    options: dict[str, Any] = {
        "engine": _engine(path),
        "decode_times": xarray.coders.CFDatetimeCoder(use_cftime=True),
        "decode_timedelta": False,
        "cache": False,
    }
    try:
        with warnings.catch_warnings():
            # A store without consolidated metadata is no error of the person's.
            warnings.simplefilter("ignore")
            dataset = xarray.open_dataset(path, **options)
    except InputError:
        raise
    except Exception as error:
        # Many kinds, from four libraries; the person needs the reason, not the kind.
        raise InputError(f"It cannot be read: {_first_line(error)}.") from error
    try:
        yield dataset
    except (OSError, RuntimeError, KeyError, EOFError) as error:
        raise InputError(f"Its data cannot be read: {_first_line(error)}.") from error
    finally:
        dataset.close()


def _engine(path: Path) -> str:
    if path.is_dir():
        return "zarr"
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise InputError(f"It cannot be read: {error.strerror}.") from error
    if start == b"\x89HDF\r\n\x1a\n":
        return "h5netcdf"
    if start[:4] in (b"CDF\x01", b"CDF\x02"):
        return "scipy"
    if start[:4] == b"CDF\x05":
        raise InputError(
            "It is in the 64-bit data format CDF-5.", "Convert it: `nccopy -k nc4 in.nc out.nc`."
        )
    raise InputError("It is neither NetCDF nor Zarr." if start else "It is empty.")


def _to_calendar(array: Any, time: Hashable, calendar: str) -> Any:
    """The other calendar; where one has 360 days, days are moved by their share of the year."""
    by_year = "360_day" in (calendar, array[time].dt.calendar)
    monthly = len(array[time]) < 2 or (array[time].values[1] - array[time].values[0]).days >= 28
    # Months and years keep their date, which exists in both calendars or is moved by a day.
    align = "year" if by_year and not monthly else "date"
    return array.convert_calendar(
        calendar, dim=str(time), use_cftime=True, align_on=align if by_year else None
    )


def _float32(array: Any) -> np.ndarray:
    """Values block by block: packed int16 decodes to float64 (xarray#9041), four times its size."""
    rows = max(1, _READ_BYTES // max(8 * int(np.prod(array.shape[1:])), 1))
    values = np.empty(array.shape, np.float32)
    for start in range(0, len(values), rows):
        values[start : start + rows] = array[start : start + rows].values
    return values


def _check(values: np.ndarray, converted: units.Conversion, standard_name: str) -> None:
    if values.size == 0:
        raise InputError("It has no moments.")
    known = np.isfinite(values)
    if not known.any():
        raise InputError("All its values are missing.")
    if np.isinf(values).any():
        raise InputError("It has infinite values.")
    lowest, highest = float(np.nanmin(values)), float(np.nanmax(values))
    units.check_markers(lowest, highest, converted, standard_name)
    # float64: a float32 mean along time is off by kelvins (numpy#29772).
    units.check_plausible(float(values.mean(dtype=np.float64, where=known)), converted, standard_name)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
