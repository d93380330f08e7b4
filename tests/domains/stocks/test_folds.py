"""Folds walk forward, purged by the label's span; nothing of the test reaches training."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from domains.stocks import data, domain
from domains.stocks.config import StocksConfig
from domains.stocks.panel import build
from shared.config import build as configured
from shared.contract import SPLITS, Fold
from shared.errors import InputError


@pytest.fixture(scope="module")
def folds(prepared: Path, config: StocksConfig) -> list[Fold]:
    return domain.folds(prepared, config)


def test_no_training_label_meets_a_later_split(folds: list[Fold]) -> None:
    """Spans are closed at both ends, so an edge may not touch either."""
    for fold in folds:
        first = {split: fold.spans[fold.splits[split], 0].min() for split in SPLITS}
        last = {split: fold.spans[fold.splits[split], 1].max() for split in SPLITS}
        assert last["train"] < first["validation"]
        assert last["validation"] < first["test"]


def test_purging_takes_no_more_than_it_must(folds: list[Fold], config: StocksConfig) -> None:
    """The sessions left out before each border are exactly the horizon; the test's bounds stay."""
    for fold in folds:
        sessions = np.unique(fold.spans[:, 0])
        for before, after in (("train", "validation"), ("validation", "test")):
            end = fold.spans[fold.splits[before], 0].max()
            start = fold.spans[fold.splits[after], 0].min()
            assert (
                np.searchsorted(sessions, start) - np.searchsorted(sessions, end) - 1 == config.window.horizon
            )
        tested = np.unique(fold.spans[fold.splits["test"], 0])
        assert len(tested) == config.folds.test_sessions


def test_tests_follow_each_other_to_the_last_session(folds: list[Fold]) -> None:
    tests = [np.unique(fold.spans[fold.splits["test"], 0]) for fold in folds]
    sessions = np.unique(folds[0].spans[:, 0])
    assert np.array_equal(np.concatenate(tests), sessions[-sum(map(len, tests)) :])


def test_all_tickers_of_a_session_are_together(folds: list[Fold]) -> None:
    for fold in folds:
        held = [set(fold.groups[fold.splits[split]]) for split in SPLITS]
        assert not held[0] & held[1] | held[1] & held[2] | held[0] & held[2]
        assert fold.groups[0] == fold.keys[0].split("/")[1]


def test_changing_what_comes_later_leaves_training_as_it_is(
    prepared: Path, config: StocksConfig, folds: list[Fold], tmp_path: Path
) -> None:
    """Train tensors and what normalisation learns are bit-identical."""
    fold = folds[-1]
    shutil.copytree(prepared, tmp_path / "changed")
    table = pd.read_parquet(prepared / "prices.parquet")
    after = (
        table["session"].to_numpy("datetime64[D]") > fold.spans[fold.splits["train"], 1].max()
    ).nonzero()[0]
    rng = np.random.default_rng(0)
    for name in ("open", "high", "low", "close", "adj_close"):
        table.loc[after, name] *= np.exp(rng.standard_normal(len(after)))
    build(table, "adj_close").save(tmp_path / "changed" / "panel.npz")
    for one, other in zip(
        data.arrays(prepared, config, fold, "train"),
        data.arrays(tmp_path / "changed", config, fold, "train"),
        strict=True,
    ):
        assert np.array_equal(one, other)
    rows = [data.train_rows(folder, config, fold) for folder in (prepared, tmp_path / "changed")]
    assert np.array_equal(*rows)
    assert not np.array_equal(
        data.arrays(prepared, config, fold, "test")[0],
        data.arrays(tmp_path / "changed", config, fold, "test")[0],
    )


def test_normalisation_sees_each_training_session_once(
    prepared: Path, config: StocksConfig, folds: list[Fold]
) -> None:
    panel = data.load_panel(prepared)
    last = folds[0].spans[folds[0].splits["train"], 0].max()
    expected = panel.inputs[np.isfinite(panel.inputs).all(1) & (panel.session <= last)]
    assert np.array_equal(data.train_rows(prepared, config, folds[0]), expected)


def test_too_few_sessions_say_what_is_needed(prepared: Path, config: StocksConfig) -> None:
    greedy = configured(
        StocksConfig, base={"folds": {"count": 9, "test_sessions": 80}, "window": {"sessions": 16}}
    )
    with pytest.raises(InputError, match="need at least") as caught:
        domain.folds(prepared, greedy)
    assert "--folds.count" in caught.value.remedy


def test_default_sizes_fit_a_short_history(prepared: Path) -> None:
    folds = domain.folds(prepared, configured(StocksConfig, base={"window": {"sessions": 16}}))
    assert len(folds) == 4
