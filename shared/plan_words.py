"""A plan in words: the table of its trials, and the sentences behind its choices."""

from __future__ import annotations

import re
from typing import Any, Literal, cast

from shared.config import PlanSection
from shared.plan import ExecutionPlan, Trial
from shared.training import learning_rate
from shared.worker import Outcome

COLUMNS = ("batch", "precision", "XLA", "verdict", "samples/s", "step ms", "compile s", "memory", "note")


def table(plan: ExecutionPlan) -> list[list[str]]:
    """See :func:`shared.plan.table`."""
    return [list(COLUMNS), *(cells(trial, _is_chosen(trial, plan)) for trial in plan.trials)]


def _is_chosen(trial: Trial, plan: ExecutionPlan) -> bool:
    mine = (trial.batch_size, trial.accumulation, trial.precision, trial.xla)
    return mine == (plan.batch_size, plan.accumulation, plan.precision, plan.xla)


def cells(trial: Trial, chosen: bool = False) -> list[str]:
    """The trial's row of the table; a batch in micro-batches is told as ``64 (4 x 16)``."""
    speed = step = compiled = memory = ""
    if trial.samples_per_second is not None:
        speed = f"{_three_digits(trial.samples_per_second)} ± {trial.spread or 0.0:.0%}"
    if trial.step_seconds is not None:
        step = _three_digits(trial.step_seconds * 1000)
    if trial.compile_seconds is not None:
        compiled = f"{trial.compile_seconds:.1f}"
    if trial.peak_bytes is not None:
        memory = in_bytes(trial.peak_bytes)
    note = "chosen" if chosen and trial.verdict == "fits" else trial.note
    size, xla = in_micro_batches(trial.batch_size, trial.accumulation), "on" if trial.xla else "off"
    return [size, trial.precision, xla, trial.verdict, speed, step, compiled, memory, note]


def in_micro_batches(size: int, accumulation: int) -> str:
    """A batch for people.

    >>> in_micro_batches(64, 1), in_micro_batches(64, 4)
    ('64', '64 (4 x 16)')
    """
    return str(size) if accumulation == 1 else f"{size} ({accumulation} x {size // accumulation})"


def rate(section: PlanSection, size: int) -> tuple[Literal["square-root", "linear", "none"], float, str]:
    """Rule and factor for the learning rate at a batch of ``size``, and the sentence that says so."""
    rule = "square-root" if section.learning_rate_rule == "auto" else section.learning_rate_rule
    factor = learning_rate.factor(rule, size)
    reference = learning_rate.REFERENCE_BATCH
    how = {
        "square-root": f"the square root of {size}/{reference}, the rule for Adam",
        "linear": f"{size}/{reference}, the linear rule",
        "none": "no rule was asked for",
    }[rule]
    return cast(Any, rule), factor, f"Learning rate x{factor:.3g}: {how}."


def other_sentences(base: ExecutionPlan, details: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """Sentences on steps per call, cache and input."""
    needed, room = facts["count"] * facts["example_bytes"], base.cache_bytes
    if facts["in_memory"]:
        cache = "The examples lie in memory already."
    elif needed <= room:
        cache = f"The examples ({in_bytes(needed)}) fit into the cache of {in_bytes(room)}."
    else:
        cache = f"The examples ({in_bytes(needed)}) do not fit into the cache of {in_bytes(room)} and are streamed."
    share = details["input_bound_share"]
    waiting = (
        "How long a step waits for input was not measured: reading is too slow to try."
        if share is None
        else details["advice"] or f"{share:.0%} of a step is spent waiting for input."
    )
    steps = details["steps_per_call"]
    calls = f"{steps} step{'s' if steps > 1 else ''} in one call, {details['step_seconds'] * steps:.2g} s."
    return [calls, cache, waiting]


def last_words(outcome: Outcome) -> str:
    """The error's class and message in a line, without TensorFlow's long heads and tails."""
    text = outcome.message.partition("\nThe last it printed:")[0]
    if outcome.error is not None:
        text = f"{type(outcome.error).__name__}: {outcome.error}"
    # Keras puts the true message, in bold, under the name of the layer.
    text = re.sub(
        r"Exception encountered when calling ([\w.]+)\(\)\.\s+\x1b\[1m(.*?)\x1b\[0m", r"\2 (in \1)", text
    )
    # AutoGraph tells the true error last, indented, behind "in user code:" and its own frames.
    named = re.findall(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception|Exit): .*)$", text, re.MULTILINE)
    return first_line(named[-1] if named else text).rstrip(".")


def first_line(text: str) -> str:
    lines = text.strip().splitlines() or [""]
    return lines[0] if len(lines[0]) <= 300 else lines[0][:297] + "..."


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def in_bytes(count: float) -> str:
    """A number of bytes for people.

    >>> in_bytes(934_000), in_bytes(4.8e6)
    ('934 KB', '4.8 MB')
    """
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
