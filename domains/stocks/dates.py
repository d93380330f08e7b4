"""Cells that hold dates, read as sessions of an exchange."""

from __future__ import annotations

import contextlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

    from domains.stocks.config import DataSection

_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?( ?(Z|[+-]\d{2}:?\d{2}))?")
_COMPACT = re.compile(r"\d{8}")
_SPORADIC = 0.1
"""Up to this share of a file's dates may be faulty; beyond, the format itself isn't known."""


@lru_cache(maxsize=8)
def calendar(name: str, first: str, last: str) -> Any:
    """The exchange's calendar with its sessions from ``first`` to ``last`` (ISO dates).

    Raises:
        InputError: No exchange of that name.
    """
    import exchange_calendars

    try:
        return exchange_calendars.get_calendar(name, start=first, end=last)
    except exchange_calendars.errors.InvalidCalendarName as error:
        known = exchange_calendars.get_calendar_names(include_aliases=False)
        raise InputError(
            f"data.calendar: there is no exchange {name!r}.", did_you_mean(name, known)
        ) from error
    except ValueError as error:
        raise InputError(
            f"The calendar {name} does not reach from {first} to {last}: {error}",
            "Use data within its years, or another data.calendar.",
        ) from error


_kept: dict[str, tuple[str, str, Any]] = {}


def covering(name: str, first: str, last: str) -> Any:
    """A calendar that holds at least the sessions from ``first`` to ``last`` (ISO dates); it reaches further.

    The widest one so far is kept: making one takes 0.2 s, which an answer in real time cannot wait
    for. So it is made wider than asked, too: the next bars may begin a day earlier, or end a day later.

    Raises: as :func:`calendar`.
    """
    earliest, latest, kept = _kept.get(name, (first, last, None))
    if kept is not None and earliest <= first and last <= latest:
        return kept
    first, last = min(first, earliest), max(last, latest)
    year, after = int(first[:4]), int(last[:4])
    wider = f"{year - 2:04d}-01-01", f"{after:04d}-12-31"
    try:
        made = calendar(name, *wider)
        first, last = wider
    except InputError:  # exchanges were not always there, and nobody knows their sessions for ever
        made = calendar(name, first, last)
    _kept[name] = (first, last, made)
    return made


def session_dates(
    cells: pd.Series, rows: pd.Series, file: str, section: DataSection
) -> tuple[np.ndarray, dict[int, str]]:
    """The session that each cell names: datetime64[s] ``[n]`` at midnight, without a zone.

    A cell is a date (``2010-03-01``, ``20100301``), a timestamp, or text in
    ``section.date_format``. Midnight in the cell's own zone names a day and is kept as that
    day; any other moment with a zone is read on the exchange's clock before the zone is
    dropped: 2020-01-02T05:00Z is the New York session of 2 January.

    Returns:
        The sessions, NaT where a cell is no certain date; and those cells' positions with the reason.

    Raises:
        InputError: More than a tenth of the cells are no date, or may be two dates: then the file's
            format isn't known. Names file, row and cell.
    """
    import pandas as pd

    result = np.full(len(cells), "NaT", "datetime64[s]")
    wrong: dict[int, str] = {}
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        stamps = pd.DatetimeIndex(cells)
        wrong = dict.fromkeys(np.flatnonzero(stamps.isna()).tolist(), "is empty")
        result[stamps.notna()] = _days(stamps[stamps.notna()], section)
    elif section.date_format:
        days = pd.to_datetime(
            cells.astype(str).str.strip(), format=section.date_format, errors="coerce", utc=False
        )
        known = days.notna().to_numpy(bool)
        wrong = dict.fromkeys(np.flatnonzero(~known).tolist(), f"does not match {section.date_format!r}")
        result[known] = _days(pd.DatetimeIndex(days[known]), section)
    else:
        text = cells.astype(str).str.strip()
        iso = text.str.fullmatch(_ISO).to_numpy(bool) | text.str.fullmatch(_COMPACT).to_numpy(bool)
        wrong = dict.fromkeys(np.flatnonzero(~iso).tolist(), "is not an ISO date")
        bare = iso & text.str.len().isin((8, 10)).to_numpy(bool)
        days = pd.to_datetime(text[bare].str.replace("-", ""), format="%Y%m%d", errors="coerce")
        result[bare] = days.to_numpy("datetime64[s]")
        # Offsets change with daylight saving, so stamps are read one by one; they are rare.
        for i in np.flatnonzero(iso & ~bare):
            with contextlib.suppress(ValueError):
                result[i] = _days(pd.DatetimeIndex([pd.Timestamp(text.iloc[i])]), section)[0]
        for i in np.flatnonzero(iso & np.isnat(result)):
            wrong[int(i)] = "is not a day of the calendar"
    if len(wrong) > _SPORADIC * len(cells):
        where = min(wrong)
        _refuse(file, rows.iloc[where], str(cells.iloc[where]).strip(), wrong[where])
    return result, wrong


def _days(stamps: pd.DatetimeIndex, section: DataSection) -> np.ndarray:
    if stamps.tz is not None:
        own = stamps.tz_localize(None)
        zone = calendar(section.calendar, "2020-01-01", "2020-01-31").tz
        local = stamps.tz_convert(zone).tz_localize(None)
        stamps = own.where(own == own.normalize(), local)
    return stamps.normalize().to_numpy("datetime64[s]")


def _refuse(file: str, row: int, cell: str, why: str) -> None:
    raise InputError(
        f"{file} row {row}, column date: {cell!r} {why}; the day cannot be known for certain.",
        "Write dates as 2010-03-01, or state the format, e.g. --data.date_format %d/%m/%Y.",
    )
