"""Evaluation: numbers by hand, the `scores` package agreeing, figures that exist."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domains.climate import domain, evaluate
from domains.climate.data import Prepared
from shared import files
from shared.contract import FoldResult, Predictions

from .conftest import ingested, maps, save, settings, years

pytestmark = pytest.mark.slow


def result(prepared: Path, config: object, error: float = 0.1) -> FoldResult:
    """A made-up model that is off by ``error`` everywhere."""
    fold = domain.folds(prepared, config)[0]  # type: ignore[arg-type]
    rivals = domain.baselines(prepared, config, fold)  # type: ignore[arg-type]
    test = next(iter(rivals.values()))
    said = Predictions(test.keys, np.nan_to_num(test.truth) + np.float32(error), test.truth, test.groups)
    return FoldResult(fold, said, said, rivals)


def test_everything_agrees_with_arithmetic(tmp_path: Path) -> None:
    dataset = maps(times=years(1980, 24))
    dataset["tas"][:, 1:3, 1:3] = np.nan
    _, config = ingested(save(dataset, tmp_path / "a.nc"), tmp_path / "prepared")
    found = domain.evaluate([result(tmp_path / "prepared", config)], config, tmp_path / "figures")
    metrics = {one.name: one for one in found.metrics}
    assert metrics["RMSE"].value == pytest.approx(0.1, rel=1e-3)
    assert metrics["RMSE"].low is not None
    assert metrics["bias"].value == pytest.approx(0.1, rel=1e-3)
    assert metrics["spread ratio"].value == pytest.approx(1.0, rel=1e-3)
    overview = {row[0]: row for row in found.tables[0].rows}
    assert overview["model"][1] == pytest.approx(0.1, abs=1e-3)
    assert overview["bilinear"][4] == f"{1 - (0.1 / overview['bilinear'][1]) ** 2:+.1%}"
    assert [row[0] for row in found.tables[1].rows] == ["a 2000s"]
    assert any("bias" in flag for flag in found.flags)
    assert not any("scores" in flag for flag in found.flags)
    assert found.decision["missing cells"] == [9, 10, 17, 18]
    assert sorted(figure.path.name for figure in found.figures) == [
        "bias-map.png",
        "example.png",
        "rmse-by-year.png",
    ]
    assert all(figure.path.stat().st_size > 10_000 for figure in found.figures)
    files.write_json(tmp_path / "decision.json", found.decision)


def test_a_forecast_is_judged_as_an_anomaly(iris: tuple[Path, object], tmp_path: Path) -> None:
    prepared, config = iris[0], settings(source="iris", task="forecast")
    found = domain.evaluate([result(prepared, config)], config, tmp_path)
    metrics = {one.name: one.value for one in found.metrics}
    assert 0.95 < metrics["anomaly correlation"] <= 1
    decades = [row[0] for row in found.tables[1].rows]
    assert decades == [f"E1 {year}s" for year in range(2010, 2100, 10)]
    data = Prepared.load(prepared)
    normal = np.array(found.decision["climatology"])
    assert np.allclose(normal, data.fields[10:210].astype(np.float64).mean(axis=0), atol=1e-3)


def test_nothing_has_skill_over_a_baseline_without_error() -> None:
    errors = {
        name: {"rmse": rmse, "bias": 0.0, "mae": 0.0} for name, rmse in (("model", 0.5), ("exact", 0.0))
    }
    assert [row[-1] for row in evaluate._overview(errors, "K").rows] == ["", ""]
