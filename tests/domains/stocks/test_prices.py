"""Bars are used as they are or set aside by name; nothing is repaired."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from domains.stocks.config import DataSection
from domains.stocks.prices import Prices, adjust, clean
from domains.stocks.reading import read
from shared.errors import InputError

from .conftest import NOW, bars


def cleaned(table: pd.DataFrame, folder: Path, now: pd.Timestamp = NOW, **settings: object) -> Prices:
    table.to_csv(folder / "AAPL.csv", index=False)
    section = DataSection(**settings)
    return clean(read(str(folder / "AAPL.csv"), section), section, now=now)


def test_open_high_low_are_scaled_by_the_closes_factor(tmp_path: Path) -> None:
    table = bars(4).assign(adj_close=lambda t: t["close"] / [4, 4, 2, 1])
    prices = cleaned(table, tmp_path)
    adjusted = adjust(prices.table, prices.adjusted)
    for name in ("open", "high", "low", "close"):
        assert np.allclose(adjusted[name], table[name] / [4, 4, 2, 1], rtol=1e-12)
    assert np.allclose(prices.table["close"], table["close"]), "raw prices are kept"


def test_without_adjusted_close_the_fall_back_is_recorded(tmp_path: Path) -> None:
    prices = cleaned(bars(4).drop(columns="adj_close"), tmp_path)
    assert prices.adjusted == "none"
    assert any("no adjusted close" in warning for warning in prices.warnings)
    with pytest.raises(InputError, match="no adjusted close for AAPL"):
        cleaned(bars(4).drop(columns="adj_close"), tmp_path, adjust="adj_close")
    assert "data.adjust = none" in cleaned(bars(4), tmp_path, adjust="none").warnings[0]


def test_adjusted_and_unadjusted_tickers_are_not_mixed(tmp_path: Path) -> None:
    both = pd.concat([bars(3, "A"), bars(3, "B").assign(adj_close=np.nan)])
    with pytest.raises(InputError, match="no adjusted close for B"):
        cleaned(both, tmp_path)


def test_the_same_date_twice_once_empty(tmp_path: Path) -> None:
    """The valid one stays."""
    table = bars(3)
    empty = table.iloc[[1]].assign(
        open=np.nan, high=np.nan, low=np.nan, close=np.nan, adj_close=np.nan, volume=np.nan
    )
    prices = cleaned(pd.concat([table.iloc[:2], empty, table.iloc[2:]]), tmp_path)
    assert len(prices.table) == 3
    assert [(q.item, q.reason) for q in prices.quarantine] == [
        ("AAPL.csv row 4", "AAPL 2010-01-05: an empty row")
    ]


def test_the_same_bar_twice_is_one(tmp_path: Path) -> None:
    table = bars(3)
    prices = cleaned(pd.concat([table, table.iloc[[1]]]), tmp_path)
    assert len(prices.table) == 3
    assert prices.quarantine[0].reason.endswith("the same bar again")


def test_two_different_bars_of_one_date_raise_with_the_date(tmp_path: Path) -> None:
    table = bars(3)
    with pytest.raises(InputError, match=r"different bars for 2010-01-05: .* row 3 and .* row 5"):
        cleaned(pd.concat([table, table.iloc[[1]].assign(volume=1.0)]), tmp_path)


@pytest.mark.parametrize(
    ("now", "left"),
    [
        ("2010-01-06 12:00", 2),  # during the third session
        ("2010-01-06 20:59", 2),
        ("2010-01-06 21:00", 3),  # New York closes at 16:00
        ("2010-01-05 22:00", 2),  # a bar of tomorrow
        ("2024-01-01 00:00", 3),
    ],
)
def test_an_unsettled_session_is_left_out(tmp_path: Path, now: str, left: int) -> None:
    prices = cleaned(bars(3), tmp_path, pd.Timestamp(now, tz="UTC"))
    assert len(prices.table) == left
    if left == 2:
        assert prices.quarantine[0].reason == "AAPL 2010-01-06: the session has not closed yet"


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("close", 0.0, "close is not above zero"),
        ("open", -1.0, "open is not above zero"),
        ("close", 1e306, "close is beyond any price"),
        ("low", 1e-300, "low is too small for a price"),
        ("volume", 1e300, "volume is beyond any trade"),
        ("adj_close", 0.0, "adj_close is not above zero"),
        ("low", np.inf, "low is infinite"),
        ("close", np.nan, "close is empty"),
        ("high", 1.0, "high is below low"),
        ("open", 1e6, "open or close lies outside low to high"),
        ("volume", -5.0, "volume is negative"),
    ],
)
def test_bars_that_cannot_be_are_set_aside(tmp_path: Path, column: str, value: float, why: str) -> None:
    """By value, before anything is computed from them."""
    table = bars(5)
    table.loc[2, column] = value
    prices = cleaned(table, tmp_path)
    assert len(prices.table) == 4
    assert [(q.item, q.reason) for q in prices.quarantine] == [("AAPL.csv row 4", f"AAPL 2010-01-06: {why}")]
    assert np.isfinite(prices.table[["open", "high", "low", "close", "adj_close"]]).all(axis=None)


def test_a_real_crash_is_not_taken_for_a_split() -> None:
    """Apple fell by 52% on 2000-09-29, and by no split; its splits are no falls."""
    prices = clean(read("bokeh", DataSection(tickers=("AAPL",))), DataSection(), now=NOW)
    assert not prices.quarantine
    table = adjust(prices.table, prices.adjusted).set_index("session")
    moves = table["close"].pct_change()
    assert moves["2000-09-29"] == pytest.approx(-0.519, abs=0.001)
    assert abs(moves["2000-06-21"]) < 0.2, "the 2-for-1 split of 2000"
    assert abs(moves["2005-02-28"]) < 0.2, "the 2-for-1 split of 2005"
    assert [warning[:27] for warning in prices.warnings] == ["AAPL moved -52% on 2000-09-"]


def test_days_without_a_session_are_set_aside(tmp_path: Path) -> None:
    """Sessions number the exchange's days; Christmas and weekends are none."""
    table = bars(30, first="2010-12-01")
    table = pd.concat([table, table.iloc[[0]].assign(date="2010-12-25")])
    prices = cleaned(table, tmp_path)
    assert prices.quarantine[0].reason == "AAPL 2010-12-25: not a session of XNYS"
    assert (np.diff(prices.table["ordinal"]) == 1).all(), (
        "neighbouring sessions differ by one, over holidays too"
    )


