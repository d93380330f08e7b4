"""The network, and what it makes of a planted signal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from domains.stocks import data, domain
from domains.stocks.config import ModelSection, StocksConfig
from shared.config import build
from shared.contract import SPLITS, Fold


@pytest.fixture(scope="module")
def fold(prepared: Path, config: StocksConfig) -> Fold:
    return domain.folds(prepared, config)[-1]


def test_importing_the_domain_imports_neither_tensorflow_nor_pandas() -> None:
    code = "import sys, domains.stocks; sys.exit(bool({'tensorflow', 'keras', 'pandas', 'sklearn'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_gathered_windows_equal_the_arrays(prepared: Path, config: StocksConfig, fold: Fold) -> None:
    import tensorflow as tf

    for split in SPLITS:
        source = domain.examples(prepared, config, fold, split)
        x, y = data.arrays(prepared, config, fold, split)
        assert source.count == len(x) == len(fold.splits[split])
        order = np.random.default_rng(0).permutation(source.count)[:50]
        got_x, got_y = tf.function(source.gather)(tf.constant(order))
        assert np.array_equal(got_x, x[order])
        assert np.array_equal(got_y, y[order], equal_nan=True)


@pytest.mark.slow
def test_normalisation_is_inside_and_learnt_from_training(
    prepared: Path, config: StocksConfig, fold: Fold
) -> None:
    model = domain.phases(prepared, config, fold)[0].build(None)
    rows = data.train_rows(prepared, config, fold)
    layer = model.get_layer("normalization")
    assert np.allclose(np.ravel(layer.mean), rows.mean(0), atol=1e-4)
    assert np.allclose(np.ravel(layer.variance), rows.var(0), rtol=1e-3)
    x, _ = data.arrays(prepared, config, fold, "test")
    scaled = model.get_layer("clip")(layer(x))
    assert np.abs(scaled).max() <= 6.0


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_head_is_float32_and_the_model_reloads(policy: str, tmp_path: Path) -> None:
    import keras

    from domains.stocks.model import lstm

    rows = np.random.default_rng(0).standard_normal((100, 7)).astype(np.float32)
    keras.config.set_dtype_policy(policy)
    try:
        model = lstm(rows, 12, ModelSection(units=4, layers=2))
    finally:
        keras.config.set_dtype_policy("float32")
    x = np.random.default_rng(1).standard_normal((5, 12, 7)).astype(np.float32)
    before = np.asarray(model(x))
    assert before.dtype == np.float32
    assert before.shape == (5, 1)
    assert ((before > 0) & (before < 1)).all()
    model.save(tmp_path / "model.keras")
    assert np.array_equal(before, keras.models.load_model(tmp_path / "model.keras")(x))


@pytest.mark.slow
def test_loss_and_metric_see_the_label_only() -> None:
    from domains.stocks.model import UpAUROC, up_loss

    said = np.array([[0.9], [0.2], [0.4]], np.float32)
    truth = np.array([[1, 0.01], [0, np.nan], [1, -0.5]], np.float32)
    assert np.allclose(up_loss(truth, said), -np.log([0.9, 0.8, 0.4]), atol=1e-6)
    metric = UpAUROC()
    metric.update_state(truth, said)
    assert float(metric.result()) == pytest.approx(1.0, abs=1e-3)


def trained(place: Path, settings: dict[str, Any]) -> Any:
    """The comparison of all contenders on the last fold of a whole, if short, training."""
    from shared import worker
    from shared.evaluation import metrics
    from shared.evaluation.predictions import read_predictions
    from shared.plan import ExecutionPlan
    from shared.training.member import train_member

    config = build(StocksConfig, base=settings)
    (place / "prepared").mkdir(parents=True)
    domain.ingest("synthetic", config, place / "prepared")
    folds = domain.folds(place / "prepared", config)
    plan = ExecutionPlan(batch_size=64, learning_rate_rule="square-root", learning_rate_factor=2**0.5)
    arguments = ("stocks", str(place / "prepared"), config.model_dump(), len(folds) - 1, 0, plan.to_dict())
    worker.call(train_member, *arguments, str(place / "member"), timeout=300)
    said = {"model": read_predictions(place / "member" / "test.npz")}
    said |= domain.baselines(place / "prepared", config, folds[-1])
    return metrics.bootstrap(domain.score(place / "prepared", config), said, resamples=400)


ONE_FOLD: dict[str, Any] = {
    "source": "synthetic",
    "window": {"sessions": 30},
    "folds": {"count": 1, "test_sessions": 350, "validation_sessions": 150},
    "synthetic": {"tickers": 8, "sessions": 1800},
    "train": {"epochs": 8},
}


@pytest.mark.slow
def test_a_planted_signal_is_found_and_beats_every_baseline(tmp_path: Path) -> None:
    from domains.stocks.synthetic import optimal_auroc

    compared = trained(tmp_path, ONE_FOLD)
    best = optimal_auroc(5, window=30)
    assert compared.model.value > 0.5 + 0.5 * (best - 0.5), "most of what there is to know"
    assert compared.model.value < best + 0.04, "more than there is would be a leak"
    for row in compared.rows[1:]:
        assert row.difference_low > 0, row


@pytest.mark.slow
def test_without_a_signal_nothing_is_found(tmp_path: Path) -> None:
    compared = trained(
        tmp_path,
        {**ONE_FOLD, "synthetic": {"tickers": 4, "sessions": 1200, "strength": 0.0}, "train": {"epochs": 3}},
    )
    assert compared.model.low < 0.5 < compared.model.high
    assert not all(row.difference_low > 0 for row in compared.rows[1:])
