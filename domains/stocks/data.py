"""The stocks domain's data: raw bars in, leak-free windows out."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.stocks import features
from domains.stocks.panel import Panel, build, examples_of, too_short, window_ends, windows
from domains.stocks.prices import Prices, clean
from domains.stocks.reading import Bars, read
from shared import progress
from shared.contract import DataCard, Fold, Quarantined, Source, Split
from shared.errors import InputError
from shared.files import atomic, read_json, write_json

if TYPE_CHECKING:
    from domains.stocks.config import StocksConfig

_MOST_COMPARED = 20_000
"""Windows that the guard of prefix invariance compares at most: a sample by session is as telling."""


def read_source(source: str, config: StocksConfig) -> Bars:
    """Bars of ``source``; ``"synthetic"`` is made, then read like anybody's files."""
    if source != "synthetic":
        return read(source, config.data)
    from domains.stocks.synthetic import synthesize

    with tempfile.TemporaryDirectory() as folder:
        synthesize(Path(folder), config, config.synthetic.seed, strength=config.synthetic.strength)
        bars = read(folder, config.data)
    bars.title = (
        f"Synthetic panel of {config.synthetic.tickers} tickers, {config.synthetic.sessions} sessions, "
        f"planted signal of strength {config.synthetic.strength:g}"
    )
    return bars


def ingest(source: str, config: StocksConfig, out: Path, *, now: Any = None) -> DataCard:
    """Writes ``prices.parquet`` (clean raw bars), ``panel.npz`` (features) and ``about.json`` under ``out``."""
    progress.emit("ingest", 0, 3, note="reading")
    bars = read_source(source, config)
    progress.emit("ingest", 1, 3, note="checking bars")
    prices = clean(bars, config.data, now=now)
    progress.emit("ingest", 2, 3, note="features")
    panel = build(prices.table, prices.adjusted)
    examples = examples_of(panel, config.window)
    short = too_short(panel, config.window, labelled=True)
    quarantine = [*prices.quarantine, *(Quarantined(ticker, reason) for ticker, reason in short.items())]
    if not len(examples.rows):
        ticker, reason = next(iter(short.items()))
        raise InputError(
            f"No ticker of {source} has enough history; {ticker}: {reason}.",
            "Give a longer history, or shorten --window.sessions or --window.horizon.",
        )
    with atomic(out / "prices.parquet") as temporary:
        prices.table.to_parquet(temporary, index=False)
    panel.save(out / "panel.npz")
    write_json(out / "about.json", {"adjusted": prices.adjusted, "synthetic": bars.synthetic})
    progress.emit("ingest", 3, 3)
    return DataCard(
        title=bars.title,
        synthetic=bars.synthetic,
        examples=len(examples.rows),
        facts=_facts(panel, prices, examples.truth[:, 0], config),
        quarantine=quarantine,
        warnings=[*prices.warnings, *_holes(panel)],
        fingerprint=f"{panel.fingerprint()}-{config.window.sessions}-{config.window.horizon}",
    )


def _facts(panel: Panel, prices: Prices, up: np.ndarray, config: StocksConfig) -> dict[str, Any]:
    spans = {}
    for number, name in enumerate(panel.tickers[:50]):
        mine = panel.session[panel.ticker == number]
        spans[str(name)] = f"{mine[0]} to {mine[-1]}, {len(mine)} sessions"
    used = {
        "adj_close": "adjusted: open, high, low and close times adj_close / close",
        "none": "as they are, not adjusted",
    }
    return {
        "tickers": len(panel.tickers),
        "from": str(panel.session.min()),
        "to": str(panel.session.max()),
        "bars": len(panel.session),
        "prices": used[prices.adjusted],
        "exchange": config.data.calendar,
        "window": f"{config.window.sessions} sessions of {', '.join(features.NAMES)}",
        "label": f"adjusted close {config.window.horizon} sessions later above today's (a tie is not up)",
        "share up": round(float(up.mean()), 4),
        "by ticker": spans,
    }


def _holes(panel: Panel) -> list[str]:
    """Tickers whose sessions have holes: windows don't bridge them, which costs examples."""
    starts = np.bincount(panel.ticker[panel.place == 0], minlength=len(panel.tickers)) - 1
    return [
        f"{panel.tickers[i]} lacks sessions in {starts[i]} places; no window bridges a hole, and each costs "
        f"{features.WARM_UP} sessions of warm-up."
        for i in np.flatnonzero(starts)[:20]
    ]


def load_panel(prepared: Path) -> Panel:
    return Panel.load(prepared / "panel.npz")


