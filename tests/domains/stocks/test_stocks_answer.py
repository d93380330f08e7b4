"""A line of bars: the shapes it may have, and what is said of one that cannot be answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from domains.stocks.answer import answerer
from domains.stocks.config import StocksConfig
from domains.stocks.dates import calendar, covering
from shared.config import build
from shared.contract import Published
from shared.errors import InputError

from .conftest import NOW, bars


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a stand-in for the network: sure of the direction of the window's last return."""
    from shared.runs.predictor import Predictor

    def say(x: np.ndarray) -> np.ndarray:
        assert x.shape == (1, 8, 7)
        return np.where(x[:, -1, :1] > 0, 0.9, 0.2)

    monkeypatch.setattr(Predictor, "load", classmethod(lambda cls, path, *, warm: say))
    model = Published(
        Path("nowhere"),
        {"temperature": 2.0, "threshold": 0.6},
        {"window": {"sessions": 8, "horizon": 3}},
        "stocks v1 (champion)",
    )
    return answerer(model, build(StocksConfig), now=NOW).answer


def line(count: int = 60, **changes: Any) -> dict[str, Any]:
    return {"ticker": "AAPL", "bars": bars(count).to_dict("records"), **changes}


def test_probability_label_and_date(answer: Any) -> None:
    said = answer(line())
    up = bars(60)["close"].iloc[-1] > bars(60)["close"].iloc[-2]
    assert said == {
        "ticker": "AAPL",
        "as_of": bars(60)["date"].iloc[-1],
        "horizon": 3,
        "probability_up": 0.75 if up else 0.333333,
        "label": "up" if up else "not up",
        "threshold": 0.6,
        "calibrated": True,
        "note": "",
        "set_aside": [],
    }
    labels = {answer(line(count))["label"] for count in range(50, 60)}
    assert labels == {"up", "not up"}


def test_rows_and_columns_text_and_other_names_are_the_same_bars(answer: Any) -> None:
    said = answer(line())
    table = bars(60)
    assert answer(line(bars=table.to_dict("list"))) == said
    assert answer(line(bars=table.astype(str).to_dict("records"))) == said
    named = table.rename(columns={"date": "Date", "adj_close": "Adj Close"})
    assert answer(line(bars=named.to_dict("records"))) == said
    assert answer(line(bars=table.assign(ticker="AAPL").to_dict("records"))) == said


def test_a_bad_bar_is_set_aside_by_its_row(answer: Any) -> None:
    given = line(80)
    given["bars"][3]["close"] = None
    given["bars"][5]["open"] = "about 50"
    said = answer(given)
    assert sorted(text.split(":")[0] for text in said["set_aside"]) == ["AAPL row 4", "AAPL row 6"]
    assert said["probability_up"] == answer(line(80))["probability_up"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ticker": None}, '"ticker" as text; received nothing'),
        ({"ticker": 5}, "received int '5'"),
        ({"bars": []}, '"bars": a list of objects.*received nothing'),
        ({"bars": "2010"}, "received str '2010'"),
        ({"bars": [1, 2]}, "received list"),
        ({"bars": {"date": ["2010-01-04"], "open": []}}, "bars: All arrays must be of the same length"),
        ({"bars": [{"date": "2010-01-04"}]}, "bars: has no column 'open'"),
        ({"bars": bars(20).to_dict("records")}, "AAPL cannot be scored.*28 are needed"),
        ({"bars": bars(60).assign(ticker="IBM").to_dict("records")}, "its bars are of IBM"),
        ({"bars": bars(60).assign(date="04/05/2010").to_dict("records")}, "not an ISO date"),
    ],
)
def test_what_cannot_be_answered_is_told_with_a_remedy(
    answer: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        answer(line(**changes))
    assert caught.value.remedy


def test_a_calendar_is_made_once_for_bars_that_move_along(monkeypatch: pytest.MonkeyPatch) -> None:
    from domains.stocks import dates

    made = []

    def noted(name: str, first: str, last: str) -> Any:
        made.append((first, last))
        return calendar(name, first, last)

    monkeypatch.setattr(dates, "calendar", noted)
    monkeypatch.setattr(dates, "_kept", {})
    for day in range(10, 29):
        found = covering("XNYS", f"2020-03-{day}", f"2021-03-{day}")
        assert found.first_session.year <= 2018
        assert f"{found.last_session:%Y-%m}" == "2021-12"
    assert len(made) == 1
    covering("XNYS", "2015-01-05", "2016-01-05")
    assert made[-1] == ("2013-01-01", "2021-12-31"), "what was kept is still covered"
    covering("XNYS", "2020-03-10", "2021-03-10")
    assert len(made) == 2


def test_a_calendar_that_cannot_be_wider_is_taken_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from domains.stocks import dates

    monkeypatch.setattr(dates, "_kept", {})
    first = calendar("XSHG", "2000-01-01", "2000-12-31").bound_min()
    assert first is not None, "an exchange whose calendar has a beginning"
    found = covering("XSHG", f"{first:%Y-%m-%d}", "1991-12-31")
    assert found.first_session >= first
    assert covering("XSHG", f"{first:%Y-%m-%d}", "1991-12-31") is found
