"""Every registered domain of ours passes the suite that authors of other domains run.

And each gives a line the answer that it gives to a file, by the very model of the suite.
"""

from __future__ import annotations

import base64
import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared import worker
from shared.contract import find
from shared.testing import Conformance, Made

pytestmark = pytest.mark.slow


def both(
    domain: str, published: Any, config: Any, source: str, lines: list[Any], out: str
) -> tuple[Path, list[dict[str, Any]]]:
    """The file that predict writes of a source, and the answers to lines. Runs in a child."""
    body = find(domain)
    summary = body.predict(published, source, config, Path(out))
    answerer = body.answerer(published, config)
    return summary.output, [dict(answerer.answer(line)) for line in lines]


class TestXray(Conformance):
    domain = find("xray")

    def line(self, made: Made) -> Mapping[str, Any]:
        return {"path": str(min((made.raw).rglob("*.dcm")))}

    def test_a_line_is_answered_as_a_queue_is(self, made: Made, published: Any, tmp_path: Path) -> None:
        films = sorted(made.raw.rglob("*.dcm"))[:6]
        for number, film in enumerate(films):
            (tmp_path / f"Doe^Jane-{number}.dcm").write_bytes(film.read_bytes())
        films = sorted(tmp_path.glob("*.dcm"))
        lines: list[dict[str, Any]] = [{"path": str(film)} for film in films]
        lines += [{"film": base64.b64encode(film.read_bytes()).decode()} for film in films]
        output, said = worker.call(
            both, "xray", published, made.config, str(tmp_path), lines, str(tmp_path / "out"), timeout=300
        )
        with output.open(newline="") as file:
            rows = {row["key"].partition("/")[2]: row for row in csv.DictReader(file)}
        assert len(rows) == len(films)
        assert said[: len(films)] == said[len(films) :], "a path or the file itself"
        assert "Doe" not in str(said)
        for answer in said:
            row = rows[answer["film"]]
            assert answer["quality"] == [flag for flag in row["quality"].split("; ") if flag]
            for name, finding in answer["findings"].items():
                assert finding["probability"] == pytest.approx(float(row[f"probability {name}"]), abs=6e-5)
                assert finding["above_operating_point"] == (row[f"called {name}"] == "yes")


class TestStocks(Conformance):
    domain = find("stocks")

    def line(self, made: Made) -> Mapping[str, Any]:
        return next(iter(_by_ticker(made)))

    def test_a_line_is_answered_as_a_file_is(self, made: Made, published: Any, tmp_path: Path) -> None:
        lines = list(_by_ticker(made))
        columns = [
            {**line, "bars": {name: [bar[name] for bar in line["bars"]] for name in line["bars"][0]}}
            for line in lines
        ]
        # Only what the window looks back on: what lies before it changes nothing.
        recent = [{**line, "bars": line["bars"][-120:]} for line in lines]
        output, said = worker.call(
            both,
            "stocks",
            published,
            made.config,
            str(made.raw),
            [*lines, *columns, *recent],
            str(tmp_path),
            timeout=300,
        )
        with output.open(newline="") as file:
            rows = {row["ticker"]: row for row in csv.DictReader(file)}
        assert len(rows) == len(lines)
        for answer in said:
            row = rows[answer["ticker"]]
            assert answer["as_of"] == row["as_of"]
            assert answer["probability_up"] == pytest.approx(float(row["probability_up"]), abs=6e-5)
            assert answer["label"] == ("up" if answer["probability_up"] > 0.5 else "not up")
            assert str(answer["calibrated"]).lower() == row["calibrated"]
            assert answer["set_aside"] == []
        assert said[: len(lines)] == said[len(lines) : 2 * len(lines)]


class TestClimate(Conformance):
    domain = find("climate")

    def line(self, made: Made) -> Mapping[str, Any]:
        return _maps(_first(made))[0]

    def test_a_line_is_answered_as_a_file_is(self, made: Made, published: Any, tmp_path: Path) -> None:
        import xarray

        source = _first(made)
        lines = _maps(source)[:3]
        place = {**lines[0], "at": [lines[0]["latitude"][3], lines[0]["longitude"][5]]}
        output, said = worker.call(
            both,
            "climate",
            published,
            made.config,
            str(source),
            [*lines, place],
            str(tmp_path),
            timeout=300,
        )
        with xarray.open_dataset(output, engine="h5netcdf", decode_times=False) as found:
            (name,) = found.data_vars
            values = found[name].values
            latitude, longitude = found["latitude"].values, found["longitude"].values
        *whole, at = said
        for number, answer in enumerate(whole):
            assert answer["latitude"] == latitude.tolist()
            assert answer["longitude"] == longitude.tolist()
            np.testing.assert_allclose(np.array(answer["values"], float), values[number], rtol=1e-5)
        assert "values" not in at
        row, column = (
            int(np.abs(axis - at[where]).argmin())
            for axis, where in ((latitude, "latitude"), (longitude, "longitude"))
        )
        assert at["value"] == whole[0]["values"][row][column]
        assert abs(at["latitude"] - place["at"][0]) <= abs(latitude[1] - latitude[0]) / 2 + 1e-6


def _by_ticker(made: Made) -> list[dict[str, Any]]:
    """A line for each price file."""
    lines = []
    for path in sorted(made.raw.glob("*.csv")):
        with path.open(newline="") as file:
            bars = [
                {
                    name: cell if name == "date" else float(cell)
                    for name, cell in row.items()
                    if name != "ticker"
                }
                for row in csv.DictReader(file)
            ]
        lines.append({"ticker": path.stem, "bars": bars})
    return lines


def _first(made: Made) -> Path:
    return min(made.raw.rglob("*.nc"))


def _maps(path: Path) -> list[dict[str, Any]]:
    """A line for each map of a file."""
    import xarray

    with xarray.open_dataset(path, decode_times=False) as dataset:
        (name,) = [name for name, array in dataset.data_vars.items() if array.ndim == 3]
        array = dataset[name]
        _, lat, lon = array.dims
        return [
            {
                "values": values.tolist(),
                "latitude": dataset[lat].values.tolist(),
                "longitude": dataset[lon].values.tolist(),
                "units": array.attrs["units"],
            }
            for values in array.values
        ]
