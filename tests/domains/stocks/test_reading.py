"""Every shape of file that people bring, and what cannot be read for certain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from domains.stocks.config import DataSection
from domains.stocks.reading import read
from shared.errors import InputError

from .conftest import bars

HEADER = "date,open,high,low,close,adj_close,volume\n"
ROW = "2010-01-04,10,11,9,10.5,10.5,100\n"
PLAIN = DataSection()


def test_a_wide_file_takes_its_ticker_from_its_name(csv: Callable[..., str]) -> None:
    table = read(csv(HEADER + ROW, "BRK-B.csv"), PLAIN).table
    assert table["ticker"].tolist() == ["BRK-B"]
    assert table["session"].iloc[0] == pd.Timestamp("2010-01-04")
    assert table[["open", "adj_close", "volume"]].iloc[0].tolist() == [10, 10.5, 100]


@pytest.mark.parametrize(
    "header",
    [
        "Symbol;Date;Open;High;Low;Close;Adj Close;Volume",
        "ticker\tTimestamp\topen\thigh\tlow\tclose\tAdj. Close\tVol",
    ],
)
def test_a_long_file_in_other_peoples_columns(csv: Callable[..., str], header: str) -> None:
    mark = ";" if ";" in header else "\t"
    rows = [f"{t},2010-01-04,10,11,9,10.5,10.5,100".replace(",", mark) for t in ("A", "B")]
    table = read(csv("\n".join([header, *rows]), "all.csv"), PLAIN).table
    assert table["ticker"].tolist() == ["A", "B"]
    assert table["row"].tolist() == [2, 3]


@pytest.mark.parametrize(
    "text",
    [
        # what yfinance writes, new and old, and grouped by ticker
        "Price,Close,High,Low,Open,Volume\nTicker,AAPL,AAPL,AAPL,AAPL,AAPL\nDate,,,,,\n2010-01-04,10.5,11,9,10,100\n",
        ",Close,High,Low,Open,Volume\n,AAPL,AAPL,AAPL,AAPL,AAPL\nDate,,,,,\n2010-01-04,10.5,11,9,10,100\n",
        "Ticker,AAPL,AAPL,AAPL,AAPL,AAPL\nPrice,Close,High,Low,Open,Volume\nDate,,,,,\n2010-01-04,10.5,11,9,10,100\n",
    ],
)
def test_two_level_columns_are_flattened(csv: Callable[..., str], text: str) -> None:
    table = read(csv(text, "download.csv"), PLAIN).table
    assert table["ticker"].tolist() == ["AAPL"]
    assert table[["open", "high", "low", "close"]].iloc[0].tolist() == [10, 11, 9, 10.5]
    assert table["row"].tolist() == [4]


def test_two_tickers_side_by_side_with_days_of_their_own(csv: Callable[..., str]) -> None:
    fields = ["Open", "High", "Low", "Close"]
    text = "\n".join(
        [
            "Price," + ",".join(f for f in fields for _ in "AB"),
            "Ticker," + ",".join("AB" for _ in fields).replace("AB", "A,B"),
            "Date" + "," * 8,
            "2010-01-04,10,,11,,9,,10.5,",
            "2010-01-05,10,20,11,21,9,19,10.5,20.5",
        ]
    )
    table = read(csv(text, "two.csv"), PLAIN).table
    assert table["ticker"].tolist() == ["A", "A", "B"], "B did not trade on the first day: no row, no fault"
    assert table["close"].tolist() == [10.5, 10.5, 20.5]


@pytest.mark.parametrize("levels", [1, 2])
def test_parquet_with_the_date_in_the_index(tmp_path: Path, levels: int) -> None:
    table = bars(5).drop(columns="date").set_index(pd.DatetimeIndex(bars(5)["date"], name="Date"))
    if levels == 2:
        table.columns = pd.MultiIndex.from_tuples(
            [(name, "AAPL") for name in table], names=["Price", "Ticker"]
        )
    table.to_parquet(tmp_path / "AAPL.parquet")
    got = read(str(tmp_path / "AAPL.parquet"), PLAIN).table
    assert got["ticker"].unique().tolist() == ["AAPL"]
    assert np.allclose(got["close"], bars(5)["close"])
    assert got["session"].dt.strftime("%Y-%m-%d").tolist() == bars(5)["date"].tolist()


def test_a_folder_of_files_and_one_that_is_corrupt(tmp_path: Path) -> None:
    for name in ("A", "B"):
        bars(3).to_csv(tmp_path / f"{name}.csv", index=False)
    bars(3).to_csv(tmp_path / "C.csv.gz", index=False)
    (tmp_path / "D.parquet").write_bytes(b"PAR1 and then nothing of the kind")
    (tmp_path / "E.csv").write_text("date,open\n2010-01-04,1\n")
    (tmp_path / "notes.txt").write_text("not prices")
    got = read(str(tmp_path), PLAIN)
    assert sorted(got.table["ticker"].unique()) == ["A", "B", "C"]
    assert [item.item for item in got.quarantine] == ["D.parquet", "E.csv"]
    assert "has no column 'high'" in got.quarantine[1].reason


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read as CSV"),
        (ROW + ROW, "has no header"),
        ("date,open,high,low\n2010-01-04,1,2,1\n", "no column 'close'"),
        (HEADER + ROW + "2010-01-05,1,2,1,1,1,1,9,9\n", "line 3"),
        ("date,open,high,low,close,Close\n2010-01-04,1,2,1,1,1\n", "two columns that mean 'close'"),
    ],
)
def test_a_file_that_is_no_table_of_bars_is_refused(csv: Callable[..., str], text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read(csv(text), PLAIN)
    assert "AAPL.csv" in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("source", ["bokhe", "missing/folder"])
def test_an_unknown_source_is_refused_with_the_known_ones(source: str) -> None:
    with pytest.raises(InputError, match="no file, folder or embedded source") as caught:
        read(source, PLAIN)
    assert "bokeh" in caught.value.remedy


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no price file"):
        read(str(tmp_path), PLAIN)


def test_only_the_tickers_asked_for() -> None:
    assert set(read("bokeh", DataSection(tickers=("IBM",))).table["ticker"]) == {"IBM"}
    with pytest.raises(InputError, match="no ticker 'IMB'") as caught:
        read("bokeh", DataSection(tickers=("IMB",)))
    assert "'IBM'" in caught.value.remedy


@pytest.mark.parametrize(
    ("cell", "decimal", "value"),
    [
        ("1234.5", ".", 1234.5), ("\"1,234.5\"", ".", 1234.5), ("\"1,234,567\"", ".", 1234567), ("1e3", ".", 1000),
        ("\"1.234,5\"", ",", 1234.5), ("\"1234,5\"", ",", 1234.5), ("\"12,5\"", ",", 12.5),
    ],
)  # fmt: skip
def test_numbers_in_a_stated_format(csv: Callable[..., str], cell: str, decimal: str, value: float) -> None:
    text = "date,open,high,low,close\n2010-01-04" + f",{cell}" * 4
    bars = read(csv(text), DataSection(decimal=decimal))
    assert bars.table["close"].tolist() == [value]
    assert not bars.quarantine


@pytest.mark.parametrize(
    ("cell", "decimal"), [('"12,5"', "."), ("12.5", ","), ("abc", "."), ("$10", "."), ('"1,23.5"', ".")]
)
def test_a_number_in_another_format_is_set_aside_by_row(
    csv: Callable[..., str], cell: str, decimal: str
) -> None:
    text = f"date,open,high,low,close\n2010-01-04,1,1,1,{cell}\n"
    found = read(csv(text), DataSection(decimal=decimal)).quarantine
    assert found[-1].item == "AAPL.csv row 2"
    assert "is not a number" in found[-1].reason


def test_an_empty_cell_is_missing_not_a_fault(csv: Callable[..., str]) -> None:
    got = read(csv("date,open,high,low,close,volume\n2010-01-04,1,1,1,1,null\n"), PLAIN)
    assert np.isnan(got.table["volume"].iloc[0])
    assert not got.quarantine


@pytest.mark.parametrize(
    ("cell", "day"),
    [
        ("2010-03-01", "2010-03-01"),
        ("20100301", "2010-03-01"),
        ("2010-03-01 00:00:00", "2010-03-01"),
        ("2010-03-01 00:00:00-05:00", "2010-03-01"),
        ("2010-03-01T05:00:00Z", "2010-03-01"),  # midnight in New York, told in UTC
        ("2010-03-01T00:00:00+00:00", "2010-03-01"),  # midnight of its own zone names the day
        ("2010-03-02T02:00:00+00:00", "2010-03-01"),  # the evening of 1 March in New York
        ("2010-07-01 04:00:00+00:00", "2010-07-01"),
    ],
)
def test_dates_become_sessions_of_the_exchange(csv: Callable[..., str], cell: str, day: str) -> None:
    table = read(csv(f"date,open,high,low,close\n{cell},1,1,1,1\n"), PLAIN).table
    assert str(table["session"].iloc[0].date()) == day


@pytest.mark.parametrize("zone", ["America/New_York", "UTC", None])
def test_zones_of_a_parquet_index(tmp_path: Path, zone: str | None) -> None:
    index = pd.DatetimeIndex(["2010-03-01", "2010-07-01"], tz="America/New_York", name="Date")
    index = index.tz_localize(None) if zone is None else index.tz_convert(zone)
    pd.DataFrame({name: [1.0, 2.0] for name in ("open", "high", "low", "close")}, index=index).to_parquet(
        tmp_path / "A.parquet"
    )
    days = read(str(tmp_path / "A.parquet"), PLAIN).table["session"].astype(str).tolist()
    assert days == ["2010-03-01", "2010-07-01"]


@pytest.mark.parametrize("cell", ["03/04/2010", "1.3.2010", "", "2010-02-30", "yesterday"])
def test_a_date_that_is_not_certain_raises_with_its_row(csv: Callable[..., str], cell: str) -> None:
    with pytest.raises(InputError, match="row 3, column date") as caught:
        read(csv(f"date,open,high,low,close\n2010-01-04,1,1,1,1\n{cell},1,1,1,1\n"), PLAIN)
    assert "date_format" in caught.value.remedy


@pytest.mark.parametrize("cell", ["03/04/2010", "2010-03", "", "2010-02-30", "2010-02-30T00:00"])
def test_one_faulty_date_among_many_costs_its_row_only(csv: Callable[..., str], cell: str) -> None:
    good = "".join(f"2010-03-{day:02},1,1,1,1\n" for day in range(1, 13))
    got = read(csv(f"date,open,high,low,close\n{good}{cell},1,1,1,1\n"), PLAIN)
    assert len(got.table) == 12
    assert [item.item for item in got.quarantine] == ["AAPL.csv row 14"]
    assert repr(cell) in got.quarantine[0].reason


def test_a_stated_date_format_is_kept_to(csv: Callable[..., str]) -> None:
    european = DataSection(date_format="%d/%m/%Y")
    table = read(csv("date,open,high,low,close\n03/04/2010,1,1,1,1\n"), european).table
    assert str(table["session"].iloc[0].date()) == "2010-04-03"
    with pytest.raises(InputError, match=r"row 2.*does not match"):
        read(csv("date,open,high,low,close\n2010-04-03,1,1,1,1\n"), european)


def test_the_embedded_sources_read() -> None:
    bokeh = read("bokeh", PLAIN)
    assert sorted(bokeh.table["ticker"].unique()) == ["AAPL", "FB", "GOOG", "IBM", "MSFT"]
    assert not bokeh.synthetic
    for name in ("sp500", "nasdaq"):
        table = read(name, PLAIN).table
        assert len(table) == 5031
        assert table["adj_close"].notna().all()
