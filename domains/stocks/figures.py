"""The figures of a stocks run, drawn without pyplot so that no state outlives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from domains.stocks.backtest import Account
    from shared.evaluation.metrics import Comparison

_MODEL, _OTHER, _FAINT = "#1f5fa8", "#7a7a7a", "#d9d9d9"
_COLORS = ("#1f5fa8", "#b0b0b0", "#e08a1e", "#4c9a6a", "#a2559c", "#8c6d46")


def contenders(
    path: Path, comparison: Comparison, by_fold: Mapping[str, Sequence[float]], folds: list[str]
) -> None:
    """AUROC of all contenders, pooled with intervals (left) and fold by fold (right)."""
    figure = _figure(9.5, 3.6)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.25])
    rows = list(comparison.rows)[::-1]
    for y, row in enumerate(rows):
        color = _MODEL if row.name == "model" else _OTHER
        if row.low is not None and row.high is not None:
            left.plot([row.low, row.high], [y, y], color=color, lw=2.5, solid_capstyle="round")
        left.plot(row.value, y, "o", color=color, ms=7)
        left.annotate(
            f"{row.value:.3f}", (row.value, y), (0, 7), textcoords="offset points", ha="center", fontsize=8
        )
    left.set_yticks(range(len(rows)), [row.name for row in rows])
    left.set_ylim(-0.6, len(rows) - 0.2)
    left.axvline(0.5, color="black", lw=0.8, ls=":")
    left.set_xlabel(f"AUROC, all test sessions, {comparison.confidence:.0%} interval")
    for number, (name, values) in enumerate(by_fold.items()):
        right.plot(
            range(len(folds)), values, "o-", ms=6 if name == "model" else 4, lw=2.2 if name == "model" else 1.2,
            color=_COLORS[number % len(_COLORS)], label=name, zorder=3 if name == "model" else 2,
        )  # fmt: skip
    right.axhline(0.5, color="black", lw=0.8, ls=":")
    right.set_xticks(range(len(folds)), [fold.replace(" to ", "\nto ") for fold in folds], fontsize=8)
    right.set_ylabel("AUROC by fold")
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, path)


def reliability(path: Path, before: np.ndarray, after: np.ndarray, truth: np.ndarray, bins: int = 10) -> None:
    """How often the close was higher, by the probability said; before and after calibration."""
    figure = _figure(5.2, 4.4)
    top, bottom = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    for name, said, color in (("as trained", before, _OTHER), ("calibrated", after, _MODEL)):
        # Bins of equal count: probabilities of up crowd around one half.
        parts = [part for part in np.array_split(np.argsort(said, kind="stable"), bins) if len(part)]
        x = [said[part].mean() for part in parts]
        y = np.array([truth[part].mean() for part in parts])
        error = np.array(
            [np.sqrt(max(p * (1 - p), 1e-9) / len(part)) for p, part in zip(y, parts, strict=True)]
        )
        top.errorbar(x, y, error, fmt="o-", ms=4, lw=1.4, color=color, label=name, capsize=2)
        bottom.hist(said, bins=40, color=color, alpha=0.6)
    low, high = top.get_xlim()
    top.plot([low, high], [low, high], color="black", lw=0.8, ls=":")
    top.axhline(truth.mean(), color=_FAINT, lw=1)
    top.set_ylabel("share that rose")
    top.legend(frameon=False, fontsize=8)
    bottom.set_xlabel("probability of a higher close")
    bottom.set_yticks([])
    _save(figure, path)


def equity(path: Path, strategy: Account, held: Account, cost_bps: float) -> None:
    """Value of both accounts over time (log scale), and how far each is below its peak."""
    figure = _figure(8.5, 4.6)
    top, bottom = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    for name, account, color in (
        ("buy and hold", held, _OTHER),
        (f"model, {cost_bps:g} bps a trade", strategy, _MODEL),
    ):
        top.plot(account.sessions, account.equity, color=color, lw=1.5, label=name)
        below = account.equity / np.maximum.accumulate(np.maximum(account.equity, 1.0)) - 1.0
        bottom.fill_between(account.sessions, 100 * below, 0, color=color, alpha=0.35, lw=0)
    top.set_yscale("log")
    top.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    top.yaxis.set_minor_formatter(lambda value, _: f"{value:.3g}")
    top.tick_params(axis="y", which="both", labelsize=8)
    top.axhline(1.0, color=_FAINT, lw=1, zorder=0)
    top.set_ylabel("value, start = 1")
    top.legend(frameon=False, fontsize=9)
    bottom.set_ylabel("below peak, %")
    _save(figure, path)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
