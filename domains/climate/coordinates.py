"""Which variable, and which of its coordinates are latitude, longitude and time.

Found by standard_name, axis and units (cf-xarray); by usual names only where a file has no
attributes at all. Grids that are not regular are refused by what they are, with the way out.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from shared.errors import InputError

REGRID = (
    "Regrid it to regular latitudes and longitudes first, e.g. `cdo remapbil,r360x180 in.nc out.nc`, "
    "or with xESMF."
)


def choose(dataset: Any, wanted: str) -> str:
    gridded = [str(name) for name, array in dataset.data_vars.items() if array.ndim >= 2]
    if wanted:
        named = [n for n in gridded if n == wanted or dataset[n].attrs.get("standard_name") == wanted]
        if not named:
            raise InputError(
                f"It has no variable {wanted!r}.", f"Gridded variables: {', '.join(gridded) or 'none'}."
            )
        return named[0]
    bounds = {str(dataset[name].attrs.get("bounds", "")) for name in dataset.variables}
    bounds |= {str(dataset[name].encoding.get("bounds", "")) for name in dataset.variables}
    candidates = [n for n in gridded if n not in bounds and not n.endswith(("_bnds", "_bounds"))]
    if len(candidates) != 1:
        raise InputError(
            f"It has {len(candidates)} gridded variables: {', '.join(candidates) or 'none'}.",
            "Name one with --variable." if candidates else "A map needs latitude and longitude.",
        )
    return candidates[0]


def horizontal(dataset: Any, name: str) -> tuple[Hashable, Hashable]:
    """Names of the 1-D latitude and longitude of a variable; other grids are refused by kind."""
    array = dataset[name]
    mapping = dataset.get(str(array.attrs.get("grid_mapping") or array.encoding.get("grid_mapping") or ""))
    kind = str(mapping.attrs.get("grid_mapping_name", "")) if mapping is not None else ""
    if kind and kind != "latitude_longitude":
        raise InputError(f"The grid of {name} is {kind.replace('_', ' ')}, not regular.", REGRID)
    found = []
    for quantity in ("latitude", "longitude"):
        names = [n for n in array.cf.coordinates.get(quantity, []) if n in array.coords]
        names = names or [n for n in _guessed(array, quantity) if n in array.coords]
        flat = [n for n in names if array[n].ndim == 1]
        if names and not flat:
            size = " x ".join(str(length) for length in array[names[0]].shape)
            raise InputError(
                f"The grid of {name} is curvilinear: its {quantity} ({names[0]}) has {array[names[0]].ndim} "
                f"dimensions ({size})."
                if array[names[0]].ndim
                else f"The {quantity} of {name} is one number.",
                REGRID if array[names[0]].ndim else "A map needs several latitudes and longitudes.",
            )
        if not flat:
            other = [
                str(n) for n, c in array.coords.items() if "grid_l" in str(c.attrs.get("standard_name", ""))
            ]
            raise InputError(
                f"{name} has no {quantity}"
                + (f"; its grid is rotated ({', '.join(other)})." if other else ".")
                + f" Its coordinates: {', '.join(str(n) for n in array.coords) or 'none'}.",
                REGRID if other else f"Set standard_name = {quantity!r} on that coordinate.",
            )
        found.append(flat[0])
    return found[0], found[1]


def _guessed(array: Any, quantity: str) -> list[Hashable]:
    """Coordinates without any attributes are known by their usual names."""
    return list(array.cf.guess_coord_axis().cf.coordinates.get(quantity, []))


def with_time(dataset: Any, name: str, lat: Hashable, lon: Hashable) -> tuple[Any, Hashable]:
    array = dataset[name]
    times = [
        n
        for n in array.cf.coordinates.get("time", [])
        if n in array.coords and n != "forecast_reference_time"
    ]
    times = times or [n for n in array.cf.axes.get("T", []) if n in array.coords]
    times = [n for n in times if array[n].dims in ((), (n,))]
    if not times:
        raise InputError(
            f"{name} has no time coordinate.",
            'Give it one with standard_name = "time" and units such as "days since 1850-01-01".',
        )
    time = next((n for n in times if array[n].dims == (n,)), times[0])
    if array[time].ndim == 0:
        array = array.expand_dims(time)
    if array[time].dtype.kind != "O":
        raise InputError(
            f"The time of {name} could not be decoded: units {array[time].attrs.get('units', 'none')!r}.",
            'Use units such as "days since 1850-01-01" and a CF calendar.',
        )
    others = [d for d in array.dims if d not in (time, lat, lon)]
    long = {str(d): array.sizes[d] for d in others if array.sizes[d] > 1}
    if long:
        raise InputError(
            f"{name} also runs along {', '.join(f'{d} ({n})' for d, n in long.items())}.",
            f"Pick one, e.g. `xarray.open_dataset(...).isel({next(iter(long))}=0).to_netcdf(...)`.",
        )
    return array.squeeze(others), time
