"""The field's judgement: a model beside persistence always, and collapse never passed over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from domains.stocks import domain
from domains.stocks.config import StocksConfig
from domains.stocks.evaluate import calibrate
from domains.stocks.score import OfLabel, WithinFolds
from shared.contract import Evaluation, Fold, FoldResult, Predictions
from shared.evaluation import metrics


def said(fold: Fold, split: str, truth: np.ndarray, values: np.ndarray) -> Predictions:
    rows = fold.splits[split]
    return Predictions(fold.keys[rows], values.astype(np.float32).reshape(-1, 1), truth, fold.groups[rows])


@pytest.fixture(scope="module")
def results(prepared: Path, config: StocksConfig) -> list[FoldResult]:
    """Two folds of a model that knows a little: the truth and much noise."""
    from domains.stocks import data

    rng = np.random.default_rng(0)
    made = []
    for fold in domain.folds(prepared, config):
        split = {}
        for name in ("validation", "test"):
            truth = data.arrays(prepared, config, fold, name)[1]
            values = 1 / (1 + np.exp(-(truth[:, 0] - 0.5 + rng.standard_normal(len(truth)))))
            split[name] = said(fold, name, truth, values)
        made.append(
            FoldResult(fold, split["validation"], split["test"], domain.baselines(prepared, config, fold))
        )
    return made


@pytest.fixture(scope="module")
def evaluation(
    results: list[FoldResult], config: StocksConfig, tmp_path_factory: pytest.TempPathFactory
) -> Evaluation:
    return domain.evaluate(results, config, tmp_path_factory.mktemp("figures"))


def test_baselines_are_on_the_models_examples(results: list[FoldResult]) -> None:
    """Persistence beside it, always."""
    for result in results:
        assert list(result.baselines) == [
            "majority",
            "persistence",
            "logistic regression",
            "gradient boosting",
        ]
        for baseline in result.baselines.values():
            assert np.array_equal(baseline.keys, result.test.keys)
            assert np.array_equal(baseline.truth, result.test.truth, equal_nan=True)
            assert ((baseline.values > 0) & (baseline.values < 1)).all()


def test_majority_is_the_base_rate_of_training(
    results: list[FoldResult], prepared: Path, config: StocksConfig
) -> None:
    from domains.stocks import data

    truth = data.arrays(prepared, config, results[0].fold, "train")[1]
    assert results[0].baselines["majority"].values == pytest.approx(truth[:, 0].mean())


def test_persistence_is_the_sign_of_the_last_move(
    results: list[FoldResult], prepared: Path, config: StocksConfig
) -> None:
    from domains.stocks import data
    from domains.stocks.panel import examples_of

    panel = data.load_panel(prepared)
    rows = examples_of(panel, config.window).rows[results[0].fold.splits["test"]]
    moved = panel.close[rows] > panel.close[rows - config.window.horizon]
    assert np.array_equal(results[0].baselines["persistence"].values[:, 0] > 0.5, moved)


def test_everything_is_judged(evaluation: Evaluation, config: StocksConfig) -> None:
    assert [metric.name for metric in evaluation.metrics] == [
        "AUROC", "MCC", "Brier score", "accuracy", "calibration error (ECE)",
    ]  # fmt: skip
    for metric in evaluation.metrics[:4]:
        assert metric.low < metric.value < metric.high
    assert "base rate" in evaluation.metrics[3].note
    assert [table.title for table in evaluation.tables] == ["By fold", "By ticker", "Backtest"]
    assert "AUROC persistence" in evaluation.tables[0].columns
    assert [row[0] for row in evaluation.tables[1].rows] == ["SYN01", "SYN02"]
    assert all(len(row) == len(table.columns) for table in evaluation.tables for row in table.rows)
    assert all(figure.path.stat().st_size > 10_000 for figure in evaluation.figures)
    assert evaluation.decision["horizon"] == config.window.horizon
    assert evaluation.limits
    assert not evaluation.flags


def test_calibration_comes_from_validation_only(
    results: list[FoldResult], config: StocksConfig, tmp_path: Path, evaluation: Evaluation
) -> None:
    flipped = [
        replace(result, test=replace(result.test, truth=1 - result.test.truth), baselines={})
        for result in results
    ]
    assert domain.evaluate(flipped, config, tmp_path).decision == evaluation.decision


def test_collapse_is_flagged(results: list[FoldResult], config: StocksConfig, tmp_path: Path) -> None:
    """Accuracy equals the base rate where one class is never predicted."""
    up = [replace(r, test=replace(r.test, values=0.5 + 0.1 * r.test.values), baselines={}) for r in results]
    found = domain.evaluate(up, config, tmp_path)
    flags = [flag for flag in found.flags if "down is never predicted" in flag]
    assert len(flags) == 2
    assert flags[0].startswith(results[0].fold.name)
    mcc = next(metric for metric in found.metrics if metric.name == "MCC")
    assert mcc.value == 0


def test_no_evidence_is_flagged(results: list[FoldResult], config: StocksConfig, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    blind = [
        replace(r, test=replace(r.test, values=rng.random(r.test.values.shape).astype(np.float32)))
        for r in results
    ]
    assert any("no evidence" in flag for flag in domain.evaluate(blind, config, tmp_path).flags)


def test_the_score_is_the_mean_of_the_folds_auroc(
    results: list[FoldResult], prepared: Path, config: StocksConfig
) -> None:
    from shared.evaluation.predictions import pooled

    score = domain.score(prepared, config)
    by_fold = [roc_auc_score(r.test.truth[:, 0], r.test.values[:, 0]) for r in results]
    together = pooled([r.test for r in results])
    assert score.of(together) == pytest.approx(np.average(by_fold, weights=[len(r.test) for r in results]))
    constant = pooled([r.baselines["majority"] for r in results])
    assert score.of(constant) == score.chance == 0.5
    assert metrics.bootstrap(score, {"model": constant}, resamples=100).model.low == 0.5


def test_resamples_are_scored_as_if_they_were_data(results: list[FoldResult]) -> None:
    test = results[0].test
    drawn = np.random.default_rng(0).integers(0, len(test), (3, len(test)))
    counts = np.stack([np.bincount(one, minlength=len(test)) for one in drawn]).astype(float)
    whole = WithinFolds(("2000-01-01",))
    expected = [roc_auc_score(test.truth[one, 0], test.values[one, 0]) for one in drawn]
    assert whole.resampled(test, counts) == pytest.approx(expected)
    assert OfLabel(metrics.auroc).resampled(test, counts) == pytest.approx(expected)
    one_class = replace(test, truth=np.ones_like(test.truth))
    assert np.isnan(whole(one_class))


def test_calibration_keeps_shape_type_and_order() -> None:
    values = np.array([[0.2], [0.5], [0.9]], np.float32)
    softer = calibrate(values, 2.0)
    assert softer.shape == values.shape
    assert softer.dtype == np.float32
    assert 0.2 < softer[0, 0] < softer[1, 0] == 0.5 < softer[2, 0] < 0.9
    assert calibrate(values, 1.0) == pytest.approx(values, abs=1e-6)
