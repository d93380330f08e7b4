"""The report's part on training: curves, what it used of the machine, every model, profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared import files
from shared.runs import figures
from shared.runs.history import of_epochs
from shared.training.profiling import SUMMARY

MEMBERS_SHOWN = 200
PROFILES_SHOWN = 12

View = dict[str, Any]


def training(run: Path, history: Sequence[Mapping[str, Any]], trained: Mapping[str, Any]) -> View | None:
    """See the module.

    Args:
        run: The run's folder.
        history: Its rows, those of steps included.
        trained: What the step ``train`` returned: ``reports`` and ``members``' folders.
    """
    epochs = of_epochs(history)
    if not epochs:
        return None
    reports = trained.get("reports") or ()
    # One line, of the model that waited longest: the others say the same in other numbers.
    worst = max(reports or [{}], key=lambda member: member.get("input_bound_share") or 0.0)
    return {
        "curves": figures.learning_curves(epochs),
        "use": figures.use_curves(epochs),
        "members": [_member(report) for report in reports[:MEMBERS_SHOWN]],
        "advice": worst.get("advice"),
        "profiles": _profiles(run, trained.get("members") or ()),
    }


def _member(report: Mapping[str, Any]) -> View:
    return {
        "fold": report.get("fold"),
        "seed": report.get("seed"),
        "epochs": report.get("epochs"),
        "phases": ", ".join(
            f"{phase['name']} {phase['epochs']} ({phase['stopped']})" for phase in report.get("phases") or ()
        ),
        "best": report.get("best") or {},
        "seconds": report.get("seconds"),
        "rate": report.get("samples_per_second"),
        "waiting": report.get("input_bound_share"),
    }


def _profiles(run: Path, members: Sequence[Sequence[str]]) -> list[View]:
    """Folders of TensorFlow profiles below the members', and what their summaries say."""
    folders = [Path(folder) for fold in members for folder in fold]
    written = [file.parents[3] for folder in folders for file in folder.glob("profile/**/*.xplane.pb")]
    return [
        {"path": str(_within(run, folder)), **_said(folder / SUMMARY)}
        for folder in sorted(dict.fromkeys(written))[:PROFILES_SHOWN]
    ]


def _within(run: Path, folder: Path) -> Path:
    return folder.relative_to(run) if folder.is_relative_to(run) else folder


def _said(summary: Path) -> View:
    """The largest ops, and the seconds that training waited for input; empty where nobody could tell."""
    try:
        found = files.read_json(summary)
        ops = [{"name": str(op["name"])[:80], "share": float(op["share"])} for op in found["ops"][:6]]
        return {"where": str(found["where"]), "ops": ops, "input": float(found["input_seconds"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"where": "", "ops": [], "input": None}
