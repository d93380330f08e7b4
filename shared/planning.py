"""From what is to be trained to a measured plan: look, reuse or search, keep.

Runs in a process without TensorFlow; each trial is a child (``shared/worker.py``) that has
the device to itself, because this process holds the device's lock until the plan is made.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shared import cluster, crew_plan, files, fingerprint, lock, mixed_precision, progress, worker
from shared.batch_size import Search, check_given_size, ladder, micro_batches
from shared.config import AcceleratorSection, PlanSection, TrainSection
from shared.errors import CasebookError, DeviceError, InputError, TrainingError
from shared.machine import Machine, machine
from shared.plan import ExecutionPlan, Trial, Verdict
from shared.plan_words import cells, first_line, in_bytes, last_words, other_sentences, rate
from shared.trial import Recipe, describe, measure
from shared.worker import ChildTraceback, Outcome

log = logging.getLogger("casebook.plan")

CACHE_SHARE = 0.4
"""Of the memory that is free, how much the cache of examples may take; the rest is the training's."""

RAM_BUDGET_SHARE = 0.1
"""Of the memory that is free, how much tf.data's buffers may take (its own default is half of all)."""

_NO_CLUSTER = {cluster.VARIABLE: None}
"""Trials are one process's, whatever crew it will train with."""

DESCRIBE_SECONDS = 600.0
"""Limit of building the model and reading one example. Not a trial: it may download weights."""


def make(
    recipe: Recipe,
    section: PlanSection,
    device: AcceleratorSection,
    train: TrainSection,
    *,
    plans: Path | None,
    name: str,
) -> ExecutionPlan:
    """The kept plan for this work on this device, or a new one from a search.

    Args:
        plans: Where plans are kept; None: nowhere.
        name: What is planned, for people.

    Raises:
        DeviceError, InputError, TrainingError: See :func:`shared.plan.for_domain`.
    """
    size = cluster.size(device)
    if size == 1:
        return _alone(recipe, section, device, train, plans, name)
    return crew_plan.over(
        size, section, device, lambda own, one: _alone(recipe, own, one, train, plans, name)
    )


def _alone(
    recipe: Recipe,
    section: PlanSection,
    device: AcceleratorSection,
    train: TrainSection,
    plans: Path | None,
    name: str,
) -> ExecutionPlan:
    """For one process."""
    with lock.held():
        progress.emit("plan", 0, None, note="looking at the device and the model")
        outcome = worker.run(describe, recipe, device, timeout=DESCRIBE_SECONDS, environment=_NO_CLUSTER)
        if outcome.verdict is not worker.Verdict.OK:
            raise _as_error(outcome, "Building the model and reading an example")
        here = _Place(outcome.value, machine(), section, device, train)
        key = here.fingerprint()
        kept = None if plans is None or section.replan else _kept(plans / f"{key}.json")
        if kept is not None:
            progress.emit("plan", 1, 1, note="kept from an earlier search")
            return _suited(kept, here.machine)
        found = replace(_searched(recipe, here, name), fingerprint=key)
        if plans is not None and found.measured:
            files.write_json(plans / f"{key}.json", found.to_dict())
        return found


