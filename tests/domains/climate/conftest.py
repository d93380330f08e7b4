"""Small NetCDF files as people have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pytest
import xarray

from domains.climate import domain
from domains.climate.config import ClimateConfig
from shared.config import build
from shared.contract import DataCard

Write = Callable[..., Path]


def years(first: int, count: int, calendar: str = "360_day") -> list[Any]:
    return [cftime.datetime(first + n, 7, 1, calendar=calendar) for n in range(count)]


def maps(
    values: np.ndarray | None = None,
    *,
    times: list[Any] | None = None,
    latitude: Any = None,
    longitude: Any = None,
    units: str | None = "K",
    name: str = "tas",
    seed: int = 0,
    **attributes: Any,
) -> xarray.Dataset:
    """A data set of 12 annual maps of 8 x 8 cells, unless told otherwise."""
    times = years(1990, 12) if times is None else times
    latitude = np.arange(40.0, 48.0) if latitude is None else np.asarray(latitude, float)
    longitude = np.arange(230.0, 238.0) if longitude is None else np.asarray(longitude, float)
    if values is None:
        shape = (len(times), len(latitude), len(longitude))
        values = 280.0 + np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    own = {"standard_name": "air_temperature"} | ({"units": units} if units else {})
    return xarray.Dataset(
        {name: (("time", "lat", "lon"), values, own)},
        coords={
            "time": ("time", times, {"standard_name": "time"}),
            "lat": ("lat", latitude, {"standard_name": "latitude", "units": "degrees_north"}),
            "lon": ("lon", longitude, {"standard_name": "longitude", "units": "degrees_east"}),
        },
        attrs=attributes,
    )


def save(dataset: xarray.Dataset, path: Path, *, engine: str = "h5netcdf", **encoding: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if "time" in dataset.coords:
        encoding.setdefault("time", {"units": "days since 1850-01-01"})
    dataset.to_netcdf(path, engine=engine, encoding=encoding)  # type: ignore[call-overload]
    return path


def settings(**base: Any) -> ClimateConfig:
    return build(ClimateConfig, base=base)


def ingested(source: Path | str, out: Path, **base: Any) -> tuple[DataCard, ClimateConfig]:
    config = settings(source=str(source), **base)
    out.mkdir(parents=True, exist_ok=True)
    return domain.ingest(config.source, config, out), config


@pytest.fixture(scope="session")
def iris(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ClimateConfig]:
    """The real A1B and E1 runs, prepared once."""
    out = tmp_path_factory.mktemp("iris")
    return out, ingested("iris", out)[1]
