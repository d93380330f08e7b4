"""Prices with a planted signal of known strength, written as a person's own files would be.

The market, per ticker and session, independent of each other:

- Returns are Gaussian noise of 1% around a drift.
- With probability 0.1 a *shock* comes: the price moves by a jump up or down and the session's
  volume is high. From the next session on the price drifts *back*, until the next shock.
- Decoys: as often, a jump of the same size on ordinary volume, or high volume without a jump.
  Neither changes the drift.

The jump is as large as all the drift that follows it on average, so every shock is in the mean
fully taken back. This makes returns uncorrelated with the past at *every* lag: persistence, and any
linear model of returns, learns nothing. The direction is known to whoever finds the last session
that had both a jump and volume, anywhere in the window, and remembers its sign: one rule for a
recurrent network; for trees on flattened windows another rule at each lag, each to be learnt from
its own few examples.

With ``strength`` 0 there are neither jumps nor drift: a random walk, where nobody beats chance.
"""

from __future__ import annotations

from itertools import product
from math import erf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from domains.stocks.dates import calendar
from domains.stocks.reading import MARKER
from shared.files import atomic, write_text

if TYPE_CHECKING:
    from domains.stocks.config import StocksConfig

NOISE = 0.01
"""Standard deviation of a session's log return around its drift."""
DRIFT = 0.35 * NOISE
"""Drift against the last shock, at strength 1."""
HAZARD = 0.1
"""Chance of a shock in a session; of each kind of decoy likewise."""
JUMP = DRIFT * (1 - HAZARD) / HAZARD
"""A shock's jump: the mean of all drift until the next one."""
QUIET, HEAVY = 0.2, 2.0
"""Standard deviation of log volume, and what a shock (or a decoy) adds to it."""
FIRST, LAST = "1990-01-02", "2024-12-31"

_README = """\
SYNTHETIC prices, made by casebook (domains/stocks/synthetic.py), seed {seed}, signal strength {strength:g}.
No ticker here is a real security. Regenerate with the same seed to get the same bytes.
Columns: ticker, date (ISO), open, high, low, close (raw), adj_close (adjusted for the splits), volume.
"""


def synthesize(out: Path, config: StocksConfig, seed: int, *, strength: float = 1.0) -> None:
    """Writes one CSV a ticker, ``SYN01.csv`` and so on, and the file that says they are synthetic.

    The last session is the same whatever the number of sessions; every fourth ticker has a
    2-for-1 split in its middle, so raw closes halve there and adjusted ones don't.
    """
    count = config.synthetic.sessions
    sessions = calendar(config.data.calendar, FIRST, LAST).sessions[-count:]
    days = sessions.strftime("%Y-%m-%d").to_numpy()
    for number in range(config.synthetic.tickers):
        name = f"SYN{number + 1:02d}"
        bars = _bars(np.random.default_rng([seed, number]), len(days), strength)
        split = len(days) // 2 if number % 4 == 0 else 0
        _write(out / f"{name}.csv", name, days, bars, split)
    write_text(out / MARKER, _README.format(seed=seed, strength=strength))


def _bars(rng: np.random.Generator, count: int, strength: float) -> dict[str, np.ndarray]:
    """Adjusted prices and volume of one ticker, float64 ``[count]`` each."""
    shock, jump_only, volume_only = rng.random((3, count)) < HAZARD
    sign = np.where(rng.random((2, count)) < 0.5, -1.0, 1.0)
    # The drift of session t answers the last shock before t; before the first there is none.
    last = np.maximum.accumulate(np.where(shock, np.arange(count), -1))
    before = np.concatenate([[-1], last[:-1]])
    drift = np.where(before >= 0, -sign[0][before], 0.0) * DRIFT * ~shock
    jump = (shock * sign[0] + (jump_only & ~shock) * sign[1]) * JUMP
    returns = NOISE * rng.standard_normal(count) + strength * (drift + jump)
    close = 40.0 * np.exp(np.cumsum(returns))
    before_close = np.concatenate([[40.0], close[:-1]])
    opens = before_close * np.exp(0.3 * returns + 0.003 * rng.standard_normal(count))
    wick = np.abs(0.004 * rng.standard_normal((2, count)))
    heavy = shock | (volume_only & ~jump_only)
    volume = 1e6 * np.exp(QUIET * rng.standard_normal(count) + HEAVY * heavy)
    return {
        "open": opens,
        "high": np.maximum(opens, close) * np.exp(wick[0]),
        "low": np.minimum(opens, close) * np.exp(-wick[1]),
        "close": close,
        "volume": volume,
        # Known at the close: the direction of the drift from the next session on.
        "direction": np.where(last >= 0, -sign[0][last], 0.0),
    }


def _write(path: Path, name: str, days: np.ndarray, bars: dict[str, np.ndarray], split: int) -> None:
    factor = np.where(np.arange(len(days)) < split, 2.0, 1.0)
    lines = ["ticker,date,open,high,low,close,adj_close,volume"]
    for i, day in enumerate(days):
        raw = ",".join(f"{bars[column][i] * factor[i]:.4f}" for column in ("open", "high", "low", "close"))
        lines.append(f"{name},{day},{raw},{bars['close'][i]:.4f},{bars['volume'][i] / factor[i]:.0f}")
    with atomic(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def optimal_auroc(horizon: int, *, strength: float = 1.0, window: int | None = None) -> float:
    """The AUROC of someone who knows the rule and sees the past: no model can do better on average.

    Up and down are equally likely beforehand and the past tells one bit, the direction of the drift,
    so the best score has two values and its AUROC equals the chance p that the
    close moves as the drift does: summed over what may happen in each of the ``horizon`` sessions
    (drift goes on, decoy jump up or down, shock up or down), the Gaussian noise integrated.

    Args:
        window: Sessions seen; the last shock lies before them with probability 0.9^window,
            and then there is nothing to know. None: all of the past.
    """
    noise = NOISE * sqrt(horizon)
    right = 0.0
    for events in product(range(5), repeat=horizon):
        chance, mean, direction = 1.0, 0.0, 1.0
        for event in events:
            if event >= 3:  # a shock, which turns the drift against itself
                sign = 1.0 if event == 3 else -1.0
                chance *= HAZARD / 2
                mean += sign * JUMP
                direction = -sign
            else:
                decoy = (0.0, 1.0, -1.0)[event]
                chance *= (1 - HAZARD) * ((1 - HAZARD) if event == 0 else HAZARD / 2)
                mean += direction * DRIFT + decoy * JUMP
        right += chance * 0.5 * (1 + erf(strength * mean / (noise * sqrt(2))))
    unseen = 0.0 if window is None else (1 - HAZARD) ** window
    return (1 - unseen) * right + unseen * 0.5
