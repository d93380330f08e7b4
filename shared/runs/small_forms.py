"""Small forms of a published model: made in children, judged by one table, kept or left out.

A converter that crashes, hangs or meets an operation that it does not know costs its form and
nothing else: each row of the table says what became of it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from shared import files, progress, worker
from shared.config import DomainConfig
from shared.errors import CasebookError
from shared.plan import ExecutionPlan
from shared.runs import forms, pruned
from shared.runs.forms import PLACES, PRUNED, Form, Trained
from shared.runs.registry import MODEL_CARD

log = logging.getLogger("casebook.export")

SECONDS = 1800.0
"""Limit of a child that converts and judges; a converter can hang."""
_ON_THE_CPU = {"CUDA_VISIBLE_DEVICES": "-1"}
"""LiteRT runs on the CPU here; a GPU would only be held from others."""


def add(
    domain: str,
    prepared: str,
    config: DomainConfig,
    fold: int,
    members: Sequence[str],
    model: Path,
    work: Path,
    plan: ExecutionPlan,
    exported: Mapping[str, Any],
) -> dict[str, Any]:
    """Adds to the published model in ``model`` the small forms that ``config.export`` asks for.

    For the flow's process: whatever needs TensorFlow runs in children.

    Args:
        members: Folders that ``train_member`` filled.
        work: Folder for what is not published yet; emptied at the end.
        plan: Of the training; fine-tuning of a pruned model follows it.
        exported: What :func:`shared.runs.export.export` returned.

    Returns:
        ``exported`` with all rows in its ``forms`` and the ``size_bytes`` of what lies there now.
    """
    section = config.export
    trained = Trained(**exported["forms"]["trained"])
    rows = [Form(**row) for row in exported["forms"]["rows"]]
    shutil.rmtree(work, ignore_errors=True)
    what = (domain, prepared, config.model_dump(), fold, list(members))
    wanted = list(dict.fromkeys(section.formats))
    # The int8 converter is the one that crashes: it has a child of its own.
    calm = [kind for kind in wanted if kind != "litert-int8"]
    made: dict[str, Any] = {}
    for together in (calm, [kind for kind in wanted if kind == "litert-int8"]):
        made |= _litert(together, what, model, work, bool(exported["recurrent"]))
    if section.prune > 0:
        made[PRUNED] = _pruned(what, model, work, plan, config)
    for name, found in made.items():
        row = _row(name, found, trained, section.margin)
        if row.published:
            _publish(name, work, model)
        log.info("Form %s: %s", name, "published" if row.published else f"left out: {row.reason}")
        rows.append(row)
    shutil.rmtree(work, ignore_errors=True)
    table = forms.table(rows, trained, margin=section.margin)
    card = files.read_json(model / MODEL_CARD)
    files.write_json(model / MODEL_CARD, {**card, "forms": [row.to_dict() for row in rows if row.published]})
    size = sum(file.stat().st_size for file in model.rglob("*") if file.is_file())
    return {**exported, "forms": table, "size_bytes": size}


def _litert(
    kinds: Sequence[str], what: tuple[Any, ...], model: Path, work: Path, has_loops: bool
) -> dict[str, Any]:
    """What became of each kind; a child that several share and that dies is tried again kind by kind."""
    if not kinds:
        return {}
    progress.emit("small forms", 0, None, note=", ".join(kinds))
    outcome = worker.run(
        make_litert,
        *what,
        str(model),
        list(kinds),
        str(work),
        has_loops,
        timeout=SECONDS,
        environment=_ON_THE_CPU,
    )
    if outcome.verdict is worker.Verdict.OK:
        return dict(outcome.value)
    if len(kinds) > 1:
        return {one: _litert([one], what, model, work, has_loops)[one] for one in kinds}
    return {kinds[0]: {"problem": _told("its conversion", outcome)}}


def make_litert(
    domain: str,
    prepared: str,
    config: Mapping[str, Any],
    fold: int,
    members: Sequence[str],
    model: str,
    kinds: Sequence[str],
    work: str,
    has_loops: bool,
) -> dict[str, Any]:
    """Converts every member to ``kinds`` and measures each kind; runs in a child process.

    Args:
        has_loops: The network has recurrent layers, as :func:`shared.runs.litert.recurrent` says.

    Returns:
        For each kind its measurement (:meth:`Yardstick.measure`) with a ``note``, or its ``problem``.
    """
    import keras

    from shared.runs import litert
    from shared.runs.yardstick import Yardstick

    yardstick = Yardstick(domain, prepared, config, fold, members)
    examples = yardstick.representative(litert.CALIBRATION_EXAMPLES) if "litert-int8" in kinds else []
    keras.config.set_dtype_policy("float32")
    rebuilt = cache(yardstick.rebuilt)
    found: dict[str, Any] = {}
    for kind in kinds:
        paths = [_place(Path(work), number, kind) for number in range(len(members))]
        try:
            for number, (member, path) in enumerate(zip(members, paths, strict=True)):
                published = _place(Path(model), number, forms.SAVED_MODEL)
                note = litert.convert(
                    partial(rebuilt, member),
                    published,
                    kind,
                    examples,
                    path,
                    work=path.with_name("sources"),
                    has_loops=has_loops,
                )
            found[kind] = {**yardstick.measure(litert.LiteRT(paths), paths), "note": note}
        except Exception as error:  # a row of the table, whatever it is
            found[kind] = {"problem": litert.why(error)}
    return found


def _pruned(
    what: tuple[Any, ...], model: Path, work: Path, plan: ExecutionPlan, config: DomainConfig
) -> dict[str, Any]:
    """Every member pruned and fine-tuned in a child of its own, then all judged in one."""
    *start, members = what
    folders = [str(work / PRUNED / f"member-{number}") for number in range(len(members))]
    for member, folder in zip(members, folders, strict=True):
        outcome = worker.run(
            pruned.prune_member, *start, member, plan.to_dict(), folder, timeout=config.train.hours * 3600
        )
        if outcome.verdict is not worker.Verdict.OK:
            return {"problem": _told("its fine-tuning", outcome)}
    outcome = worker.run(pruned.judge, *what, folders, str(work), timeout=SECONDS)
    if outcome.verdict is not worker.Verdict.OK:
        return {"problem": _told("its export", outcome)}
    return dict(outcome.value)


def _told(what: str, outcome: worker.Outcome) -> str:
    """Why a child brought nothing, in a sentence."""
    if isinstance(outcome.error, CasebookError):
        return outcome.error.message.rstrip(".")
    lines = [line.strip() for line in outcome.message.splitlines() if line.strip()]
    # An error's traceback ends with what it says; any other verdict begins with it.
    line = (lines or ["nothing is known"])[-1 if outcome.verdict is worker.Verdict.BUG else 0]
    if outcome.error is not None:
        line = f"{type(outcome.error).__name__}: {outcome.error}".splitlines()[0]
    return f"{what} did not finish: {line[:200].rstrip('.')}"


def _row(name: str, found: Mapping[str, Any], trained: Trained, margin: float) -> Form:
    if "problem" in found:
        return Form(name, published=False, reason=found["problem"])
    return forms.judged(name, found, trained, margin=margin, note=found.get("note", ""))


def _publish(name: str, work: Path, model: Path) -> None:
    """Moves a form's files beside the published members; both folders are of one run, and so of one disk."""
    for place in sorted(work.glob(f"member-*/{PLACES[name]}")):
        target = model / place.parent.name / place.name
        place.replace(target)
        files.sync_folder(target.parent)


def _place(folder: Path, number: int, form: str) -> Path:
    return folder / f"member-{number}" / PLACES[form]
