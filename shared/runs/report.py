"""The report: one self-contained page that shows all of a run, from its folder's files alone.

Every part stands on files that other steps wrote. A part whose file is missing or cannot be
read says so in its place, and the rest of the page is still made: a report is most needed
when something went wrong.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared import files, words
from shared.runs import forms
from shared.runs import report_parts as parts
from shared.runs.report_parts import View
from shared.runs.report_training import training

if TYPE_CHECKING:
    from jinja2 import Template

log = logging.getLogger("casebook.report")


def write(run_folder: Path) -> Path:
    """Writes ``report.html`` into a run's folder and returns its path."""
    page = run_folder / "report.html"
    files.write_text(page, _template().render(view(run_folder)))
    return page


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # file names and labels come from strangers
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=words.number, signed=words.signed, duration=words.duration, size=words.size
    )
    return environment.get_template("report.html.j2")


def view(folder: Path) -> View:
    """Everything that the template shows, as plain data; each part may be ``{"missing": why}``."""
    read = partial(_json, folder)
    manifest, metrics, card, plan, gate = (
        read(f"{name}.json") for name in ("manifest", "metrics", "card", "plan", "gate")
    )
    evaluation = metrics.get("evaluation") or {}
    made: dict[str, Callable[[], View | None]] = {
        "head": lambda: parts.head(folder, manifest, card, plan),
        "verdict": lambda: parts.verdict(manifest, gate),
        "data": lambda: parts.data(card),
        "split": lambda: parts.split(read("folds.json", list)),
        "training": lambda: training(folder, _lines(folder / "history.jsonl"), read("steps/train.json")),
        "comparison": lambda: parts.comparison(metrics),
        "field": lambda: parts.field(folder, evaluation),
        "guards": lambda: parts.rows(metrics.get("guards"), "name", "passed", "detail", "fold", "key"),
        "gate": lambda: parts.rows(gate.get("checks"), "name", "passed", "detail"),
        "forms": lambda: forms.view(read("steps/export.json")),
        "plan": lambda: parts.plan(plan),
        "cost": lambda: parts.cost(manifest),
        "limits": lambda: parts.rows(evaluation.get("limits")),
        "config": lambda: {"text": (folder / "config.toml").read_text(encoding="utf-8")},
        "machine": lambda: parts.machine(manifest),
    }
    synthetic = bool(card.get("synthetic", manifest.get("synthetic")))
    return {"synthetic": synthetic, **{name: _part(name, make) for name, make in made.items()}}


def _part(name: str, make: Callable[[], View | None]) -> View:
    try:
        return make() or {"missing": "This run has not come so far."}
    except FileNotFoundError as error:
        return {"missing": f"{Path(error.filename).name} is missing."}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OSError) as error:
        log.warning("The report's part %r could not be made: %s", name, error, exc_info=True)
        return {"missing": f"The files behind this part could not be read ({type(error).__name__})."}


def _json(folder: Path, name: str, kind: type[Any] = dict) -> Any:
    """What a file holds; an empty ``kind`` where it is missing, damaged or holds something else."""
    try:
        found = files.read_json(folder / name)
    except (OSError, ValueError):
        return kind()
    return found if isinstance(found, kind) else kind()


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
