"""The prepared data: every session's features, and the windows that may be cut from them.

A window is ``window.sessions`` rows of one ticker on sessions that follow each other on
the exchange without a hole. It never crosses tickers, never bridges a missing bar and
is never padded: a ticker with too little history has no window and is named.

The label of the window that ends at session t is 1 if the adjusted close of session
t + horizon is above that of session t, else 0 (a tie is not up). An unbroken stretch of n
bars has n - WARM_UP rows with features, and n - WARM_UP - L - h + 1 windows with a label.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from domains.stocks import features
from domains.stocks.prices import adjust
from shared.files import write_npz

if TYPE_CHECKING:
    import pandas as pd

    from domains.stocks.config import WindowSection


@dataclass(frozen=True)
class Panel:
    """One row a bar, sorted by ticker and session.

    Attributes:
        tickers: str ``[k]``, in alphabetical order.
        ticker: int32 ``[rows]``, position in ``tickers``.
        session: datetime64[D] ``[rows]``.
        place: int64 ``[rows]``, the bar's number in its unbroken stretch, from 0.
        left: int64 ``[rows]``, bars that follow in the stretch; 0 at its last bar.
        open, close: Adjusted prices, float64 ``[rows]``.
        inputs: Features, float32 ``[rows, 7]``, NaN in a stretch's first WARM_UP rows.
    """

    tickers: np.ndarray
    ticker: np.ndarray
    session: np.ndarray
    place: np.ndarray
    left: np.ndarray
    open: np.ndarray
    close: np.ndarray
    inputs: np.ndarray

    def save(self, path: Path) -> None:
        write_npz(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> Panel:
        with np.load(path) as arrays:
            return cls(**{name: arrays[name] for name in cls.__dataclass_fields__})

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, array in vars(self).items():
            digest.update(f"{name}{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def key(self, rows: np.ndarray) -> np.ndarray:
        """``"AAPL/2010-03-01"`` for each of ``rows``, str ``[n]``."""
        names = self.tickers[self.ticker[rows]]
        return np.char.add(np.char.add(names, "/"), self.session[rows].astype(str))


def build(table: pd.DataFrame, adjusted: str) -> Panel:
    """The panel of clean bars (:class:`domains.stocks.prices.Prices`)."""
    names = table["ticker"].to_numpy(str)
    tickers, ticker = np.unique(names, return_inverse=True)
    ordinal = table["ordinal"].to_numpy(np.int64)
    value = table["close"].to_numpy() * table["volume"].to_numpy()
    scaled = adjust(table, adjusted)
    opens, high, low, close = (scaled[name].to_numpy(np.float64) for name in ("open", "high", "low", "close"))
    starts = np.flatnonzero((np.diff(ticker, prepend=-1) != 0) | (np.diff(ordinal, prepend=-1) != 1))
    ends = np.append(starts[1:], len(table))
    inputs = np.empty((len(table), len(features.NAMES)), np.float32)
    place, left = np.empty(len(table), np.int64), np.empty(len(table), np.int64)
    for start, end in zip(starts, ends, strict=True):
        part = slice(start, end)
        inputs[part] = features.features(opens[part], high[part], low[part], close[part], value[part])
        place[part] = np.arange(end - start)
        left[part] = place[part][::-1]
    return Panel(
        tickers=tickers,
        ticker=ticker.astype(np.int32),
        session=table["session"].to_numpy("datetime64[D]"),
        place=place,
        left=left,
        open=opens,
        close=close,
        inputs=inputs,
    )


def window_ends(panel: Panel, window: WindowSection) -> np.ndarray:
    """Rows at which a full window ends, with or without a label: int64 ``[n]``, by session then ticker."""
    rows = np.flatnonzero(panel.place >= features.WARM_UP + window.sessions - 1)
    return rows[np.lexsort((panel.ticker[rows], panel.session[rows]))]


@dataclass(frozen=True)
class Examples:
    """The domain's fixed numbering: windows with a label, by session and, within one, by ticker.

    Attributes:
        rows: int64 ``[n]``, the panel's row at which the window ends.
        keys: str ``[n]``, ``"AAPL/2010-03-01"``: ticker and last session of the window.
        sessions: datetime64[D] ``[n]``, the last session of the window.
        label_ends: datetime64[D] ``[n]``, the session that decides the label.
        truth: float32 ``[n, 2]``: up (1 or 0); and what the next session would have earned a
            buyer, from its open to the open after (NaN where that isn't known yet).
    """

    rows: np.ndarray
    keys: np.ndarray
    sessions: np.ndarray
    label_ends: np.ndarray
    truth: np.ndarray


def examples_of(panel: Panel, window: WindowSection) -> Examples:
    """All windows of ``panel`` that have a label."""
    ends = window_ends(panel, window)
    rows = ends[panel.left[ends] >= window.horizon]
    ahead = rows + window.horizon
    up = panel.close[ahead] > panel.close[rows]
    # A signal at close t can be traded at the open of t+1 at the earliest: it earns from there on.
    known = panel.left[rows] >= 2
    following = np.minimum(rows + 2, len(panel.open) - 1)
    earned = np.where(
        known, panel.open[following] / panel.open[np.minimum(rows + 1, len(panel.open) - 1)] - 1, np.nan
    )
    return Examples(
        rows=rows,
        keys=panel.key(rows),
        sessions=panel.session[rows],
        label_ends=panel.session[ahead],
        truth=np.stack([up, earned], axis=1).astype(np.float32),
    )


def windows(panel: Panel, rows: np.ndarray, sessions: int) -> np.ndarray:
    """The windows that end at ``rows``: float32 ``[n, sessions, 7]``."""
    return panel.inputs[rows[:, None] + np.arange(1 - sessions, 1)]


def too_short(panel: Panel, window: WindowSection, *, labelled: bool) -> dict[str, str]:
    """Tickers without a single window (with a label, or as of their last bar), each with the reason."""
    needed = features.WARM_UP + window.sessions + (window.horizon if labelled else 0)
    reasons = {}
    for number, name in enumerate(panel.tickers):
        mine = panel.ticker == number
        longest = int(panel.place[mine].max() if labelled else panel.place[mine][-1]) + 1
        if longest < needed:
            reasons[str(name)] = (
                f"its {'longest' if labelled else 'last'} unbroken stretch has {longest} sessions, {needed} are "
                f"needed: {features.WARM_UP} warm-up, {window.sessions} window"
                + (f", {window.horizon} horizon" if labelled else "")
            )
    return reasons
