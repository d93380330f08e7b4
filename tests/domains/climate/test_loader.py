"""Files read by what is in them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import cftime
import iris_sample_data
import numpy as np
import pytest
import xarray

from domains.climate import loader
from domains.climate.data import Prepared
from shared.errors import InputError

from .conftest import ingested, maps, save, years

IRIS = Path(iris_sample_data.path)


def test_names_do_not_matter_standard_names_do(tmp_path: Path) -> None:
    odd = maps().rename({"lat": "breite", "lon": "laenge", "time": "zeit"})
    path = tmp_path / "odd.nc"
    odd.to_netcdf(path, engine="h5netcdf")
    assert np.array_equal(loader.read(path).values, maps()["tas"].values)


def test_descending_latitude_and_west_longitude_read_the_same(tmp_path: Path) -> None:
    dataset = maps()
    other = dataset.isel(lat=slice(None, None, -1)).assign_coords(lon=dataset["lon"] - 360)
    other["lon"].attrs = dataset["lon"].attrs
    first, second = (loader.read(save(d, tmp_path / f"{n}.nc")) for n, d in enumerate((dataset, other)))
    assert np.array_equal(first.values, second.values)
    assert first.grid.like(second.grid)


def test_celsius_is_converted_and_stated(tmp_path: Path) -> None:
    series = loader.read(save(maps(maps()["tas"].values - 273.15, units="degC"), tmp_path / "c.nc"))
    assert str(series.converted) == "degC converted to K"
    assert np.allclose(series.values, maps()["tas"].values, atol=1e-4)


def test_missing_units_are_asked_for(tmp_path: Path) -> None:
    path = save(maps(units=None), tmp_path / "none.nc")
    with pytest.raises(InputError, match="states no units"):
        loader.read(path)
    assert loader.read(path, unit="K").converted.unit == "K"


def test_packed_integers_are_float32_in_memory(tmp_path: Path) -> None:
    path = save(
        maps(),
        tmp_path / "packed.nc",
        tas={"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768},
    )
    series = loader.read(path)
    assert series.values.dtype == np.float32
    assert np.allclose(series.values, maps()["tas"].values, atol=0.006)


@pytest.mark.parametrize("engine", ["h5netcdf", "scipy"])
def test_formats_are_told_by_content_and_netcdf4_is_never_asked(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(maps(), tmp_path / "maps.dat.nc", engine=engine)
    asked = []
    true = xarray.open_dataset

    def spy(*arguments: Any, **options: Any) -> xarray.Dataset:
        asked.append(options["engine"])
        return true(*arguments, **options)

    monkeypatch.setattr(xarray, "open_dataset", spy)
    assert loader.read(path).values.shape == (12, 8, 8)
    assert asked == [engine]


def test_zarr_reads_like_netcdf(tmp_path: Path) -> None:
    store = tmp_path / "maps.zarr"
    maps().chunk(time=5).to_zarr(store, zarr_format=2, consolidated=True)
    assert loader.find(tmp_path) == [store]
    assert np.array_equal(loader.read(store).values, maps()["tas"].values)


def test_files_are_read_in_threads(tmp_path: Path) -> None:
    paths = [
        save(maps(seed=n), tmp_path / f"{n}.nc", engine=e) for n, e in enumerate(["h5netcdf", "scipy"] * 3)
    ]
    found: dict[Path, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda p=path: found.update({p: loader.read(p).values})) for path in paths
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[path], maps(seed=n)["tas"].values) for n, path in enumerate(paths))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("rotated_pole.nc", "rotated"),
        ("orca2_votemper.nc", "curvilinear"),
        ("toa_brightness_stereographic.nc", "stereographic"),
        ("SOI_Darwin.nc", "0 gridded variables"),
        ("NAME_output.txt", "neither NetCDF nor Zarr"),
    ],
)
def test_other_grids_are_refused_by_their_kind(file: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        loader.read(IRIS / file)
    if "not regular" in str(caught.value) or "curvilinear" in str(caught.value):
        assert "Regrid" in caught.value.remedy


def test_a_real_global_sea_surface_file_is_periodic_and_has_land() -> None:
    series = loader.read(IRIS / "ostia_monthly.nc")
    assert series.grid.periodic
    assert 0.2 < np.isnan(series.values).mean() < 0.3


def test_one_variable_among_several_is_asked_for(tmp_path: Path) -> None:
    two = maps()
    two["pr"] = two["tas"] * 0 + 1
    two["pr"].attrs = {"units": "mm/day", "standard_name": "precipitation_flux"}
    path = save(two, tmp_path / "two.nc")
    with pytest.raises(InputError, match="2 gridded variables: tas, pr"):
        loader.read(path)
    assert loader.read(path, variable="precipitation_flux").variable == "pr"
    with pytest.raises(InputError, match="no variable 'psl'"):
        loader.read(path, variable="psl")


def test_a_further_dimension_is_named(tmp_path: Path) -> None:
    deep = maps().expand_dims(level=[1000.0, 850.0], axis=1)
    with pytest.raises(InputError, match=r"also runs along level \(2\)"):
        loader.read(save(deep, tmp_path / "deep.nc"))


def test_calendars_are_converted_when_asked(tmp_path: Path) -> None:
    path = save(maps(times=years(1990, 12, "noleap")), tmp_path / "noleap.nc")
    series = loader.read(path, calendar="360_day")
    assert series.calendar == "360_day"
    assert [time.year for time in series.times] == list(range(1990, 2002))
    assert np.array_equal(series.values, maps()["tas"].values)


def test_a_float32_mean_would_be_wrong_and_ours_is_not(tmp_path: Path) -> None:
    # A float32 sum along time of many temperatures drifts (by 18 K in numpy#29772).
    from domains.climate.baselines import mean_of

    values = np.full((800_000, 1, 2), 288.15, np.float32)
    assert abs(float(np.add.reduce(values, axis=0, dtype=np.float32)[0, 0]) / len(values) - 288.15) > 0.1
    assert mean_of(values) == pytest.approx(288.15, abs=1e-4)


def test_a_stale_chunk_encoding_does_not_travel(tmp_path: Path) -> None:
    path = save(maps(), tmp_path / "chunked.nc", tas={"chunksizes": (7, 8, 8)})
    _, config = ingested(path, tmp_path / "prepared", longitude=(231.0, 236.0))
    data = Prepared.load(tmp_path / "prepared")
    assert data.fields.shape == (12, 8, 6)
    assert config.longitude == (231.0, 236.0)


def test_files_of_one_moment_become_a_series(tmp_path: Path) -> None:
    whole = maps()
    for n in range(4):
        save(whole.isel(time=n), tmp_path / "run" / "a" / f"{n}.nc")
    ingested(tmp_path / "run", tmp_path / "prepared")
    data = Prepared.load(tmp_path / "prepared")
    assert np.array_equal(data.fields, whole["tas"].values[:4])
    assert data.labels().tolist() == ["a/1990", "a/1991", "a/1992", "a/1993"]


def test_undecodable_time_says_so(tmp_path: Path) -> None:
    bad = maps().assign_coords(
        time=("time", np.arange(12.0), {"standard_name": "time", "units": "fortnights"})
    )
    bad.to_netcdf(tmp_path / "bad.nc", engine="h5netcdf")
    with pytest.raises(InputError, match="time"):
        loader.read(tmp_path / "bad.nc")


def test_a_moment_is_a_cftime_of_its_calendar(tmp_path: Path) -> None:
    series = loader.read(save(maps(), tmp_path / "maps.nc"))
    assert series.times[0] == cftime.Datetime360Day(1990, 7, 1)
