"""Files and embedded sources of daily prices, read into one table of bars.

What a person has comes in many shapes: a long file with a ticker column, a file per
ticker, a folder of those, yfinance's two header lines. All become one table::

    ticker  session     open high low close adj_close volume  file  row

with float64 prices (NaN where a cell is empty) and the file and line each bar came from,
so that whatever is wrong later can be named. Nothing is guessed: a date that could mean
two days, a number in an unknown format or a file without header is refused or set aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from domains.stocks.tables import COLUMNS, NEEDED, NUMBERS, SUFFIXES, Unreadable, field_name, read_file
from shared.contract import Quarantined
from shared.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

    from domains.stocks.config import DataSection

EMBEDDED = ("bokeh", "sp500", "nasdaq")
MARKER = "SYNTHETIC.txt"
"""A folder that holds this file says of itself that its prices were made up."""


@dataclass
class Bars:
    """Bars as read, before anything is judged.

    Attributes:
        table: DataFrame with the columns :data:`COLUMNS`, in the order of the files.
        title: What the source is, in a line.
        synthetic: The source says of itself that it is made up.
        quarantine: Rows and files that could not be read.
    """

    table: pd.DataFrame
    title: str
    synthetic: bool = False
    quarantine: list[Quarantined] = field(default_factory=list)


def read(source: str, section: DataSection) -> Bars:
    """Reads ``source``: the name of an embedded source, a file, or a folder.

    In a folder an unreadable file is set aside with its reason; alone it is refused.

    Raises:
        InputError: No such source, no readable file in it, an ambiguous date, no such ticker.
    """
    if source in EMBEDDED:
        bars = _embedded(source)
    else:
        bars = _from_files(Path(source).expanduser(), section)
    return _only(bars, section.tickers)


def _from_files(path: Path, section: DataSection) -> Bars:
    import pandas as pd

    folder = path.is_dir()
    files = sorted(_files_in(path)) if folder else [path]
    if not path.exists():
        raise InputError(
            f"There is no file, folder or embedded source {str(path)!r}.",
            did_you_mean(str(path), [*EMBEDDED, "synthetic"]),
        )
    if not files:
        raise InputError(
            f"The folder {path} holds no price file: expected *.csv, *.csv.gz or *.parquet.",
            "Give a folder of one file per ticker, or a file with a ticker column.",
        )
    tables, quarantine = [], []
    for file in files:
        try:
            table, rejected = read_file(file, section)
        except Unreadable as error:
            if not folder:
                raise InputError(f"{file.name}: {error}", error.remedy) from error
            quarantine.append(Quarantined(file.name, str(error)))
            continue
        tables.append(table)
        quarantine += rejected
    if not tables:
        raise InputError(
            f"None of the {len(files)} files in {path} can be read; the first: "
            f"{quarantine[0].item}: {quarantine[0].reason}",
            NEEDED,
        )
    marked = (path if folder else path.parent) / MARKER
    table = pd.concat(tables, ignore_index=True)
    kind = "a folder of " + str(len(files)) + " files" if folder else "one file"
    return Bars(table, f"Daily bars from {path.name} ({kind})", marked.exists(), quarantine)


def _files_in(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_file() and not path.name.startswith(".") and path.name.lower().endswith(SUFFIXES):
            yield path


def _embedded(name: str) -> Bars:
    import pandas as pd

    if name == "bokeh":
        from bokeh_sampledata.stocks import data

        table = data.rename(columns={"date": "session"})
        title = "AAPL, FB, GOOG, IBM, MSFT, daily, 2000-2013 (bokeh-sampledata, public domain)"
    else:
        import importlib

        index = importlib.import_module(f"arch.data.{name}").load()
        table = index.rename(columns=lambda column: field_name(column)).rename_axis("session").reset_index()
        table.insert(0, "ticker", name.upper())
        title = f"The {name.upper()} index, daily, 1999-2018 (arch)"
    table = table.assign(file=name, row=np.arange(1, len(table) + 1))[list(COLUMNS)]
    numbers = dict.fromkeys(NUMBERS, np.float64)
    table = table.astype({**numbers, "ticker": object})
    table["session"] = pd.to_datetime(table["session"]).astype("datetime64[s]")
    return Bars(table.reset_index(drop=True), title)


def _only(bars: Bars, tickers: tuple[str, ...]) -> Bars:
    if not tickers:
        return bars
    known = sorted(set(bars.table["ticker"]))
    for ticker in tickers:
        if ticker not in known:
            raise InputError(f"The source has no ticker {ticker!r}.", did_you_mean(ticker, known))
    bars.table = bars.table[bars.table["ticker"].isin(tickers)].reset_index(drop=True)
    return bars
