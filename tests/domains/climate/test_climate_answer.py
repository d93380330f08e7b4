"""A map in a line: the answer of a file, whatever its orientation, units and calendar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

from domains.climate import domain
from domains.climate import grid as grids
from domains.climate.grid import Grid
from shared.errors import InputError

from .conftest import maps, save, settings, years
from .test_predict import COARSE, FINE, coarse, published


@pytest.fixture(autouse=True)
def _predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of a trained network: each coarse value on all its cells; the last map of a history."""
    from shared.runs.predictor import Predictor

    def say(x: np.ndarray) -> np.ndarray:
        if x.ndim == 4:
            return x[:, -1].astype(np.float32)
        return np.kron(x, np.ones((1, 4, 4))).astype(np.float32)

    monkeypatch.setattr(Predictor, "load", classmethod(lambda cls, path, **how: say))


def line_of(dataset: xarray.Dataset, at: Any, **more: Any) -> dict[str, Any]:
    array = dataset["tas"]
    return {
        "values": array.values[at].tolist(),
        "latitude": dataset["lat"].values.tolist(),
        "longitude": dataset["lon"].values.tolist(),
        "units": array.attrs["units"],
        **more,
    }


def answer(tmp_path: Path, line: dict[str, Any], *, base: dict[str, Any] | None = None, **task: Any) -> Any:
    return domain.answerer(published(tmp_path, **task), settings(**(base or {}))).answer(line)


def written(tmp_path: Path, dataset: xarray.Dataset, **task: Any) -> xarray.Dataset:
    source = save(dataset, tmp_path / "in.nc")
    summary = domain.predict(published(tmp_path, **task), str(source), settings(), tmp_path / "out")
    with xarray.open_dataset(summary.output, engine="h5netcdf", decode_times=False) as opened:
        return opened.load()


def test_a_map_is_answered_as_in_a_file(tmp_path: Path) -> None:
    given = coarse()
    found = written(tmp_path, given)
    said = answer(tmp_path, line_of(given, 3))
    np.testing.assert_array_equal(np.array(said["values"]), found["tas"].values[3])
    assert said["latitude"] == FINE.latitude.tolist()
    assert said["longitude"] == FINE.longitude.tolist()
    assert (said["variable"], said["unit"], said["notes"]) == ("tas", "K", [])
    assert "time" not in said
    timed = answer(tmp_path, line_of(given, 3, times=["1993-07-01"], calendar="360_day"))
    assert timed["time"] == "1993-07-01T00:00:00"


def test_orientation_convention_and_units_do_not_matter(tmp_path: Path) -> None:
    given = coarse()
    plain = answer(tmp_path, line_of(given, 0))
    odd = line_of(given.isel(lat=slice(None, None, -1)), 0, units="degC")
    odd["values"] = (np.array(odd["values"]) - 273.15).tolist()
    odd["longitude"] = (np.array(odd["longitude"]) - 360).tolist()
    np.testing.assert_allclose(
        np.array(answer(tmp_path, odd)["values"]), np.array(plain["values"]), atol=1e-3
    )
    with_unit = {key: value for key, value in line_of(given, 0).items() if key != "units"}
    np.testing.assert_equal(answer(tmp_path, with_unit, base={"units": "K"}), plain)


def test_missing_cells_are_null_in_and_none_out(tmp_path: Path) -> None:
    given = line_of(coarse(), 0)
    given["values"][1][1] = None
    said = np.array(answer(tmp_path, given)["values"], float)
    assert np.isnan(said[4:, 4:]).all()
    assert np.isnan(said[0, 0]), "where training never had a value"
    assert np.isfinite(said[0, 1])


def test_one_place_is_the_cell_around_it(tmp_path: Path) -> None:
    given = line_of(coarse(), 0)
    whole = answer(tmp_path, given)
    for longitude in (234.3, 234.3 - 360):
        said = answer(tmp_path, {**given, "at": [45.4, longitude]})
        assert (said["latitude"], said["longitude"]) == (45.0, 234.0)
        assert said["value"] == whole["values"][5][4]
        assert "values" not in said
    for wrong in ([30.0, 234.0], [45.0, 10.0], [45.0], "here", [None, 1]):
        with pytest.raises(InputError) as caught:
            answer(tmp_path, {**given, "at": wrong})
        assert caught.value.remedy


def test_nearest_goes_round_the_globe() -> None:
    grid = Grid(np.array([-45.0, 45.0]), np.arange(0.0, 360.0, 90.0), True)
    assert grids.nearest(grid, 44.0, -10.0) == (1, 0)
    assert grids.nearest(grid, -80.0, 271.0) == (0, 3)
    assert grids.nearest(grid, 44.0, float("nan")) is None


def test_values_beyond_training_are_told(tmp_path: Path) -> None:
    hot = line_of(coarse(coarse()["tas"].values + 30), 0)
    assert answer(tmp_path, hot)["notes"] == ["tas outside the training range: 100.00% of the input cells"]


def test_a_forecast_is_answered_as_in_a_file(tmp_path: Path) -> None:
    given = maps(times=years(1985, 12))
    found = written(tmp_path, given, task="forecast")
    moments = [f"{1985 + number}-07-01" for number in range(12)]
    line = line_of(given, slice(None), times=moments, calendar="360_day")
    said = answer(tmp_path, line, task="forecast")
    np.testing.assert_array_equal(np.array(said["values"], float), found["tas"].values[0])
    assert said["time"] == "1997-07-01T00:00:00"
    mixed = {**line, "values": line["values"][::-1], "times": moments[::-1]}
    np.testing.assert_equal(answer(tmp_path, mixed, task="forecast"), said)
    for times, message in (
        (moments[:-1], "one for each of its 12 maps"),
        (None, "one for each"),
        ([*moments[:-1], "1996-02-31"], "no moment of the calendar 360_day"),
        ([*moments[:-1], "next year"], "no moment"),
        ([*moments[:-1], "1999-07-01"], "without a gap"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            answer(tmp_path, {**line, "times": times}, task="forecast")
        assert caught.value.remedy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": None}, '"values" as an even list of numbers; received nothing'),
        ({"values": "280"}, "text, an uneven list"),
        ({"values": [[1.0], [1.0, 2.0]]}, "an uneven list"),
        ({"values": [["a", "b"], ["c", "d"]]}, "text"),
        ({"values": [[280.0, 281.0, 282.0]]}, r"values are \[1, 1, 3\], latitude \[2\], longitude \[2\]"),
        ({"latitude": None}, '"latitude" as an even list'),
        ({"latitude": [41.5, 41.5]}, "same value twice"),
        ({"latitude": [11.5, 15.5]}, "neither the coarse cells"),
        ({"units": None}, 'states its "units"'),
        ({"units": "Pa"}, "trained on tas in K"),
        ({"standard_name": "air_pressure"}, "trained on air_temperature"),
        ({"values": [[None, None], [None, None]]}, "All its values are missing"),
        ({"values": [[-9999.0, 280.0], [280.0, 280.0]]}, "marker for missing"),
        ({"values": [[[280.0, 281.0], [279.0, 280.0]]] * 2}, "one map; received 2"),
    ],
)
def test_what_cannot_be_answered_is_told(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert COARSE.shape == (2, 2)
    with pytest.raises(InputError, match=message):
        answer(tmp_path, {**line_of(coarse(), 0), **changes})
