"""A signal at close t earns from t+1 on, and trading costs."""

from __future__ import annotations

import numpy as np
import pytest

from domains.stocks import backtest
from domains.stocks.config import BacktestSection

FREE = BacktestSection(cost_bps=0)
DAYS = np.arange("2010-01-04", "2010-01-08", dtype="datetime64[D]")


def run(probability: list[float], earned: list[float], section: BacktestSection = FREE) -> backtest.Account:
    return backtest.run(np.repeat("A", 4), DAYS, np.array(probability), np.array(earned), section)[0]


def test_the_session_of_the_signal_earns_nothing() -> None:
    """A clairvoyant of the *same* bar, who says up on each day that rose, earns what comes after it."""
    opens = np.array([100.0, 110, 100, 110, 100, 110])  # rises and falls by turns, open to open
    risen = np.diff(opens)[:4] > 0  # what happened on the session of the signal
    earned = opens[2:6] / opens[1:5] - 1  # from the next open to the one after
    account = run(np.where(risen, 0.9, 0.1).tolist(), earned.tolist())
    assert account.returns[risen] == pytest.approx([100 / 110 - 1] * 2), (
        "whoever buys what has risen, loses here"
    )
    assert account.equity[-1] == pytest.approx((100 / 110) ** 2)


def test_costs_are_paid_on_every_change() -> None:
    account = run([0.9, 0.9, 0.1, 0.9], [0.0] * 4, BacktestSection(cost_bps=10))
    assert account.traded.tolist() == [1, 0, 1, 1]
    assert account.returns == pytest.approx([-0.001, 0, -0.001, -0.001])


def test_short_is_asked_for() -> None:
    assert run([0.1] * 4, [-0.01] * 4).equity[-1] == 1
    assert run([0.1] * 4, [-0.01] * 4, BacktestSection(cost_bps=0, short=True)).equity[-1] == pytest.approx(
        1.01**4
    )


def test_tickers_share_the_account_and_unknown_gains_are_left_out() -> None:
    tickers = np.array(["A", "B", "A", "B", "A"])
    days = DAYS[[0, 0, 1, 1, 2]]
    earned = np.array([0.02, 0.04, 0.02, np.nan, 0.05])
    strategy, held = backtest.run(tickers, days, np.array([0.9, 0.1, 0.9, 0.9, 0.9]), earned, FREE)
    assert strategy.returns == pytest.approx([0.01, 0.02, 0.05])
    assert held.returns == pytest.approx([0.03, 0.02, 0.05])
    assert strategy.invested == pytest.approx([0.5, 1, 1])


def test_figures_of_an_account() -> None:
    account = backtest.Account(DAYS, np.array([0.1, -0.2, 0.05, 0.1]), np.zeros(4), np.ones(4))
    assert account.drawdown == pytest.approx(-0.2)
    assert account.yearly_return == pytest.approx((1.1 * 0.8 * 1.05 * 1.1) ** 63 - 1)
    assert account.sharpe == pytest.approx(np.mean(account.returns) / np.std(account.returns) * 252**0.5)
    idle = backtest.Account(DAYS, np.zeros(4), np.zeros(4), np.zeros(4))
    assert np.isnan(idle.sharpe)
    assert idle.drawdown == 0
