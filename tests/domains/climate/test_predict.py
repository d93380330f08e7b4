"""New maps in, CF NetCDF out that reads back equal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pytest
import xarray

from domains.climate import domain
from domains.climate import grid as grids
from domains.climate.grid import Grid
from shared.contract import Published, Summary
from shared.errors import CasebookError, InputError

from .conftest import maps, save, settings, years

FINE = Grid(np.arange(40.0, 48.0), np.arange(230.0, 238.0), False)
COARSE = FINE.coarse(4)


def published(tmp_path: Path, *, synthetic: bool = False, **base: Any) -> Published:
    config = settings(**base)
    decision = {
        "task": config.task,
        "grid": FINE.to_dict(),
        "variable": "tas",
        "standard_name": "air_temperature",
        "unit": "K",
        "step": "1 year",
        "trained on": "a 1990 to 2001 (12)",
        "missing cells": [0],
        "lowest": 270.0,
        "highest": 290.0,
    }
    if config.task == "forecast":
        decision["climatology"] = np.full(FINE.shape, 280.0).tolist()
    return Published(tmp_path, decision, config.model_dump(), "climate v1 (champion)", synthetic)


@pytest.fixture(autouse=True)
def _predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of a trained network: each coarse value on all its cells; the last map of a history."""
    from shared.runs.predictor import Predictor

    def say(x: np.ndarray) -> np.ndarray:
        if x.ndim == 4:
            return x[:, -1].astype(np.float32)
        return np.kron(x, np.ones((1, 4, 4))).astype(np.float32)

    monkeypatch.setattr(Predictor, "load", classmethod(lambda cls, path, **how: say))


def coarse(values: np.ndarray | None = None, **changes: Any) -> xarray.Dataset:
    return maps(values, latitude=COARSE.latitude, longitude=COARSE.longitude, **changes)


def run(tmp_path: Path, source: Path, model: Published) -> tuple[Summary, xarray.Dataset]:
    summary = domain.predict(model, str(source), settings(source=str(source)), tmp_path / "out")
    coder = xarray.coders.CFDatetimeCoder(use_cftime=True)
    with xarray.open_dataset(
        summary.output, engine="h5netcdf", decode_times=coder, decode_timedelta=False
    ) as opened:
        return summary, opened.load()


def test_a_coarse_file_comes_out_fine(tmp_path: Path) -> None:
    given = coarse()
    summary, found = run(tmp_path, save(given, tmp_path / "in.nc"), published(tmp_path))
    assert summary.scored == 12
    assert "8 x 8 cells" in summary.headline
    assert np.array_equal(found["latitude"], FINE.latitude)
    assert found["tas"].attrs["units"] == "K"
    assert found["tas"].attrs["standard_name"] == "air_temperature"
    assert found.attrs["Conventions"] == "CF-1.8"
    assert "climate v1 (champion)" in found.attrs["source"]
    assert found["time"].encoding["units"] == "days since 1850-01-01"
    assert found["time"].encoding["calendar"] == "360_day"
    assert list(found["time"].values) == list(given["time"].values)
    assert np.array_equal(found["tas"][:, 5, 5], given["tas"][:, 1, 1])
    assert np.isnan(found["tas"][:, 0, 0]).all()


def test_orientation_convention_and_units_of_the_input_do_not_matter(tmp_path: Path) -> None:
    plain = coarse()
    odd = coarse(plain["tas"].values - 273.15, units="degC").isel(lat=slice(None, None, -1))
    odd = odd.assign_coords(lon=("lon", plain["lon"].values - 360, plain["lon"].attrs))
    _, first = run(tmp_path, save(plain, tmp_path / "plain.nc"), published(tmp_path))
    _, second = run(tmp_path, save(odd, tmp_path / "odd.nc"), published(tmp_path))
    assert np.allclose(first["tas"], second["tas"], atol=1e-3, equal_nan=True)


def test_a_fine_file_is_averaged_first_and_a_larger_area_is_cut(tmp_path: Path) -> None:
    wide = maps(latitude=np.arange(38.0, 50.0), longitude=np.arange(225.0, 245.0))
    summary, found = run(tmp_path, save(wide, tmp_path / "wide.nc"), published(tmp_path))
    part = wide["tas"].values[:, 2:10, 5:13]
    assert np.allclose(found["tas"][:, 7, 7], grids.coarsen(part, FINE, 4)[:, 1, 1])
    assert "the input was fine already" in summary.facts["input"]


