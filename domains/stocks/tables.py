"""One file of daily bars, whatever its shape, as a table of ours.

CSV and Parquet; one ticker or many; yfinance's two levels of columns. Nothing is guessed: what
may mean two things is refused, or the row is set aside with its line number.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from domains.stocks.dates import session_dates
from shared.contract import Quarantined

if TYPE_CHECKING:
    import pandas as pd

    from domains.stocks.config import DataSection

SUFFIXES = (".csv", ".csv.gz", ".parquet")
PRICES = ("open", "high", "low", "close")
NUMBERS = (*PRICES, "adj_close", "volume")
COLUMNS = ("ticker", "session", *NUMBERS, "file", "row")
NEEDED = "Daily bars need the columns date, open, high, low, close (adj_close, volume, ticker if there are)."
_ALIASES = {
    "date": "date",
    "datetime": "date",
    "timestamp": "date",
    "session": "date",
    "ticker": "ticker",
    "symbol": "ticker",
    "adjclose": "adj_close",
    "adjustedclose": "adj_close",
    "vol": "volume",
    **{name: name for name in ("open", "high", "low", "close", "volume")},
}
_MISSING = frozenset({"", "nan", "null", "none", "n/a", "na", "-"})
# Thousands must be grouped in full: "1,234.5" is a number, "1,23" is somebody else's format.
_GROUPED = {
    ".": re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?"),
    ",": re.compile(r"[+-]?\d{1,3}(\.\d{3})*(,\d+)?|[+-]?\d+(,\d+)?"),
}


class Unreadable(Exception):
    """This file, as a whole, is not a table of daily bars."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def read_file(file: Path, section: DataSection) -> tuple[pd.DataFrame, list[Quarantined]]:
    """The bars of one file, columns :data:`COLUMNS`, and the rows that could not be read.

    Raises:
        Unreadable: Neither CSV nor Parquet, no header, or a column is missing.
        InputError: A date that is not certain.
    """
    if file.name.lower().endswith(".parquet"):
        cells = _parquet_cells(file)
    elif file.name.lower().endswith((".csv", ".csv.gz")):
        cells = _csv_cells(file)
    else:
        raise Unreadable(
            f"is neither CSV nor Parquet (suffix {file.suffix!r}).", f"Known: {', '.join(SUFFIXES)}."
        )
    return _parse(cells, file.name, section)


def read_frame(raw: pd.DataFrame, name: str, section: DataSection) -> tuple[pd.DataFrame, list[Quarantined]]:
    """The bars of a table in memory, one row a bar, as :func:`read_file` gives those of a file.

    Args:
        name: The ticker, where no column says it; rows are named after it.
    """
    import pandas as pd

    rows = pd.Series(np.arange(1, len(raw) + 1))
    cells = _flatten(raw, [str(column) for column in raw.columns], None, rows)
    return _parse(cells, name, section)


