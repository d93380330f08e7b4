"""What the network sees of a session: ratios known at its close, nothing later.

Every feature is a ratio of prices, or of traded value, within one ticker's unbroken stretch of
sessions, so it doesn't change when a later split or dividend rescales the past, and all
look back only, so features(data up to t) are the head of features(all data).
"""

from __future__ import annotations

import numpy as np

NAMES = ("return", "overnight", "range", "place", "value", "volatility", "trend")
LOOKBACK = 20
"""Sessions behind a session's volatility, trend and usual traded value."""
WARM_UP = LOOKBACK
"""First bars of a stretch without features: 20 returns need 21 closes."""


def features(
    opens: np.ndarray, high: np.ndarray, low: np.ndarray, close: np.ndarray, value: np.ndarray
) -> np.ndarray:
    """Features of one unbroken stretch: float64 ``[n, 7]``, NaN in the first ``WARM_UP`` rows.

    ========== ==========================================================================
    return     log of close over the close before
    overnight  log of open over the close before
    range      log of high over low
    place      where the close lies between low and high, -0.5 to 0.5; 0 if they are equal
    value      log of 1 + traded value, less its mean over 20 sessions
    volatility log of the root mean square of the last 20 returns
    trend      log of close, less its mean over 20 sessions
    ========== ==========================================================================

    Args:
        opens, high, low, close: Adjusted prices, float64 ``[n]``, above zero.
        value: Traded value: raw close times raw volume, which a split leaves as it is; ``[n]``.
    """
    count = len(close)
    result = np.full((count, len(NAMES)), np.nan)
    if count <= WARM_UP:
        return result
    log_close, log_value = np.log(close), np.log1p(value)
    returns = np.diff(log_close)
    spread = high - low
    now = slice(WARM_UP, count)
    result[now, 0] = returns[WARM_UP - 1 :]
    result[now, 1] = (np.log(opens[1:]) - log_close[:-1])[WARM_UP - 1 :]
    result[now, 2] = np.log(high / low)[now]
    place = np.where(spread > 0, (close - low) / np.where(spread > 0, spread, 1.0), 0.5)
    result[now, 3] = np.clip(place[now], 0.0, 1.0) - 0.5
    result[now, 4] = log_value[now] - _mean(log_value)[1:]
    # A stretch of equal closes has no volatility; the floor of a basis point keeps its log finite.
    result[now, 5] = 0.5 * np.log(np.maximum(_mean(returns**2), 1e-8))
    result[now, 6] = log_close[now] - _mean(log_close)[1:]
    return result


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean of every ``LOOKBACK`` neighbours, ``[n - LOOKBACK + 1]``.

    Each window is summed by itself and in one order: a running sum would carry rounding of
    the past along, and numpy's own order of summing depends on the array's shape.
    """
    count = len(values) - LOOKBACK + 1
    total = np.zeros(count)
    for offset in range(LOOKBACK):
        total += values[offset : offset + count]
    return total / LOOKBACK
