"""New bars in, each ticker's calibrated probability as of its last settled bar out."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.stocks import data
from domains.stocks.config import StocksConfig
from domains.stocks.evaluate import calibrate
from domains.stocks.panel import build, too_short, windows
from domains.stocks.prices import Prices, clean
from domains.stocks.reading import Bars
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
    if predictor is None:
        from shared.runs.predictor import Predictor

        predictor = Predictor.load(model.path)
    found = score(bars, config, model, predictor, now=now)
    if not found.lines:
        first = found.short[0]
        raise InputError(
            f"No ticker of {source} can be scored; {first.item}: {first.reason}.",
            "Give a longer, unbroken history.",
        )
    lines = sorted(found.lines, key=lambda line: -line.probability)
    written = [
        (
            line.ticker,
            line.as_of,
            trained.window.horizon,
            f"{line.probability:.4f}",
            str(line.calibrated).lower(),
            line.note,
            model.label,
        )
        for line in lines
    ]
    _write(out / FILE, written)
    return Summary(
        output=out / FILE,
        scored=len(lines),
        headline=(
            f"{lines[0].ticker} is the most likely to close higher {trained.window.horizon} sessions on: "
            f"{lines[0].probability:.0%}, as of {lines[0].as_of}."
        ),
        quarantine=[*found.prices.quarantine, *found.short],
        facts={
            "prices": "adjusted" if found.prices.adjusted == "adj_close" else "not adjusted",
            "lowest": f"{lines[-1].ticker} {lines[-1].probability:.0%}",
            "newest": found.newest,
        },
    )


@dataclass(frozen=True)
class Line:
    """What the model says of one ticker.

    Attributes:
        as_of: Its last settled session, an ISO date.
        probability: That its adjusted close will be higher ``horizon`` sessions on.
        calibrated: The probability was calibrated on validation.
        note: What a person must know of it; empty where there is nothing.
    """

    ticker: str
    as_of: str
    probability: float
    calibrated: bool
    note: str


@dataclass(frozen=True)
class Scored:
    """Every ticker of some bars: scored, or too short with the reason. ``newest`` is an ISO date."""

    lines: Sequence[Line]
    short: Sequence[Quarantined]
    prices: Prices
    newest: str


def score(
    bars: Bars,
    config: StocksConfig,
    model: Published,
    predictor: Callable[[np.ndarray], np.ndarray],
    *,
    now: Any = None,
) -> Scored:
    """What the model says of every ticker in ``bars``, in the order of their names.

    Raises:
        InputError: The bars cannot be used at all, see :func:`domains.stocks.prices.clean`.
    """
    trained = StocksConfig.model_validate(model.config)
    prices = clean(bars, config.data, now=now)
    panel = build(prices.table, prices.adjusted)
    reasons = too_short(panel, trained.window, labelled=False)
    short = [Quarantined(name, reason) for name, reason in reasons.items()]
    newest = str(panel.session.max())
    rows = np.array(
        [row for row in _last(panel) if panel.tickers[panel.ticker[row]] not in reasons], np.int64
    )
    if not len(rows):
        return Scored([], short, prices, newest)
    values = np.asarray(predictor(windows(panel, rows, trained.window.sessions)))[:, 0]
    temperature = model.decision.get("temperature")
    probability = values if temperature is None else calibrate(values, float(temperature))
    lines = [
        Line(
            str(panel.tickers[panel.ticker[row]]),
            str(panel.session[row]),
            float(p),
            temperature is not None,
            note,
        )
        for row, p, note in zip(
            rows,
            probability,
            _notes(panel, rows, prices.adjusted, trained, bars.synthetic, model),
            strict=True,
        )
    ]
    return Scored(lines, short, prices, newest)


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