def _csv_cells(file: Path) -> pd.DataFrame:
    """Every cell as text, under our names of the columns, with the line number as ``row``."""
    import pandas as pd

    try:
        raw = pd.read_csv(
            file,
            header=None,
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
            sep=_separator(file),
            encoding="utf-8-sig",
        )
    except (OSError, EOFError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise Unreadable(
            f"cannot be read as CSV: {' '.join(str(error).split())}.", "Save it again as CSV in UTF-8."
        ) from error
    raw["row"] = np.arange(1, len(raw) + 1)
    raw = raw[(raw.drop(columns="row") != "").any(axis=1)]
    if raw.empty:
        raise Unreadable("is empty.", "Give a file with a header and daily bars.")
    width = raw.shape[1] - 1
    fields, tickers, lines = _header([list(raw.iloc[i, :width]) for i in range(min(3, len(raw)))])
    body = raw.iloc[lines:]
    return _flatten(body.drop(columns="row"), fields, tickers, body["row"])


def _separator(file: Path) -> str:
    import gzip

    opener = gzip.open if file.name.lower().endswith(".gz") else open
    try:
        with opener(file, "rt", encoding="utf-8-sig", errors="replace") as stream:
            first = stream.readline()
    except (OSError, EOFError) as error:
        raise Unreadable(
            f"cannot be read: {str(error).rstrip('.')}.", "Copy it again, with rights to read it."
        ) from error
    return max(",;\t|", key=first.count)


def _header(first: list[list[str]]) -> tuple[list[str], list[str] | None, int]:
    """Fields, tickers (of yfinance's two levels; else None) and number of header lines."""
    known = [sum(field_name(cell) is not None for cell in line) for line in first]
    if len(first) == 3 and field_name(first[2][0]) == "date" and not any(first[2][1:]):
        level = 0 if known[0] >= known[1] else 1
        return ["date", *first[level][1:]], ["", *first[1 - level][1:]], 3
    if known[0] < 2:
        line = ", ".join(first[0][:6])[:80]
        raise Unreadable(
            f"has no header: its first line is {line!r}."
            if line.isprintable()
            else "has no header: its first line is not text.",
            "Put a line with the names of the columns on top: date,open,high,low,close,adj_close,volume.",
        )
    return first[0], None, 1


def field_name(name: object) -> str | None:
    return _ALIASES.get(re.sub(r"[^a-z]", "", str(name).lower()))


def _flatten(
    body: pd.DataFrame, fields: list[str], tickers: list[str] | None, rows: pd.Series
) -> pd.DataFrame:
    """Columns under our names; two-level columns become one block of rows a ticker."""
    import pandas as pd

    def block(positions: list[int]) -> pd.DataFrame:
        names = {position: field_name(fields[position]) for position in positions}
        twice = [name for name in set(names.values()) if name and list(names.values()).count(name) > 1]
        if twice:
            raise Unreadable(
                f"has two columns that mean {twice[0]!r}.", "Leave one of them, or give a column of tickers."
            )
        part = body.iloc[:, [position for position in positions if names[position]]].copy()
        part.columns = pd.Index([name for name in names.values() if name])
        part["row"] = rows.to_numpy()
        return part

    if tickers is None:
        return block(list(range(len(fields))))
    blocks = []
    for ticker in dict.fromkeys(name for name in tickers if name):
        part = block([0] + [i for i, name in enumerate(tickers) if name == ticker])
        # Beside other tickers, a day on which this one did not trade is an empty cell, not a fault.
        cells = part.drop(columns=["date", "row"])
        part = part[~(cells.isna() | (cells == "")).all(axis=1)]
        part["ticker"] = ticker
        blocks.append(part)
    return pd.concat(blocks, ignore_index=True)


def _parquet_cells(file: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        raw = pd.read_parquet(file)
    except Exception as error:  # pyarrow raises its own kinds, OSError and ValueError alike
        raise Unreadable(
            f"cannot be read as Parquet: {str(error).splitlines()[0].rstrip('.')}.",
            "Copy it again, or save the bars as CSV.",
        ) from error
    if not isinstance(raw.index, pd.RangeIndex):
        names = [field_name(name) for name in raw.index.names]
        raw.index.names = [
            name or ("date" if isinstance(raw.index, pd.DatetimeIndex) else f"level_{number}")
            for number, name in enumerate(names)
        ]
        raw = raw.reset_index()
    rows = pd.Series(np.arange(1, len(raw) + 1))
    if raw.columns.nlevels == 2:
        levels = [[str(name[level]) for name in raw.columns] for level in (0, 1)]
        known = [sum(field_name(name) is not None for name in level) for level in levels]
        which = 0 if known[0] >= known[1] else 1
        fields, tickers = levels[which], levels[1 - which]
        # The date, once an index, has a name at one level only.
        dates = [i for i, pair in enumerate(zip(*levels, strict=True)) if "date" in map(field_name, pair)][:1]
        order = dates + [i for i in range(len(fields)) if i not in dates]
        fields = ["date", *(fields[i] for i in order[1:])] if dates else fields
        tickers = ["", *(tickers[i] for i in order[1:])] if dates else tickers
        return _flatten(raw.iloc[:, order], fields, tickers, rows)
    return _flatten(raw, [str(name) for name in raw.columns], None, rows)


def _parse(cells: pd.DataFrame, file: str, section: DataSection) -> tuple[pd.DataFrame, list[Quarantined]]:
    import pandas as pd

    for part in ("date", *PRICES):
        if part not in cells:
            found = ", ".join(str(name) for name in cells.columns if name != "row")
            raise Unreadable(f"has no column {part!r}; it has {found}.", NEEDED)
    sessions, undated = session_dates(cells["date"], cells["row"], file, section)
    table = pd.DataFrame({"session": sessions})
    stem = re.sub(r"\.(csv|csv\.gz|parquet)$", "", file, flags=re.IGNORECASE)
    table["ticker"] = cells["ticker"].astype(str).str.strip().to_numpy() if "ticker" in cells else stem
    table["file"], table["row"] = file, cells["row"].to_numpy()
    quarantine, bad = [], np.zeros(len(table), bool)
    for at in sorted(undated):
        cell = str(cells["date"].iloc[at]).strip()
        quarantine.append(
            Quarantined(f"{file} row {table['row'].iloc[at]}", f"column date: {cell!r} {undated[at]}")
        )
        bad[at] = True
    for name in NUMBERS:
        if name not in cells:
            table[name] = np.nan
            continue
        values, wrong = _numbers(cells[name], section.decimal)
        table[name] = values
        for i in np.flatnonzero(wrong & ~bad):
            quarantine.append(
                Quarantined(
                    f"{file} row {table['row'].iloc[i]}",
                    f"column {name}: {str(cells[name].iloc[i])!r} is not a number (decimal mark {section.decimal!r})",
                )
            )
        bad |= wrong
    nameless = (table["ticker"] == "").to_numpy() & ~bad
    quarantine += [Quarantined(f"{file} row {row}", "has no ticker") for row in table["row"][nameless]]
    return table.loc[~(bad | nameless), list(COLUMNS)], quarantine


def _numbers(cells: pd.Series, decimal: str) -> tuple[np.ndarray, np.ndarray]:
    """float64 values (NaN where empty), and where a cell holds something that is no number."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells.dtype):
        return cells.to_numpy(np.float64, na_value=np.nan), np.zeros(len(cells), bool)
    text = cells.fillna("").astype(str).str.strip()
    empty = text.str.lower().isin(_MISSING).to_numpy(bool)
    grouped = text.str.fullmatch(_GROUPED[decimal]).to_numpy(bool)
    other = "," if decimal == "." else "."
    cleaned = text.where(
        ~grouped, text.str.replace(other, "", regex=False).str.replace(",", ".", regex=False)
    )
    if decimal == ",":
        cleaned = cleaned.where(grouped, "")
    values = pd.to_numeric(cleaned, errors="coerce").to_numpy(np.float64)
    return values, np.isnan(values) & ~empty