def test_chunks_and_packing_of_the_input_do_not_travel(tmp_path: Path) -> None:
    stored = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
    given = coarse().isel(time=slice(0, 5))
    path = save(given, tmp_path / "in.nc", tas={**stored, "chunksizes": (5, 2, 1)})
    _, found = run(tmp_path, path, published(tmp_path))
    assert found["tas"].encoding["dtype"] == np.float32
    assert "scale_factor" not in found["tas"].encoding
    assert np.allclose(found["tas"][:, 5, 5], given["tas"][:, 1, 1], atol=0.006)


def test_a_bad_file_is_set_aside_and_the_rest_is_scored(tmp_path: Path) -> None:
    save(coarse(), tmp_path / "in" / "a.nc")
    save(coarse(seed=1), tmp_path / "in" / "b.nc")
    save(maps(latitude=np.arange(10.0, 18.0)), tmp_path / "in" / "elsewhere.nc")
    (tmp_path / "in" / "text.nc").write_text("no map")
    summary, _ = run(tmp_path, tmp_path / "in", published(tmp_path, synthetic=True))
    assert summary.scored == 24
    assert [one.item for one in summary.quarantine] == ["elsewhere.nc", "text.nc"]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.nc")) == ["a-fine.nc", "b-fine.nc"]


def test_a_map_without_values_is_counted(tmp_path: Path) -> None:
    given = coarse()
    given["tas"][3] = np.nan
    save(given, tmp_path / "in" / "a.nc")
    summary, _ = run(tmp_path, tmp_path / "in", published(tmp_path))
    assert summary.scored == 11
    (one,) = summary.quarantine
    assert one.item == f"a.nc/{given['time'].values[3].isoformat()[:10]}"


def test_a_synthetic_models_output_says_so(tmp_path: Path) -> None:
    _, found = run(tmp_path, save(coarse(), tmp_path / "in.nc"), published(tmp_path, synthetic=True))
    assert "SYNTHETIC" in found.attrs["comment"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"units": "Pa"}, "trained on tas in K"),
        ({"latitude": [10.0, 14.0]}, "neither the coarse cells"),
    ],
)
def test_what_the_model_was_not_made_for_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    dataset = maps(**{"latitude": COARSE.latitude, "longitude": COARSE.longitude, **changes})
    with pytest.raises(InputError, match=message):
        run(tmp_path, save(dataset, tmp_path / "in.nc"), published(tmp_path))


def test_values_beyond_training_are_told(tmp_path: Path) -> None:
    hot = coarse()
    hot["tas"][0] += 30
    summary, _ = run(tmp_path, save(hot, tmp_path / "in.nc"), published(tmp_path))
    assert summary.facts["tas outside the training range"].startswith("8.33%")


def test_a_forecast_carries_its_times_with_units(tmp_path: Path) -> None:
    given = maps(times=years(1985, 12))
    model = published(tmp_path, task="forecast")
    summary, found = run(tmp_path, save(given, tmp_path / "past.nc"), model)
    assert summary.scored == 1
    assert found["time"].values[0] == cftime.Datetime360Day(1997, 7, 1)
    assert found["forecast_reference_time"].values == cftime.Datetime360Day(1996, 7, 1)
    assert float(found["forecast_period"]) == 360.0
    assert found["forecast_period"].attrs["units"] == "days"
    expected = given["tas"].values[-1]
    assert np.array_equal(found["tas"][0, 1:], expected[1:])
    assert np.allclose(found["tas_anomaly"][0, 1:], expected[1:] - 280, atol=1e-4)
    assert re.search(r", [+-]\d+\.\d\d from the training years' climatology", summary.headline)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (
            [*years(1985, 6), *years(1992, 6)],
            "without a gap; it has 12 maps, missing 1 between 1990 and 1992",
        ),
        (years(1985, 7), "without a gap; it has 7 maps"),
        ([cftime.datetime(2000, m, 1, calendar="360_day") for m in range(1, 13)], "takes maps every 1 year"),
    ],
)
def test_a_forecast_needs_its_history(tmp_path: Path, times: list[Any], message: str) -> None:
    model = published(tmp_path, task="forecast")
    with pytest.raises(InputError, match=message):
        run(tmp_path, save(maps(times=times), tmp_path / "past.nc"), model)


def test_a_file_that_reads_back_otherwise_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from domains.climate import output

    # An encoding that loses half a day, as appending in other units does.
    monkeypatch.setattr(
        output, "_moment", lambda calendar: {"units": output.EPOCH, "calendar": calendar, "dtype": "int32"}
    )
    noon = [cftime.datetime(1990 + n, 7, 1, 12, calendar="360_day") for n in range(3)]
    with pytest.raises((CasebookError, Warning, ValueError)):
        run(tmp_path, save(coarse(times=noon), tmp_path / "in.nc"), published(tmp_path))
    assert not list((tmp_path / "out").glob("*.nc"))
