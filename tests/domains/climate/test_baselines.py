"""The rivals are as strong as the field knows them (figures found on these very runs)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domains.climate import baselines, domain
from domains.climate.config import ClimateConfig
from shared.contract import Score

from .conftest import ingested, maps, save, settings

pytestmark = pytest.mark.slow


def scores(prepared: Path, config: ClimateConfig) -> tuple[dict[str, float], Score]:
    fold = domain.folds(prepared, config)[0]
    score = domain.score(prepared, config)
    return {name: score.of(said) for name, said in domain.baselines(prepared, config, fold).items()}, score


def test_downscaling_on_the_real_runs(iris: tuple[Path, ClimateConfig]) -> None:
    found, score = scores(*iris)
    assert (score.unit, score.higher_is_better, score.resample) == ("K", False, "blocks")
    assert found["bilinear"] == pytest.approx(1.118, abs=0.002)
    assert found["bilinear + offset"] == pytest.approx(0.222, abs=0.001)
    assert found["bilinear + offset, conserving"] == pytest.approx(0.199, abs=0.001)
    assert found["ridge"] == pytest.approx(0.173, abs=0.001)
    assert found["local ridge"] == pytest.approx(0.158, abs=0.001)


def test_forecast_on_the_real_runs(iris: tuple[Path, ClimateConfig]) -> None:
    found, _ = scores(iris[0], settings(source="iris", task="forecast"))
    assert found["persistence"] == pytest.approx(0.895, abs=0.001)
    assert found["mean of 5 years"] == pytest.approx(0.758, abs=0.001)
    assert found["mean of 10 years"] == pytest.approx(0.726, abs=0.001)
    assert found["exponential"] == pytest.approx(0.724, abs=0.001)


def test_missing_cells_are_left_out(tmp_path: Path) -> None:
    dataset = maps()
    dataset["tas"][:, :4, :5] = np.nan
    dataset["tas"][3, 6, 6] = np.nan
    _, config = ingested(save(dataset, tmp_path / "a.nc"), tmp_path / "prepared")
    found, _ = scores(tmp_path / "prepared", config)
    assert all(np.isfinite(value) for value in found.values())


def test_ridge_is_the_same_in_both_spaces() -> None:
    rng = np.random.default_rng(0)
    x, y, to = rng.normal(size=(6, 6)), rng.normal(size=(6, 2)), rng.normal(size=(3, 6))
    wide = np.hstack([x, np.zeros((6, 4))])  # more features than examples: the dual
    penalty = np.linspace(1, 2, 10)
    primal = baselines._ridge(x, y, to, penalty[:6])
    dual = baselines._ridge(wide, y, np.hstack([to, np.zeros((3, 4))]), penalty)
    assert np.allclose(primal, dual)


def test_a_mean_gives_the_weight_of_missing_years_to_the_others() -> None:
    past = np.array([[[[1.0]], [[np.nan]], [[4.0]]]])
    assert baselines.mean_along_steps(past)[0, 0, 0] == pytest.approx(2.5)
