"""Figures of the report, drawn without pyplot: it keeps global state and wants a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from domains.xray.decision import Decision
from shared.contract import Figure, Predictions
from shared.evaluation.calibration import Reliability

MODEL, RIVAL, GREY = "#0b6e99", "#c8553d", "#8a8f98"


def canvas(columns: int, rows: int = 1, side: float = 3.4) -> tuple[Any, np.ndarray]:
    """A matplotlib figure and its axes, ``[rows, columns]``."""
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(side * columns, side * rows), layout="constrained", dpi=110)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.ravel():
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def roc(test: Predictions, baselines: Mapping[str, Predictions], labels: Sequence[str], path: Path) -> Figure:
    """ROC curves of the model and its rivals, a panel a label (the first six)."""
    from sklearn.metrics import roc_auc_score, roc_curve

    shown = labels[:6]
    figure, axes = canvas(len(shown))
    styles = dict(zip(baselines, ("-", "--", ":", "-."), strict=False))
    for column, (axis, name) in enumerate(zip(axes[0], shown, strict=True)):
        axis.plot([0, 1], [0, 1], color=GREY, lw=0.8)
        for who, said in {**baselines, "model": test}.items():
            known = ~np.isnan(said.truth[:, column])
            truth, values = said.truth[known, column], said.values[known, column]
            if len(np.unique(truth)) < 2 or len(np.unique(values)) < 2:
                continue
            wrong, right, _ = roc_curve(truth, values)
            mine = who == "model"
            axis.plot(
                wrong,
                right,
                color=MODEL if mine else RIVAL,
                lw=2 if mine else 1,
                ls="-" if mine else styles.get(who, ":"),
                label=f"{who} {roc_auc_score(truth, values):.2f}",
            )
        axis.set(title=name, xlabel="1 - specificity", aspect="equal")
        axis.legend(fontsize=7, frameon=False, loc="lower right")
    axes[0][0].set_ylabel("sensitivity")
    figure.savefig(path)
    return Figure(path, "ROC curves on the test patients; the number is the AUROC.")


def reliability(before: Reliability, after: Reliability, path: Path) -> Figure:
    """What was said against what happened, before and after calibration on validation."""
    figure, axes = canvas(1, side=3.8)
    axis = axes[0][0]
    axis.plot([0, 1], [0, 1], color=GREY, lw=0.8)
    for curve, name, colour in ((before, "as trained", RIVAL), (after, "calibrated", MODEL)):
        filled = curve.count > 0
        axis.plot(curve.said[filled], curve.happened[filled], color=colour, lw=1.2)
        axis.scatter(
            curve.said[filled],
            curve.happened[filled],
            s=8 + 160 * curve.count[filled] / max(1, curve.count.sum()),
            color=colour,
            label=f"{name}, ECE {curve.error:.3f}",
        )
    axis.set(xlabel="probability", ylabel="share that has it", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axis.legend(fontsize=8, frameon=False, loc="upper left")
    figure.savefig(path)
    return Figure(
        path,
        "Reliability on test, all labels pooled; the larger a dot, the more films. Calibrated on validation.",
    )


def separation(test: Predictions, decision: Decision, path: Path) -> Figure:
    """Calibrated probabilities of the sick and the well, with the operating point."""
    shown = decision.labels[:6]
    figure, axes = canvas(len(shown), side=3.2)
    bins = np.linspace(0, 1, 21)
    for column, (axis, name) in enumerate(zip(axes[0], shown, strict=True)):
        for answer, colour, word in ((0.0, GREY, "no"), (1.0, MODEL, "yes")):
            chosen = test.values[test.truth[:, column] == answer, column]
            axis.hist(chosen, bins=bins, color=colour, alpha=0.65, label=f"{word} ({len(chosen)})")
        if np.isfinite(decision.threshold[column]):
            axis.axvline(decision.threshold[column], color=RIVAL, lw=1.2, label="operating point")
        axis.set(title=name, xlabel="calibrated probability")
        axis.legend(fontsize=7, frameon=False)
    axes[0][0].set_ylabel("test films")
    figure.savefig(path)
    return Figure(path, "Test films by calibrated probability; films right of the line are called.")