def folds(prepared: Path, config: StocksConfig) -> list[Fold]:
    """Walk-forward folds: each trains on the past, tunes on what follows, is tested on what follows that.

    All tickers of one session lie in the same split; training examples whose label's span
    (from the window's last session to ``horizon`` sessions later) meets validation or test are left out.

    Raises:
        InputError: Fewer sessions than the folds need.
    """
    from shared.evaluation import splits

    found = examples_of(load_panel(prepared), config.window)
    section = config.folds
    sessions = np.unique(found.sessions)
    test = section.test_sessions or max(1, min(378, len(sessions) // 8))
    validation = section.validation_sessions or max(1, min(252, len(sessions) // 12))
    gap = config.window.horizon + section.embargo
    least = section.count * test + validation + 2 * gap + max(config.window.horizon, 20)
    if len(sessions) < least:
        raise InputError(
            f"{section.count} folds of {test} test and {validation} validation sessions need at least {least} "
            f"sessions with a label, there are {len(sessions)}.",
            "Give a longer history, or lower --folds.count, --folds.test_sessions, --folds.validation_sessions.",
        )
    divided = splits.walk_forward(
        found.sessions,
        found.label_ends,
        folds=section.count,
        test_size=test,
        validation_size=validation,
        train_size=section.train_sessions,
        embargo=section.embargo,
    )
    spans = np.stack([found.sessions, found.label_ends], axis=1)
    groups = found.sessions.astype(str)
    result = []
    for split in divided:
        ends = {name: found.sessions[rows] for name, rows in split.items()}
        about: dict[str, str] = {
            name: f"{moments.min()} to {moments.max()}" for name, moments in ends.items() if len(moments)
        }
        about["label"] = f"up over {config.window.horizon} sessions"
        result.append(Fold(_fold_name(ends["test"]), split, found.keys, groups, spans, about))
    return result


def _fold_name(sessions: np.ndarray) -> str:
    months = sessions.astype("datetime64[M]")
    return f"{months.min()} to {months.max()}"


def examples(prepared: Path, config: StocksConfig, fold: Fold, split: Split) -> Source:
    """Windows of ``split``, gathered inside the graph from one tensor of all sessions' features.

    A batch is ``(x float32 [B, sessions, 7], y float32 [B, 2])``; of y the loss sees column 0, the label.
    """
    import tensorflow as tf

    panel = load_panel(prepared)
    found = examples_of(panel, config.window)
    chosen = fold.splits[split]
    # NaN rows of the warm-up belong to no window; zeros in their place cannot be reached.
    inputs = tf.constant(np.nan_to_num(panel.inputs))
    ends = tf.constant(found.rows[chosen])
    truth = tf.constant(found.truth[chosen])
    steps = tf.range(1 - config.window.sessions, 1, dtype=tf.int64)

    def gather(positions: Any) -> tuple[Any, Any]:
        rows = tf.gather(ends, positions)[:, None] + steps
        return tf.gather(inputs, rows), tf.gather(truth, positions)

    return Source(count=len(chosen), gather=gather)


def arrays(prepared: Path, config: StocksConfig, fold: Fold, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """The same examples as numpy arrays, ``(x [n, sessions, 7], y [n, 2])``, for the baselines."""
    panel = load_panel(prepared)
    found = examples_of(panel, config.window)
    chosen = fold.splits[split]
    return windows(panel, found.rows[chosen], config.window.sessions), found.truth[chosen]


def train_rows(prepared: Path, config: StocksConfig, fold: Fold) -> np.ndarray:
    """Features of every session that a training window of ``fold`` contains, once each: ``[m, 7]``.

    What normalisation learns from: nothing of validation or test is in it.
    """
    panel = load_panel(prepared)
    found = examples_of(panel, config.window)
    ends = found.rows[fold.splits["train"]]
    covered = np.zeros(len(panel.inputs), bool)
    for back in range(config.window.sessions):
        covered[ends - back] = True
    return panel.inputs[covered]


def inputs_as_of(prepared: Path, config: StocksConfig, moment: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Windows recomputed from the clean raw bars up to ``moment``: keys ``[n]``, inputs ``[n, sessions, 7]``."""
    import pandas as pd

    table = pd.read_parquet(prepared / "prices.parquet")
    most = len(table)
    stride = max(1, -(-most // _MOST_COMPARED))
    if moment is not None:
        table = table[table["session"] <= pd.Timestamp(moment)].reset_index(drop=True)
    panel = build(table, read_json(prepared / "about.json")["adjusted"])
    ordinal = table["ordinal"].to_numpy()
    rows = window_ends(panel, config.window)
    rows = rows[ordinal[rows] % stride == 0]
    return panel.key(rows), windows(panel, rows, config.window.sessions)