@pytest.mark.parametrize(
    ("slip", "why"), [("7010-01-05", "has not closed yet"), ("0210-01-05", "before there were exchanges")]
)
def test_a_slip_in_a_year_costs_its_row_only(tmp_path: Path, slip: str, why: str) -> None:
    table = bars(5)
    table["date"] = table["date"].astype(object)
    table.loc[1, "date"] = slip
    prices = cleaned(table, tmp_path)
    assert len(prices.table) == 4
    assert [why in item.reason for item in prices.quarantine] == [True]


def test_another_exchanges_days_are_refused(tmp_path: Path) -> None:
    table = bars(10).assign(date=pd.date_range("2010-01-01", periods=10).strftime("%Y-%m-%d"))
    with pytest.raises(InputError, match="on sessions of XNYS") as caught:
        cleaned(table, tmp_path)
    assert "data.calendar" in caught.value.remedy
    assert len(cleaned(table, tmp_path, calendar="24/7").table) == 10
    with pytest.raises(InputError, match="no exchange 'XNYSE'"):
        cleaned(table, tmp_path, calendar="XNYSE")


def test_nothing_left_is_an_error_with_the_first_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"all 3 rows were set aside.*row 2.*close is not above zero"):
        cleaned(bars(3).assign(close=0.0), tmp_path)


def test_no_volume_is_said(tmp_path: Path) -> None:
    prices = cleaned(bars(4).drop(columns="volume"), tmp_path)
    assert "no volume" in prices.warnings[0]
    assert (prices.table["volume"] == 0).all()
