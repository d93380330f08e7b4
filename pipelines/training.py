"""One member in a child process: what it starts from, and what is done where its memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared import worker
from shared.batch_size import micro_batches
from shared.errors import CasebookError, InputError, TrainingError, WorkerError
from shared.plan import ExecutionPlan
from shared.runs import registry
from shared.runs.folder import Run
from shared.settings import runs_root
from shared.training import warm_start, workers

log = logging.getLogger("casebook.steps")

MOST_CUTS = 4
"""How often a run's micro-batches are made smaller; beyond that it is not the batch that fills the memory."""


def champion(this: Run) -> str | None:
    """Folder of the champion that members are offered to start from, or None.

    Decided once a run: a resumed one goes on from the champion that stood when it began.

    Raises:
        InputError: A champion stands and was asked for, and cannot be opened.
    """
    if this.config.train.from_ != "champion":
        return None
    kept = this.manifest.get("started_from")
    if kept is None:
        kept = {"champion": None, "run": "", "path": None}
        standing = registry.champion(this.domain.name)
        if standing is not None:
            try:
                model = registry.published(standing)
            except CasebookError as error:
                raise InputError(error.message, warm_start.REMEDY) from error
            kept = {"champion": model.label, "run": standing.run, "path": str(model.path)}
        this.note(started_from=kept)
    if kept["path"] is None:
        log.warning(
            "There is no champion of %s to start from: training starts from new weights.", this.domain.name
        )
    return kept["path"]  # type: ignore[no-any-return]


def note_starts(this: Run, reports: Sequence[Mapping[str, Any]]) -> None:
    """Puts into the manifest what each member started from, where a champion was asked for."""
    if this.config.train.from_ != "champion":
        return
    members = [
        {"fold": report["fold"], "seed": report["seed"], **report["started_from"]} for report in reports
    ]
    this.note(started_from={**this.manifest["started_from"], "members": members})


def train(
    this: Run, prepared: Path, plan: ExecutionPlan, fold: int, seed: int, folder: Path, **options: Any
) -> dict[str, Any]:
    """Trains one member from its last checkpoint, in smaller micro-batches where its memory runs out.

    The global batch stays, and with it the steps, their order and the schedule. Later members, and
    later attempts, begin with the micro-batches that were found: they have the same model to train.

    Args:
        options: Further keywords of :func:`shared.training.member.train_member`.

    Raises:
        TrainingError: Memory ran out even so.
        WorkerError: The child was ended, or ended at its deadline; the remedy says how to go on.
        CasebookError: What ended the training otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    begun = plan.accumulation
    while True:
        now = replace(plan, accumulation=max(begun, int(this.manifest.get("micro_batches", 1))))
        outcome = workers.train(
            this.domain.name,
            str(prepared),
            this.config.model_dump(),
            fold,
            seed,
            now.to_dict(),
            str(folder),
            runs=runs_root(),
            timeout=this.config.train.hours * 3600,
            memory_bytes=_memory_limit(this, plan),
            **options,
        )
        if not _ran_out(this, outcome):
            return _value(this, outcome)
        _cut(this, now, outcome)


def _value(this: Run, outcome: worker.Outcome) -> dict[str, Any]:
    """What ``train_member`` returned; of a child that was ended, what is left of its work is said."""
    try:
        return dict(worker.value_of(outcome, "train_member"))
    except WorkerError as error:
        if outcome.verdict is worker.Verdict.BUG:
            raise  # it would fail again
        again = f"`casebook resume {this.id}` goes on from the last checkpoint."
        raise WorkerError(error.message, f"{error.remedy} {again}".strip()) from error


def _ran_out(this: Run, outcome: worker.Outcome) -> bool:
    """Whether memory ran out. Under a limit, native code that gets none may end the process without a word."""
    if outcome.verdict is worker.Verdict.OUT_OF_MEMORY:
        return True
    crashed = outcome.message.startswith(("It was ended by SIGABRT", "It was ended by SIGSEGV"))
    return this.config.plan.memory_gb is not None and outcome.verdict is worker.Verdict.KILLED and crashed


def _memory_limit(this: Run, plan: ExecutionPlan) -> int | None:
    """The limit that the person set; a GPU's driver reserves far more than it uses, so none there."""
    limit = this.config.plan.memory_gb
    return None if limit is None or plan.device != "cpu" else int(limit * 2**30)


def _cut(this: Run, plan: ExecutionPlan, outcome: worker.Outcome) -> None:
    """Notes smaller micro-batches for the next attempt."""
    cuts = [*this.manifest.get("memory", ()), _words(plan)]
    smaller = [n for n in micro_batches(plan.batch_size, plan.replicas) if n > plan.accumulation]
    if not smaller or len(cuts) > MOST_CUTS:
        raise TrainingError(
            f"Training ran out of memory, with {'; then '.join(cuts)}. {outcome.message}",
            "Use a smaller model or examples, a smaller --plan.batch_size, or more memory"
            + (" (--plan.memory_gb)." if this.config.plan.memory_gb else "."),
        )
    found = replace(plan, accumulation=smaller[0])
    this.note(memory=cuts, micro_batches=found.accumulation)
    log.warning(
        "Training ran out of memory with %s; it goes on from its last checkpoint with %s. "
        "The steps are the same; batch normalisation, where the model has it, sees the micro-batches.",
        _words(plan), _words(found),
    )  # fmt: skip


def _words(plan: ExecutionPlan) -> str:
    if plan.accumulation == 1:
        return f"batch {plan.batch_size} as a whole"
    return f"batch {plan.batch_size} in {plan.accumulation} micro-batches of {plan.batch_size // plan.accumulation}"
