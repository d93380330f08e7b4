"""Features know the past only, and don't change when the future rescales prices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domains.stocks.config import DataSection
from domains.stocks.features import LOOKBACK, NAMES, WARM_UP, features
from domains.stocks.panel import build
from domains.stocks.prices import clean
from domains.stocks.reading import read

from .conftest import NOW, bars


def computed(count: int = 80, **changes: np.ndarray) -> np.ndarray:
    table = bars(count)
    columns = {name: table[name].to_numpy() for name in ("open", "high", "low", "close")}
    columns |= {"value": (table["close"] * table["volume"]).to_numpy(), **changes}
    return features(columns["open"], columns["high"], columns["low"], columns["close"], columns["value"])


def test_values_by_hand() -> None:
    table, got = bars(30), computed(30)
    close, opens = np.log(table["close"]), np.log(table["open"])
    value = np.log1p(table["close"] * table["volume"])
    at = 25
    last = slice(at - LOOKBACK + 1, at + 1)
    returns = close.diff()
    expected = [
        close[at] - close[at - 1],
        opens[at] - close[at - 1],
        np.log(table["high"][at] / table["low"][at]),
        (table["close"][at] - table["low"][at]) / (table["high"][at] - table["low"][at]) - 0.5,
        value[at] - value[last].mean(),
        np.log(np.sqrt((returns[last] ** 2).mean())),
        close[at] - close[last].mean(),
    ]
    assert np.allclose(got[at], expected, rtol=1e-9)


def test_only_the_warm_up_has_none() -> None:
    got = computed()
    assert got.shape == (80, len(NAMES))
    assert np.isnan(got[:WARM_UP]).all()
    assert np.isfinite(got[WARM_UP:]).all()
    assert np.isnan(computed(WARM_UP)).all()


@pytest.mark.parametrize("known", range(WARM_UP + 1, 80, 7))
def test_prefix_invariance_to_the_bit(known: int) -> None:
    """features(data[:t]) equals features(all)[:t]."""
    assert np.array_equal(computed(80)[:known], computed(known), equal_nan=True)


def test_nothing_else_changes_when_one_future_bar_does() -> None:
    table = bars(80)
    changed = table["close"].to_numpy().copy()
    changed[60] *= 0.5
    assert np.array_equal(computed()[:60], computed(close=changed)[:60], equal_nan=True)
    assert not np.array_equal(computed()[60:], computed(close=changed)[60:])


def test_a_later_split_changes_no_past_feature(tmp_path: Path) -> None:
    """Back-adjustment divides all earlier prices; raw prices and volumes stay."""
    inputs = []
    for factor in (1.0, 1 / 14.0):
        table = bars(80)
        table.loc[:59, "adj_close"] *= factor
        if factor != 1:  # after the split raw prices fall and volumes rise
            table.loc[60:, ["open", "high", "low", "close"]] *= factor
            table.loc[60:, "adj_close"] *= factor
            table.loc[60:, "volume"] /= factor
        table.to_csv(tmp_path / "A.csv", index=False)
        prices = clean(read(str(tmp_path / "A.csv"), DataSection()), DataSection(), now=NOW)
        inputs.append(build(prices.table, prices.adjusted).inputs)
    assert np.allclose(*inputs, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_flat_prices_and_no_volume_stay_finite() -> None:
    ones, zeros = np.ones(60), np.zeros(60)
    got = features(ones, ones, ones, ones, zeros)[WARM_UP:]
    assert np.isfinite(got).all()
    assert (got[:, [0, 1, 2, 3, 4, 6]] == 0).all()
