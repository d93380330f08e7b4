"""What following the probabilities would have earned, against simply holding the same stocks.

The rule, chosen to be simple and to leave no room for foresight: the probability known at the close
of session t decides what is held from the *open* of t+1 to the open of t+2. Nothing of session t
itself, nor of the night after it, is earned. Each session's capital is shared equally by the
tickers with a prediction; a ticker above the threshold is held, else its share is cash
(earning nothing), or sold short if the settings say so. Every change of a position costs.

Dividends are in the adjusted prices. Not counted: taxes, slippage beyond the cost, the cost of borrowing,
and that a real order moves the price.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from domains.stocks.config import BacktestSection

SESSIONS_PER_YEAR = 252


@dataclass(frozen=True)
class Account:
    """An account's daily returns after costs.

    Attributes:
        sessions: Session of each signal, datetime64[D] ``[m]``; what it earns comes after it.
        returns: float64 ``[m]``, after costs.
        traded: float64 ``[m]``, what was traded, as a share of the account.
        invested: float64 ``[m]``, the share of the account that was held or sold short.
    """

    sessions: np.ndarray
    returns: np.ndarray
    traded: np.ndarray
    invested: np.ndarray

    @property
    def equity(self) -> np.ndarray:
        """Value of the account after each session, starting from 1; ``[m]``."""
        return np.cumprod(1.0 + self.returns)

    @property
    def yearly_return(self) -> float:
        return float(self.equity[-1] ** (SESSIONS_PER_YEAR / len(self.returns)) - 1.0)

    @property
    def yearly_volatility(self) -> float:
        return float(np.std(self.returns) * np.sqrt(SESSIONS_PER_YEAR))

    @property
    def sharpe(self) -> float:
        """Mean over standard deviation of daily returns, a year's worth, no risk-free rate; NaN if idle."""
        spread = float(np.std(self.returns))
        return (
            float(np.mean(self.returns)) / spread * np.sqrt(SESSIONS_PER_YEAR) if spread > 0 else float("nan")
        )

    @property
    def drawdown(self) -> float:
        """The deepest fall from a peak, as a negative share."""
        equity = np.concatenate([[1.0], self.equity])
        return float(np.min(equity / np.maximum.accumulate(equity) - 1.0))


def run(
    tickers: np.ndarray,
    sessions: np.ndarray,
    probability: np.ndarray,
    earned: np.ndarray,
    section: BacktestSection,
) -> tuple[Account, Account]:
    """The accounts of the strategy and of buy-and-hold.

    Args:
        tickers: str ``[n]``.
        sessions: datetime64[D] ``[n]``, the session at whose close the probability is known.
        probability: float ``[n]``, of up.
        earned: float ``[n]``, from the open of the next session to the open after it; NaN where
            not known: that ticker is left out on that session, by both accounts.
        section: Threshold, costs, and whether to sell short.
    """
    names, column = np.unique(tickers, return_inverse=True)
    days, row = np.unique(sessions, return_inverse=True)
    shape = (len(days), len(names))
    gain, held = np.full(shape, np.nan), np.zeros(shape)
    gain[row, column] = earned
    below = -1.0 if section.short else 0.0
    held[row, column] = np.where(probability > section.threshold, 1.0, below)
    known = np.isfinite(gain)
    share = known / np.maximum(known.sum(axis=1, keepdims=True), 1)
    gain = np.nan_to_num(gain)
    return (
        _account(days, held * share, gain, section.cost_bps),
        _account(days, share, gain, section.cost_bps),
    )


def _account(days: np.ndarray, weights: np.ndarray, gain: np.ndarray, cost_bps: float) -> Account:
    """Weights and gains ``[m, k]``. Changes of weight are traded; drift within a session is ignored."""
    traded = np.abs(np.diff(weights, axis=0, prepend=np.zeros((1, weights.shape[1])))).sum(axis=1)
    returns = (weights * gain).sum(axis=1) - traded * cost_bps / 1e4
    return Account(days, returns, traded, np.abs(weights).sum(axis=1))
