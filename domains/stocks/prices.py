"""From bars as read to bars that can be trusted: one a session, settled, finite, adjusted.

A row is either used as it is or set aside with its reason. Nothing is repaired, filled
or invented: what looks like a split without a known action stays what it is, a move.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.stocks.dates import covering
from domains.stocks.reading import Bars
from domains.stocks.tables import NEEDED, PRICES
from shared.contract import Quarantined
from shared.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from domains.stocks.config import DataSection

_OUTSIDE = 0.01
"""Vendors round: an open or close outside [low, high] by less than this share is taken as it is."""
_FIRST_DAY = np.datetime64("1700-01-01", "s")
_LARGEST = 1e15
"""Above it a number is damage: products and squares of such numbers would not be finite."""
_JUMP = 0.4
"""One-session log return above which a person is told: a crash, or a split that nobody adjusted."""


@dataclass
class Prices:
    """Clean bars, sorted by ticker and session.

    Attributes:
        table: ticker, session (datetime64[s]), open, high, low, close, adj_close, volume (float64; raw,
            not adjusted), and ``ordinal`` (int64): the session's number in the exchange's calendar,
            so that neighbours differ by one.
        quarantine: What was set aside, row by row.
        warnings: What a person should know before trusting results.
        adjusted: How prices will be adjusted, ``"adj_close"`` or ``"none"``.
    """

    table: pd.DataFrame
    quarantine: list[Quarantined] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    adjusted: str = "adj_close"


def clean(bars: Bars, section: DataSection, *, now: Any = None) -> Prices:
    """Judges every bar of ``bars``.

    Args:
        now: pandas Timestamp with a zone; default: the clock. A bar of a session that
            hasn't closed by then is not settled and is left out.

    Raises:
        InputError: Two different bars of one ticker and session; most days aren't sessions
            of the exchange; nothing is left; adjusted prices are asked for and not there.
    """
    import pandas as pd

    now = pd.Timestamp.now("UTC") if now is None else now
    prices = Prices(bars.table, list(bars.quarantine))
    if bars.table.empty:
        raise InputError(f"{bars.title}: no row can be used. {_first(prices.quarantine)}", NEEDED)
    prices.adjusted = _adjustment(prices, section)
    _set_aside(prices, *_broken(prices.table, prices.adjusted))
    _one_a_session(prices)
    _sessions_only(prices, section, now)
    if prices.table.empty:
        raise InputError(
            f"{bars.title}: all {len(prices.quarantine)} rows were set aside. {_first(prices.quarantine)}",
            NEEDED,
        )
    table = prices.table.sort_values(["ticker", "session"], kind="stable").reset_index(drop=True)
    prices.table = table.drop(columns=["file", "row"])
    _warn_of_jumps(prices)
    if not (table["volume"] > 0).any():
        prices.warnings.append("There is no volume: its feature is zero throughout.")
    prices.table["volume"] = prices.table["volume"].fillna(0.0)
    return prices


def _first(quarantine: list[Quarantined]) -> str:
    return f"The first: {quarantine[0].item}: {quarantine[0].reason}." if quarantine else ""


def _adjustment(prices: Prices, section: DataSection) -> str:
    has = prices.table["adj_close"].notna()
    if section.adjust == "none":
        prices.warnings.append("Prices are used as they are (data.adjust = none): splits look like crashes.")
        return "none"
    missing = sorted(set(prices.table["ticker"]) - set(prices.table["ticker"][has]))
    if not missing:
        return "adj_close"
    if has.any() or section.adjust == "adj_close":
        # Adjusted and unadjusted prices side by side would be two kinds of return in one feature.
        raise InputError(
            f"There is no adjusted close for {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}.",
            "Give a column adj_close for every ticker, or set --data.adjust none to use prices as they are.",
        )
    prices.warnings.append(
        "There is no adjusted close: prices are used as they are, so a split that they "
        "don't already contain looks like a crash."
    )
    return "none"


def _broken(table: pd.DataFrame, adjusted: str) -> tuple[np.ndarray, np.ndarray]:
    """Where a bar cannot be used, and why: bool ``[n]`` and text ``[n]``."""
    columns = [*PRICES, "adj_close"] if adjusted == "adj_close" else list(PRICES)
    values = table[columns].to_numpy(np.float64)
    reason = np.full(len(table), "", object)
    with np.errstate(invalid="ignore"):
        body = values[:, [0, 3]]
        high, low = values[:, 1], values[:, 2]
        reason[(body.max(1) > high * (1 + _OUTSIDE)) | (body.min(1) < low * (1 - _OUTSIDE))] = (
            "open or close lies outside low to high"
        )
        reason[high < low] = "high is below low"
        reason[table["volume"].to_numpy() < 0] = "volume is negative"
        for position, name in enumerate(columns):
            for where, why in (
                (values[:, position] <= 0, "not above zero"),
                ((values[:, position] > 0) & (values[:, position] < 1 / _LARGEST), "too small for a price"),
                (np.isnan(values[:, position]), "empty"),
            ):
                reason[where] = f"{name} is {why}"
            reason[values[:, position] > _LARGEST] = f"{name} is beyond any price"
            reason[np.isinf(values[:, position])] = f"{name} is infinite"
    reason[table["volume"].to_numpy() > _LARGEST] = "volume is beyond any trade"
    reason[np.isnan(values).all(1)] = "an empty row"
    return reason != "", reason


def _set_aside(prices: Prices, where: np.ndarray, reason: np.ndarray) -> None:
    table = prices.table
    for i in np.flatnonzero(where):
        row = table.iloc[i]
        item = f"{row['file']} row {row['row']}"
        prices.quarantine.append(Quarantined(item, f"{row['ticker']} {row['session']:%Y-%m-%d}: {reason[i]}"))
    prices.table = table[~where]


def _one_a_session(prices: Prices) -> None:
    table = prices.table
    keys = ["ticker", "session"]
    again = table.duplicated(keys, keep="first").to_numpy()
    if not again.any():
        return
    same = table.duplicated([*keys, *PRICES, "adj_close", "volume"], keep="first").to_numpy()
    for i in np.flatnonzero(again & ~same):
        row = table.iloc[i]
        group = table[(table["ticker"] == row["ticker"]) & (table["session"] == row["session"])]
        where = " and ".join(
            f"{file} row {line}" for file, line in zip(group["file"], group["row"], strict=True)
        )
        raise InputError(
            f"{row['ticker']} has different bars for {row['session']:%Y-%m-%d}: {where}; "
            f"close {' and '.join(f'{close:g}' for close in group['close'])}.",
            "Leave the right one; nobody can tell from the file which that is.",
        )
    _set_aside(prices, again, np.full(len(table), "the same bar again", object))


def _sessions_only(prices: Prices, section: DataSection, now: Any) -> None:
    import pandas as pd

    days = prices.table["session"].to_numpy("datetime64[s]")
    today = np.datetime64(now.tz_convert("UTC").tz_localize(None), "s")
    # A slip in a year would ask for a calendar of centuries, which there is not.
    early, late = days < _FIRST_DAY, days > today + np.timedelta64(2, "D")
    _set_aside(
        prices, early | late, np.where(late, "the session has not closed yet", "before there were exchanges")
    )
    table = prices.table
    if table.empty:
        return
    first = f"{table['session'].min() - pd.Timedelta(days=7):%Y-%m-%d}"
    last = f"{max(table['session'].max(), now.tz_localize(None)) + pd.Timedelta(days=7):%Y-%m-%d}"
    exchange = covering(section.calendar, first, last)
    sessions = exchange.sessions.to_numpy("datetime64[s]")
    days = table["session"].to_numpy("datetime64[s]")
    place = np.minimum(np.searchsorted(sessions, days), len(sessions) - 1)
    known = sessions[place] == days
    if known.mean() < 0.9:
        example = pd.Timestamp(days[~known][0])
        raise InputError(
            f"Only {known.mean():.0%} of the rows lie on sessions of {section.calendar}; "
            f"{example:%A %Y-%m-%d} does not.",
            "Set --data.calendar to the exchange of these prices, e.g. XLON, XFRA, XTKS, or 24/7.",
        )
    closes = exchange.closes.to_numpy("datetime64[s]")[place]
    unsettled = known & (closes > today)
    reason = np.where(unsettled, "the session has not closed yet", f"not a session of {section.calendar}")
    prices.table = table.assign(ordinal=place)
    _set_aside(prices, ~known | unsettled, reason)
    # From the earliest bar on, whatever the calendar reaches back to.
    ordinal = prices.table["ordinal"].astype(np.int64)
    prices.table = prices.table.assign(ordinal=ordinal - (0 if ordinal.empty else ordinal.min()))


def adjust(table: pd.DataFrame, adjusted: str) -> pd.DataFrame:
    """Open, high, low, close on one scale: all four times ``adj_close / close``.

    With ``"none"`` prices are returned as they are. Levels of adjusted prices carry the
    future (each later split and dividend rescales the past), ratios of them don't: only
    ratios may become features.
    """
    if adjusted == "none":
        return table
    factor = table["adj_close"].to_numpy() / table["close"].to_numpy()
    return table.assign(**{name: table[name].to_numpy() * factor for name in PRICES})


def _warn_of_jumps(prices: Prices) -> None:
    table = adjust(prices.table, prices.adjusted)
    close, ticker = np.log(table["close"].to_numpy()), table["ticker"].to_numpy()
    step = np.diff(close)
    jumps = np.flatnonzero((np.abs(step) > _JUMP) & (ticker[1:] == ticker[:-1])) + 1
    for i in jumps[:10]:
        prices.warnings.append(
            f"{ticker[i]} moved {np.expm1(step[i - 1]):+.0%} on {table['session'].iloc[i]:%Y-%m-%d}; "
            "no known action explains it, so it is kept as a real move."
        )
    if len(jumps) > 10:
        prices.warnings.append(f"{len(jumps) - 10} more moves of that size.")
