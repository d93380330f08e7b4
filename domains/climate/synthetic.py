"""Two synthetic scenarios, as NetCDF files a person could have, with a planted relation.

``high.nc`` and ``low.nc`` hold 100 annual maps each, 1900-1999, identical until 1949, as
real scenario runs share their history. A fine map is

    climatology + interpolated coarse anomaly, made to conserve block means + detail + noise

The detail of a block of cells is ``pattern(cell) * (a² - mean of a²) + other pattern(cell) * a * b``
with ``a`` the block's own anomaly and ``b`` its eastern neighbour's (both standardised): local and
even, so that no linear model finds it and a convolution does. The patterns differ from place to
place, and average to nothing over each block: the coarse map doesn't show them.

With ``strength`` 0 the detail is noise of the same variance: nothing can be learned, and the
best possible error is that of interpolation. With 1 the error cannot fall below the noise
floor, which is written into the files as an attribute.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from domains.climate import grid as grids
from domains.climate.grid import Grid
from shared import files

FACTOR = 4
NOISE = 0.08
"""Standard deviation of the noise in K, before its block means are removed."""

DETAIL = 0.5
"""Standard deviation of the planted detail in K, before its block means are removed."""


def write(
    out: Path,
    *,
    seed: int,
    strength: float = 1.0,
    years: int = 100,
    shape: tuple[int, int] = (24, 32),
) -> None:
    """Writes ``high.nc`` and ``low.nc`` under ``out``.

    Args:
        strength: Share of the detail's variance that the coarse map determines, 0..1.
        years: Annual maps per scenario; the first half is the same in both.
        shape: Fine cells, multiples of 4.
    """
    rng = np.random.default_rng([seed, 2])
    fine = Grid(
        np.linspace(30.5, 30.5 + 1.0 * (shape[0] - 1), shape[0]), 230.75 + 1.5 * np.arange(shape[1]), False
    )
    climatology = _climatology(fine, rng)
    patterns = rng.normal(size=(2, *shape))
    patterns = np.stack([_without_block_means(pattern, fine) for pattern in patterns])
    half = years // 2
    ramp = np.clip(np.arange(years) - half, 0, None) / max(1, years - half)
    weather = {"high": _weather(rng, years, fine)}
    weather["low"] = weather["high"].copy()
    weather["low"][half:] = _weather(rng, years, fine)[half:]
    noise: dict[str, np.ndarray] = {}
    for name, warming in (("high", 1.5), ("low", 0.75)):
        coarse = weather[name] + (warming * ramp)[:, None, None]
        draws = rng.normal(size=(2, years, *shape))
        noise[name] = draws
        if name == "low":
            draws[:, :half] = noise["high"][:, :half]
        maps = climatology + _fine(coarse, fine, patterns, draws, strength, half)
        _save(out / f"{name}.nc", maps, fine, name, strength)


def write_sample(out: Path) -> None:
    """Writes the sample in ``data/samples/climate``: as :func:`write`, with 60 years."""
    write(out, seed=0, years=60)


def noise_floor() -> float:
    """RMSE in K that no model can beat at full strength: the noise without its block means."""
    return float(NOISE * np.sqrt(1 - 1 / FACTOR**2))


def _weather(rng: np.random.Generator, years: int, fine: Grid) -> np.ndarray:
    """Smooth coarse anomalies of about 1 K, with some memory from year to year, ``[years, h, w]``."""
    coarse = fine.coarse(FACTOR)
    h, w = coarse.shape
    y, x = np.meshgrid(np.linspace(0, 1, h), np.linspace(0, 1, w), indexing="ij")
    waves = []
    for across in range(3):
        for along in range(3):
            waves.append(np.cos(np.pi * across * y) * np.cos(np.pi * along * x) / (1 + across + along))
    amounts = rng.normal(size=(years, len(waves)))
    for year in range(1, years):
        amounts[year] = 0.4 * amounts[year - 1] + np.sqrt(1 - 0.4**2) * amounts[year]
    return np.einsum("tk,kij->tij", amounts, np.stack(waves)) + 0.3 * rng.normal(size=(years, h, w))


def _fine(
    coarse: np.ndarray, fine: Grid, patterns: np.ndarray, draws: np.ndarray, strength: float, half: int
) -> np.ndarray:
    """Constants are taken of the shared half, so that it is the same in both scenarios to the bit."""
    smooth = grids.interpolate(coarse, fine.coarse(FACTOR), fine)
    off = coarse - grids.coarsen(smooth, fine, FACTOR)
    a = coarse / coarse[:half].std()
    b = np.concatenate([a[:, :, 1:], a[:, :, -1:]], axis=2)

    def spread(blocks: np.ndarray) -> np.ndarray:
        return np.kron(blocks, np.ones((FACTOR, FACTOR)))

    squares, products = (part - part[:half].mean() for part in (a**2, a * b))
    planted = patterns[0] * spread(squares) + patterns[1] * spread(products)
    planted *= DETAIL / planted[:half].std()
    random = _without_block_means(draws[0], fine)
    random *= DETAIL / random[:half].std()
    detail = np.sqrt(strength) * planted + np.sqrt(1 - strength) * random
    return smooth + spread(off) + detail + NOISE * _without_block_means(draws[1], fine)


def _without_block_means(values: np.ndarray, fine: Grid) -> np.ndarray:
    return values - np.kron(grids.coarsen(values, fine, FACTOR), np.ones((FACTOR, FACTOR)))


def _climatology(fine: Grid, rng: np.random.Generator) -> np.ndarray:
    """Warm south, cold north, mountains."""
    mountains = sum(
        -6.0
        * np.exp(
            -(((fine.latitude[:, None] - rng.uniform(32, 52)) / 3) ** 2)
            - (((fine.longitude[None, :] - rng.uniform(235, 275)) / 4) ** 2)
        )
        for _ in range(5)
    )
    return 300.0 - 0.6 * (fine.latitude[:, None] - 30.0) + mountains


def _save(path: Path, maps: np.ndarray, fine: Grid, scenario: str, strength: float) -> None:
    import cftime
    import xarray

    times = [cftime.Datetime360Day(1900 + year, 7, 1) for year in range(len(maps))]
    attributes: dict[str, Any] = {
        "standard_name": "air_temperature",
        "units": "degC",
        "cell_methods": "time: mean",
    }
    array = xarray.DataArray(
        # North to south, as most archives are: reading must not depend on it.
        (maps[:, ::-1] - 273.15).astype(np.float32),
        dims=("time", "lat", "lon"),
        coords={
            "time": ("time", times, {"standard_name": "time", "axis": "T"}),
            "lat": ("lat", fine.latitude[::-1], {"standard_name": "latitude", "units": "degrees_north"}),
            "lon": ("lon", fine.longitude, {"standard_name": "longitude", "units": "degrees_east"}),
        },
        attrs=attributes,
        name="tas",
    )
    dataset = array.to_dataset()
    dataset.attrs = {
        "Conventions": "CF-1.8",
        "title": "Synthetic: made by casebook, not measured and not modelled",
        "synthetic": "true",
        "experiment_id": scenario,
        "planted_strength": float(strength),
        "noise_floor_K": noise_floor(),
    }
    # Packed as archives pack: the error of 0.001 K is far below the noise.
    encoding: dict[str, dict[str, Any]] = {
        "tas": {
            "dtype": "int16",
            "scale_factor": 0.002,
            "add_offset": 0.0,
            "_FillValue": -32768,
        },
        "time": {"units": "days since 1850-01-01", "calendar": "360_day"},
        "lat": {"_FillValue": None},
        "lon": {"_FillValue": None},
    }
    with files.atomic(path) as temporary:
        # The classic format, since HDF5 puts the hour of writing into each file: same seed, same bytes.
        dataset.to_netcdf(temporary, engine="scipy", encoding=encoding)
