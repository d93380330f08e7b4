"""One ticker's recent bars in, its probability as of the last settled one out: for those who cannot wait.

A line goes the way of a file: the same reading of cells, the same judgement of bars, the same
features; so it gets the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from domains.stocks.config import StocksConfig
from domains.stocks.predict import score
from domains.stocks.reading import Bars
from domains.stocks.tables import NEEDED, Unreadable, read_frame
from shared.contract import Answerer, Published
from shared.errors import InputError

LINE = (
    '{"id": 1, "ticker": "AAPL", "bars": [{"date": "2010-03-01", "open": 29.4, "high": 29.9, "low": 29.3, '
    '"close": 29.8, "adj_close": 28.9, "volume": 137523000}, ...]}'
)
_REMEDY = f"A line looks like this: {LINE}"


def answerer(model: Published, config: StocksConfig, *, now: Any = None) -> Answerer:
    """See :meth:`shared.contract.Domain.answerer`.

    Args:
        now: As :func:`domains.stocks.prices.clean` takes it.
    """
    from shared.runs.predictor import Predictor

    trained = StocksConfig.model_validate(model.config)
    threshold = float(model.decision.get("threshold", 0.5))
    predictor = Predictor.load(model.path, warm=True)

    def answer(line: Mapping[str, Any]) -> dict[str, Any]:
        bars = _bars(line, config)
        found = score(bars, config, model, predictor, now=now)
        if not found.lines:
            first = found.short[0]
            raise InputError(
                f"{first.item} cannot be scored: {first.reason}.", "Give a longer, unbroken history."
            )
        (one,) = found.lines
        return {
            "ticker": one.ticker,
            "as_of": one.as_of,
            "horizon": trained.window.horizon,
            "probability_up": round(one.probability, 6),
            "label": "up" if one.probability > threshold else "not up",
            "threshold": threshold,
            "calibrated": one.calibrated,
            "note": one.note,
            "set_aside": [f"{item.item}: {item.reason}" for item in found.prices.quarantine],
        }

    return Answerer(answer, LINE)


def _bars(line: Mapping[str, Any], config: StocksConfig) -> Bars:
    """The bars of a line: a list of objects, or an object of columns, under the names that a file has.

    Raises:
        InputError: No ticker, no bars, more than one ticker, or a column is missing.
    """
    import pandas as pd

    ticker, given = line.get("ticker"), line.get("bars")
    if not isinstance(ticker, str) or not ticker.strip():
        raise InputError(f'A line needs "ticker" as text; received {_told(ticker)}.', _REMEDY)
    rows = isinstance(given, list) and all(isinstance(bar, Mapping) for bar in given)
    columns = isinstance(given, Mapping) and all(isinstance(cells, list) for cells in given.values())
    if not given or not (rows or columns):
        raise InputError(
            f'A line needs "bars": a list of objects, or an object of lists; received {_told(given)}.',
            _REMEDY,
        )
    try:
        table, unread = read_frame(pd.DataFrame(given), ticker.strip(), config.data)
    except Unreadable as error:
        raise InputError(f"bars: {error}", error.remedy or NEEDED) from None
    except ValueError as error:  # lists of different lengths
        raise InputError(f"bars: {str(error).splitlines()[0]}.", _REMEDY) from None
    others = sorted(set(table["ticker"]) - {ticker.strip()})
    if others:
        raise InputError(
            f"A line is of one ticker; beside {ticker} its bars are of {', '.join(map(str, others[:3]))}.",
            "Send a line for each ticker.",
        )
    return Bars(table, f"The bars of {ticker}", quarantine=unread)


def _told(value: Any) -> str:
    return "nothing" if value in (None, "", [], {}) else f"{type(value).__name__} {str(value)[:40]!r}"
