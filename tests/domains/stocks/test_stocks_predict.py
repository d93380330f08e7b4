"""Predicting: each ticker as of its last settled bar, calibrated, and nobody lost in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from domains.stocks.config import StocksConfig
from domains.stocks.predict import COLUMNS, FILE, predict
from shared.config import build
from shared.contract import Published, Summary
from shared.errors import InputError

from .conftest import NOW, bars

TRAINED = {"window": {"sessions": 8, "horizon": 3}}


def published(**settings: Any) -> Published:
    given = {"decision": {"temperature": 2.0}, "config": TRAINED, "label": "stocks v1 (champion)", **settings}
    return Published(path=Path("nowhere"), **given)


def last_return(x: np.ndarray) -> np.ndarray:
    """A stand-in for the network: sure of the direction of the window's last return."""
    assert x.shape[1:] == (8, 7)
    assert x.dtype == np.float32
    assert np.isfinite(x).all()
    return np.where(x[:, -1, :1] > 0, 0.9, 0.2)


def asked(
    folder: Path, model: Published, *tables: pd.DataFrame, now: pd.Timestamp = NOW
) -> tuple[Summary, pd.DataFrame]:
    pd.concat(tables).to_csv(folder / "new.csv", index=False)
    config = build(StocksConfig)  # not the trained window: the model's own counts
    summary = predict(model, str(folder / "new.csv"), config, folder / "out", now=now, predictor=last_return)
    return summary, pd.read_csv(folder / "out" / FILE, keep_default_na=False)


def test_each_ticker_as_of_its_last_bar(tmp_path: Path) -> None:
    old = bars(60, "OLD", seed=4)
    summary, table = asked(tmp_path, published(), bars(80, "NEW"), old, bars(20, "SHORT"))
    assert list(table.columns) == list(COLUMNS)
    assert dict(zip(table["ticker"], table["as_of"], strict=True)) == {
        "NEW": bars(80)["date"].iloc[-1], "OLD": old["date"].iloc[-1],
    }  # fmt: skip
    assert (table["horizon"] == 3).all()
    assert set(table["probability_up"]) <= {0.75, 0.3333}, "odds of 9 and 1/4 at temperature 2"
    assert table["probability_up"].is_monotonic_decreasing
    assert (table["calibrated"].astype(str).str.lower() == "true").all()
    notes = dict(zip(table["ticker"], table["note"], strict=True))
    assert notes["NEW"] == ""
    assert "days older than the newest" in notes["OLD"]
    assert (table["model"] == "stocks v1 (champion)").all()
    assert summary.scored == 2
    assert [(item.item, "28 are needed" in item.reason) for item in summary.quarantine] == [("SHORT", True)]
    assert summary.headline.startswith(
        f"{table['ticker'][0]} is the most likely to close higher 3 sessions on"
    )


def test_uncalibrated_synthetic_and_unadjusted_are_said(tmp_path: Path) -> None:
    _, table = asked(
        tmp_path, published(decision={}, synthetic=True), bars(60, "A").drop(columns="adj_close")
    )
    assert table["calibrated"].astype(str).str.lower().tolist() == ["false"]
    assert set(table["probability_up"]) <= {0.9, 0.2}
    assert table["note"].tolist() == ["the model was trained on synthetic prices; prices are not adjusted"]


def test_todays_open_session_is_not_the_last_bar(tmp_path: Path) -> None:
    last = bars(60)["date"].iloc[-1]
    during = pd.Timestamp(f"{last} 12:00", tz="America/New_York")
    summary, table = asked(tmp_path, published(), bars(60, "A"), now=during)
    assert table["as_of"].tolist() == [bars(60)["date"].iloc[-2]]
    assert "has not closed yet" in summary.quarantine[0].reason


def test_a_hole_in_the_last_window_is_not_bridged(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"No ticker .* can be scored; A: its last unbroken stretch has 9 sessions"
    ):
        asked(tmp_path, published(), bars(60, "A").drop(index=50))


def test_a_later_split_changes_no_answer(tmp_path: Path) -> None:
    """All the way through."""
    answers = []
    for name, factor in (("before", 1.0), ("after", 0.1)):
        (tmp_path / name).mkdir()
        table = bars(60, "A")
        table["adj_close"] *= factor
        answers.append(asked(tmp_path / name, published(), table)[1]["probability_up"].tolist())
    assert answers[0] == answers[1]
