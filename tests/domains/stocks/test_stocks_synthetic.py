"""The planted signal: known, worth what optimal_auroc says, and hidden from linear eyes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from domains.stocks import domain
from domains.stocks.config import StocksConfig
from domains.stocks.reading import read
from domains.stocks.synthetic import HAZARD, _bars, optimal_auroc
from shared.config import build

SAMPLE = Path(__file__).parents[3] / "data" / "samples" / "stocks"
MADE = {"synthetic": {"tickers": 4, "sessions": 750}}
"""What data/samples/stocks was made with; seed 7."""


def test_the_sample_is_what_this_code_writes(tmp_path: Path) -> None:
    domain.synthesize(tmp_path, build(StocksConfig, base=MADE), 7)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == sorted(path.name for path in SAMPLE.iterdir())
    for name in files:
        if name.endswith(".txt"):
            assert (SAMPLE / name).read_text() == (tmp_path / name).read_text()
            continue
        kept, made = pd.read_csv(SAMPLE / name), pd.read_csv(tmp_path / name)
        # Not by bytes: another processor's exponential may differ in the last bit.
        pd.testing.assert_frame_equal(kept, made, rtol=1e-5)
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) < 300_000


def test_the_sample_says_that_it_is_synthetic() -> None:
    bars = read(str(SAMPLE), StocksConfig().data)
    assert bars.synthetic
    assert len(bars.table) == 3000
    assert not bars.quarantine
    assert "SYNTHETIC" in (SAMPLE / "SYNTHETIC.txt").read_text()


def test_it_reads_like_anybodys_files(tmp_path: Path, config: StocksConfig) -> None:
    domain.synthesize(tmp_path / "raw", config, 3)
    (tmp_path / "out").mkdir()
    card = domain.ingest(str(tmp_path / "raw"), config, tmp_path / "out")
    assert card.synthetic
    assert not card.quarantine
    assert not card.warnings, "a planted split is adjusted for, no jump is left"
    raw = pd.read_csv(tmp_path / "raw" / "SYN01.csv")
    assert raw["close"].pct_change().min() < -0.4, "and there is one"


def direction_and_outcome(strength: float, horizon: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    bars = _bars(np.random.default_rng(0), 200_000, strength)
    close = np.log(bars["close"])
    return bars["direction"][:-horizon], close[horizon:] - close[:-horizon], np.diff(close)


@pytest.mark.parametrize("horizon", [1, 5])
def test_the_optimum_is_what_knowing_the_rule_scores(horizon: int) -> None:
    direction, outcome, _ = direction_and_outcome(1.0, horizon)
    assert roc_auc_score(outcome > 0, direction) == pytest.approx(optimal_auroc(horizon), abs=0.005)


def test_a_window_may_miss_the_last_shock() -> None:
    whole = optimal_auroc(5)
    assert optimal_auroc(5, window=16) == pytest.approx(0.5 + (1 - (1 - HAZARD) ** 16) * (whole - 0.5))
    assert 0.64 < optimal_auroc(5, window=40) < whole < 0.66


def test_returns_are_uncorrelated_so_linear_rules_see_nothing() -> None:
    _, outcome, returns = direction_and_outcome(1.0)
    for lag in range(40):
        past = returns[40 - lag : len(returns) - 5 - lag]
        assert abs(np.corrcoef(past, outcome[41:])[0, 1]) < 0.012, lag
    momentum = np.convolve(returns, np.ones(5), "valid")
    assert abs(roc_auc_score(outcome[6:] > 0, momentum[1 : len(outcome) - 5]) - 0.5) < 0.015


def test_without_strength_it_is_a_random_walk() -> None:
    direction, outcome, _ = direction_and_outcome(0.0)
    assert optimal_auroc(5, strength=0) == pytest.approx(0.5)
    assert roc_auc_score(outcome > 0, direction) == pytest.approx(0.5, abs=0.005)