@dataclass(frozen=True)
class _Place:
    """The device, the work and what the person asked for.

    Attributes:
        facts: As :func:`shared.trial.describe` gives them.
    """

    facts: dict[str, Any]
    machine: Machine
    section: PlanSection
    device: AcceleratorSection
    train: TrainSection

    @property
    def given(self) -> bool:
        """Whether nothing is left to search."""
        return isinstance(self.section.batch_size, int) and self.section.precision != "auto"

    def sizes(self) -> list[int]:
        replicas = self.facts["replicas"]
        if isinstance(self.section.batch_size, int):
            check_given_size(self.section.batch_size, replicas)
            return [min(self.section.batch_size, self.largest())]
        return ladder(self.facts["count"], largest=self.section.max_batch_size, replicas=replicas)

    def cuts(self) -> list[int]:
        """Numbers of micro-batches to try where the size that was asked for does not fit as a whole."""
        if not isinstance(self.section.batch_size, int):
            return []
        return micro_batches(self.sizes()[0], self.facts["replicas"])

    def largest(self) -> int:
        """The largest batch of training: no larger than the data, and shared equally by the replicas."""
        replicas = self.facts["replicas"]
        return int(max(replicas, self.facts["count"] // replicas * replicas))

    def precisions(self) -> tuple[list[str], list[str]]:
        """Policies to try, simplest first, and a sentence on each that is not."""
        policies = mixed_precision.candidates(self.machine, self.facts["device"])
        asked = self.section.precision
        if asked == "auto":
            unusable = [f"{p.name} not tried: {p.reason}." for p in policies if not p.usable]
            return [p.name for p in policies if p.usable], unusable
        warnings = [
            f"{asked} as asked for, although {p.reason}."
            for p in policies
            if p.name == asked and not p.usable
        ]
        return [asked], warnings or [f"{asked}, as asked for."]

    def xla(self) -> bool | None:
        if self.facts["device"] == "tpu":
            return False  # a TPU compiles everything with XLA, asked or not
        if self.section.xla == "auto" and not self.given:
            return None
        return self.section.xla == "on"

    def memory_limit(self) -> int | None:
        """Address space of a trial; a GPU's driver reserves far more than it uses, so none there."""
        if self.facts["device"] != "cpu":
            return None
        if self.section.memory_gb is not None:
            return int(self.section.memory_gb * 2**30)
        return self.machine.memory_available_bytes

    def room(self) -> int:
        """Bytes of memory that training may take on this host."""
        free = self.machine.memory_available_bytes
        limit = self.memory_limit()
        return free if limit is None else min(free, limit)

    def fingerprint(self) -> str:
        here, facts = self.machine, self.facts
        return fingerprint.of(
            [
                facts["device"],
                facts["replicas"],
                here.cpu,
                here.cores,
                here.flags,
                [vars(gpu) for gpu in here.gpus],
            ],
            [facts["versions"], here.python, fingerprint.of_package("shared.training")],
            [facts["graph"], facts["loss"], facts["examples"], facts["augmented"], self.sizes()],
            self.section.model_dump(exclude={"replan"}),
            self.device.model_dump(exclude={"release_command"}),
            [self.train.clip_norm, self.train.weight_decay],
        )


def _searched(recipe: Recipe, here: _Place, name: str) -> ExecutionPlan:
    free = here.room()
    base = ExecutionPlan(
        device=here.facts["device"],
        device_name=here.facts["device_name"],
        replicas=here.facts["replicas"],
        cache_bytes=_whole_mebibytes(CACHE_SHARE * free),
        ram_budget_bytes=_whole_mebibytes(RAM_BUDGET_SHARE * free),
        about={
            "name": name,
            "searched": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": here.machine.to_dict(),
            **{key: here.facts[key] for key in ("count", "example_bytes", "parameters", "versions")},
        },
    )
    precisions, notes = here.precisions()
    asked = here.section.batch_size
    if isinstance(asked, int) and asked > here.largest():
        notes = [
            f"Batch {asked} was asked for; there are {here.facts['count']} examples to train on.",
            *notes,
        ]
    trials = _Trials(recipe, here, base, simplest=precisions[0])
    search = Search(
        measure=trials,
        sizes=here.sizes(),
        precisions=precisions,
        xla=here.xla(),
        seconds=here.section.seconds,
        trial_seconds=here.section.trial_seconds,
        fastest=here.section.batch_size == "max-throughput",
        cuts=here.cuts(),
    )
    total = len(search.sizes) + len(precisions) - 1 + (search.xla is None)
    search.tell = lambda what, best: _tell(what, best, len(search.trials), total)
    began = search.clock()
    try:
        chosen = search.run()
    except TrainingError:
        if here.given and search.trials and search.trials[-1].verdict == "timed out":
            return _unmeasured(base, search.trials, here)
        raise
    seconds = search.clock() - began
    details = trials.details[chosen]
    rule, factor, why_rate = rate(here.section, chosen.batch_size)
    progress.emit("plan", total, total, note=f"batch {chosen.batch_size}, {chosen.precision}")
    return replace(
        base,
        precision=chosen.precision,
        xla=chosen.xla,
        batch_size=chosen.batch_size,
        accumulation=chosen.accumulation,
        steps_per_call=details["steps_per_call"],
        learning_rate_rule=rule,
        learning_rate_factor=factor,
        samples_per_second=chosen.samples_per_second,
        input_bound_share=details["input_bound_share"],
        search_seconds=round(seconds, 2),
        trials=tuple(search.trials),
        reasons=(*search.reasons, *notes, why_rate, *other_sentences(base, details, here.facts)),
        measured=True,
    )


@dataclass
class _Trials:
    """Makes one trial in a child; ``details`` keeps what a :class:`Trial` has no place for."""

    recipe: Recipe
    here: _Place
    base: ExecutionPlan
    simplest: str
    details: dict[Trial, dict[str, Any]] = field(default_factory=dict)

    def __call__(self, size: int, precision: str, xla: bool, seconds: float, accumulation: int) -> Trial:
        settings = replace(
            self.base, batch_size=size, precision=precision, xla=xla, accumulation=accumulation
        ).to_dict()
        outcome = worker.run(
            measure,
            self.recipe,
            self.here.device,
            settings,
            timeout=seconds,
            memory_bytes=self.here.memory_limit(),
            environment=_NO_CLUSTER,
        )
        if outcome.verdict is worker.Verdict.BUG:
            # A model that cannot be compiled by XLA, or fails in 16 bits, is trained without.
            optional = precision != self.simplest or (xla and self.here.section.xla == "auto")
            if not optional or isinstance(outcome.error, DeviceError):
                raise _as_error(outcome, f"The trial with batch {size} and {precision}")
        trial = _trial(outcome, size, precision, xla, accumulation)
        self.details[trial] = outcome.value or {}
        log.info("%s", " ".join(cells(trial)))
        return trial


_VERDICTS: dict[worker.Verdict, Verdict] = {
    worker.Verdict.OK: "fits",
    worker.Verdict.OUT_OF_MEMORY: "out of memory",
    worker.Verdict.TIMED_OUT: "timed out",
    worker.Verdict.KILLED: "killed",
    worker.Verdict.BUG: "bug",
}


def _trial(outcome: Outcome, size: int, precision: str, xla: bool, accumulation: int) -> Trial:
    def ended(verdict: Verdict, note: str) -> Trial:
        return Trial(
            size, precision, xla, verdict, peak_bytes=outcome.peak_bytes, note=note, accumulation=accumulation
        )

    if isinstance(outcome.error, TrainingError):
        return ended("unsound", outcome.error.message)
    if outcome.verdict is not worker.Verdict.OK:
        bug = outcome.verdict is worker.Verdict.BUG
        return ended(_VERDICTS[outcome.verdict], last_words(outcome) if bug else first_line(outcome.message))
    value = outcome.value
    if not value["sound"]:
        return ended("unsound", "the loss was NaN or Inf within a few steps")
    return Trial(
        size,
        precision,
        xla,
        "fits",
        samples_per_second=value["samples_per_second"],
        spread=value["spread"],
        step_seconds=value["step_seconds"],
        compile_seconds=value["compile_seconds"],
        peak_bytes=value["peak_bytes"],
        accumulation=accumulation,
    )


def _as_error(outcome: Outcome, what: str) -> CasebookError:
    """The error that ends the search, for a person: what failed, and how."""
    if isinstance(outcome.error, CasebookError):
        return outcome.error
    if outcome.verdict is worker.Verdict.BUG:
        error = TrainingError(f"{what} failed: {last_words(outcome)}.", "The cause is shown with --debug.")
    else:
        error = TrainingError(f"{what} failed. {outcome.message}")
    error.__cause__ = outcome.error or ChildTraceback(outcome.message)
    return error


def _unmeasured(base: ExecutionPlan, trials: Sequence[Trial], here: _Place) -> ExecutionPlan:
    """What the person asked for in every point, although the last of ``trials`` did not end in time."""
    trial = trials[-1]
    rule, factor, why_rate = rate(here.section, trial.batch_size)
    cut = f", in {trial.accumulation} micro-batches" if trial.accumulation > 1 else ""
    return replace(
        base,
        precision=trial.precision,
        xla=trial.xla,
        batch_size=trial.batch_size,
        accumulation=trial.accumulation,
        learning_rate_rule=rule,
        learning_rate_factor=factor,
        trials=tuple(trials),
        reasons=(
            f"Batch {trial.batch_size}{cut} and {trial.precision} as asked for, not measured: the trial was "
            f"stopped at its limit of {here.section.trial_seconds:g} s (plan.trial_seconds).",
            why_rate,
        ),
    )


def _tell(what: str, best: Trial | None, done: int, total: int) -> None:
    so_far = ""
    numbers = {}
    if best is not None:
        so_far = f"; best so far batch {best.batch_size}, {best.precision}"
        numbers["samples_per_second"] = round(best.samples_per_second or 0.0, 1)
    progress.emit("plan", done, max(total, done + 1), note=what + so_far, **numbers)


def _kept(file: Path) -> ExecutionPlan | None:
    try:
        return ExecutionPlan.from_dict(files.read_json(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError, InputError) as error:
        log.warning("The kept plan %s cannot be read and is made anew: %s", file, error)
        return None


def _suited(plan: ExecutionPlan, here: Machine) -> ExecutionPlan:
    """A kept plan for today: with less cache where there is less memory now."""
    when = str(plan.about.get("searched", ""))[:16].replace("T", " ")
    reasons = [f"Kept from the search of {when} on this device; plan.replan measures anew.", *plan.reasons]
    cache = plan.cache_bytes
    if cache > here.memory_available_bytes:
        cache = _whole_mebibytes(CACHE_SHARE * here.memory_available_bytes)
        reasons.append(
            f"The cache is {in_bytes(cache)} now: less memory is free than when the plan was made."
        )
    return replace(plan, cache_bytes=cache, reasons=tuple(reasons), about={**plan.about, "kept": True})


def _whole_mebibytes(count: float) -> int:
    return int(count) >> 20 << 20
