"""New bars in, each ticker's calibrated probability as of its last settled bar out."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.stocks import data
from domains.stocks.config import StocksConfig
from domains.stocks.evaluate import calibrate
from domains.stocks.panel import build, too_short, windows
from domains.stocks.prices import clean
from shared.contract import Published, Quarantined, Summary
from shared.errors import InputError
from shared.files import atomic

if TYPE_CHECKING:
    from domains.stocks.panel import Panel

FILE = "probabilities.csv"
COLUMNS = ("ticker", "as_of", "horizon", "probability_up", "calibrated", "note", "model")


def predict(
    model: Published,
    source: str,
    config: StocksConfig,
    out: Path,
    *,
    now: Any = None,
    predictor: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Summary:
    """Writes ``probabilities.csv``, one line a ticker, most likely to rise first.

    Windows are cut as the model was trained (its own ``window``); the source is read as ``config``
    says (date format, calendar, adjustment).

    Args:
        now: As :func:`domains.stocks.prices.clean` takes it.
        predictor: Windows ``[n, L, 7]`` to values ``[n, 1]``; default: the published model.

    Raises:
        InputError: No ticker has enough history.
    """
    trained = StocksConfig.model_validate(model.config)
    bars = data.read_source(source, config)
    prices = clean(bars, config.data, now=now)
    panel = build(prices.table, prices.adjusted)
    short = too_short(panel, trained.window, labelled=False)
    rows = np.array([row for row in _last(panel) if panel.tickers[panel.ticker[row]] not in short], np.int64)
    if not len(rows):
        ticker, reason = next(iter(short.items()))
        raise InputError(
            f"No ticker of {source} can be scored; {ticker}: {reason}.", "Give a longer, unbroken history."
        )
    if predictor is None:
        from shared.runs.export import Predictor

        predictor = Predictor.load(model.path)
    values = np.asarray(predictor(windows(panel, rows, trained.window.sessions)))[:, 0]
    temperature = model.decision.get("temperature")
    probability = values if temperature is None else calibrate(values, float(temperature))
    order = np.argsort(-probability, kind="stable")
    rows, probability = rows[order], probability[order]
    notes = _notes(panel, rows, prices.adjusted, trained, bars.synthetic, model)
    tickers = panel.tickers[panel.ticker[rows]]
    as_of = panel.session[rows].astype(str)
    lines = [
        (
            ticker,
            day,
            trained.window.horizon,
            f"{p:.4f}",
            str(temperature is not None).lower(),
            note,
            model.label,
        )
        for ticker, day, p, note in zip(tickers, as_of, probability, notes, strict=True)
    ]
    _write(out / FILE, lines)
    return Summary(
        output=out / FILE,
        scored=len(rows),
        headline=(
            f"{tickers[0]} is the most likely to close higher {trained.window.horizon} sessions on: "
            f"{probability[0]:.0%}, as of {as_of[0]}."
        ),
        quarantine=[*prices.quarantine, *(Quarantined(name, reason) for name, reason in short.items())],
        facts={
            "prices": "adjusted" if prices.adjusted == "adj_close" else "not adjusted",
            "lowest": f"{tickers[-1]} {probability[-1]:.0%}",
            "newest": str(panel.session.max()),
        },
    )


def _last(panel: Panel) -> np.ndarray:
    """The last row of each ticker."""
    return np.flatnonzero(np.diff(panel.ticker, append=-1) != 0)


def _notes(
    panel: Panel, rows: np.ndarray, adjusted: str, trained: StocksConfig, synthetic: bool, model: Published
) -> list[str]:
    """What a person must know of each line; empty where there is nothing."""
    common = []
    if model.synthetic:
        common.append("the model was trained on synthetic prices")
    if synthetic:
        common.append("these prices are synthetic")
    if adjusted == "none" and trained.data.adjust != "none":
        common.append("prices are not adjusted")
    newest = panel.session.max()
    notes = []
    for row in rows:
        days = int((newest - panel.session[row]).astype(int))
        stale = [f"its last bar is {days} days older than the newest of the source"] if days else []
        notes.append("; ".join([*stale, *common]))
    return notes


def _write(path: Path, lines: Sequence[Sequence[Any]]) -> None:
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(lines)
