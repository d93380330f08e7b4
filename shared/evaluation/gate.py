"""The gate: may this model be put to use? A verdict, and its reasons in plain sentences.

Hold is a result, not an error. A model is promoted only where every check passes: its guards,
its export, better than the best baseline, and not worse than the champion where one stands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shared.config import GateSection
from shared.evaluation.comparison import Comparison, Row
from shared.evaluation.guards import GuardResult

EXPORT_TOLERANCE = 1e-3
"""Largest difference of export and trained model, where the export itself states none."""


@dataclass(frozen=True)
class Check:
    """One condition; ``detail`` is a sentence. ``passed`` is None where it does not apply."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True)
class Gate:
    """The verdict.

    Attributes:
        verdict: ``"promote"`` or ``"hold"``.
        reasons: Sentences for people: each failed check, or why it is promoted.
        checks: All conditions, passed or not.
    """

    verdict: Literal["promote", "hold"]
    reasons: list[str]
    checks: list[Check]


def decide(
    comparison: Comparison | Mapping[str, Any],
    *,
    champion: Mapping[str, Any] | None,
    guards: Sequence[GuardResult | Mapping[str, Any]],
    export: Mapping[str, Any] | None,
    section: GateSection,
    synthetic: bool = False,
) -> Gate:
    """Promote or hold.

    Args:
        comparison: The model against its baselines on the test set (or its plain data).
        champion: None where no champion stands. Else ``examples``: on how many fair examples both
            could be compared, those that neither was trained or tuned on; and ``comparison``:
            of the candidate (``model``) with ``champion`` on these; ``synthetic``: whether the
            champion was trained on synthetic data.
        guards: What the guards found.
        export: ``max_difference`` of the exported and the trained model's outputs and, where
            stated, the ``tolerance``; None where it was not compared.
        section: Margin, fewest examples.
        synthetic: The candidate was trained on synthetic data.
    """
    compared = comparison if isinstance(comparison, Comparison) else Comparison.from_dict(comparison)
    checks = [
        _guards(guards),
        _export(export),
        _enough(compared, section),
        _baseline(compared),
        _champion(champion, section),
        _real_stays(champion, synthetic),
    ]
    failed = [check for check in checks if check.passed is False]
    if failed:
        return Gate("hold", [f"held: {check.detail}" for check in failed], checks)
    reasons = [f"promoted: {check.detail}" for check in checks[3:5]]
    return Gate("promote", reasons, checks)


def _guards(found: Sequence[GuardResult | Mapping[str, Any]]) -> Check:
    guards = [one if isinstance(one, GuardResult) else GuardResult(**one) for one in found]
    failed = [guard for guard in guards if guard.passed is False]
    if failed:
        listed = "; ".join(f"{guard.name}: {guard.detail.rstrip('.')}" for guard in failed)
        return Check("guards", False, f"a guard failed, so no number here can be trusted ({listed})")
    passed = sum(guard.passed is True for guard in guards)
    if not passed:
        return Check("guards", False, "no guard was run, so nothing speaks against a leak")
    others = len(guards) - passed
    return Check("guards", True, f"{passed} passed" + (f", {others} not applicable" if others else ""))


def _export(export: Mapping[str, Any] | None) -> Check:
    name = "export equals the trained model"
    difference = None if export is None else export.get("max_difference")
    if export is None or difference is None or not math.isfinite(difference):
        return Check(name, False, "the exported model was not shown to equal the trained one")
    tolerance = export.get("tolerance", EXPORT_TOLERANCE)
    if difference > tolerance:
        return Check(
            name, False, f"the exported model differs from the trained one by {difference:.2g}, more than "
            f"{tolerance:.2g}",
        )  # fmt: skip
    return Check(name, True, f"largest difference {difference:.2g}")


def _enough(compared: Comparison, section: GateSection) -> Check:
    name = "enough test examples"
    if compared.examples < section.min_examples:
        return Check(
            name, False, f"{compared.examples} test examples are too few to judge by, at least {section.min_examples} "
            "are needed",
        )  # fmt: skip
    undefined = max(row.undefined for row in compared.rows)
    if undefined > compared.resamples / 2:
        return Check(
            name, False, f"{compared.score} is undefined in {undefined} of {compared.resamples} resamples: the test "
            "set is too small or too one-sided to judge by",
        )  # fmt: skip
    together = f" in {compared.units} groups" if compared.units != compared.examples else ""
    return Check(name, True, f"{compared.examples} examples{together}")


def _baseline(compared: Comparison) -> Check:
    """The lower end of the interval of (model - best baseline) is above 0."""
    name = "better than the best baseline"
    mine = _shown(compared, compared.model.value)
    best = compared.best_baseline
    if not math.isfinite(compared.model.value):
        return Check(name, False, f"{compared.score} of the model is undefined")
    if best is None:
        return _chance(compared, mine)
    low, high = best.difference_low, best.difference_high
    if low is None or high is None:
        return Check(name, False, f"{mine} cannot be compared with {best.name}: there is no interval")
    if low <= 0:
        return Check(
            name, False, f"{mine} is not better than {best.name} ({_number(best.value)}) by the lower end of the "
            f"interval: {_signed(low)}",
        )  # fmt: skip
    return Check(name, True, f"{mine} is better than {best.name} ({_number(best.value)}) by {_by(best)}")


def _chance(compared: Comparison, mine: str) -> Check:
    """Without any baseline: the interval of the model's own score lies beyond chance."""
    name = "better than the best baseline"
    edge = compared.model.low if compared.higher_is_better else compared.model.high
    if compared.chance is None or edge is None:
        return Check(name, False, f"{mine} stands alone: there is no baseline to be better than")
    beyond = (edge > compared.chance) if compared.higher_is_better else (edge < compared.chance)
    verb = "is better than" if beyond else "is not better than"
    return Check(
        name, beyond, f"{mine} {verb} chance ({compared.chance:g}); the interval ends at {_number(edge)}"
    )


def _champion(match: Mapping[str, Any] | None, section: GateSection) -> Check:
    """The lower end of the interval of (candidate - champion) is above -margin, on enough fair examples."""
    name = "not worse than the champion"
    if match is None:
        return Check(name, None, "no champion stands")
    examples = int(match.get("examples", 0))
    if examples < section.min_examples or match.get("comparison") is None:
        return Check(
            name, False, f"{examples} examples that neither this model nor the champion was trained on are too few to "
            f"compare them fairly, at least {section.min_examples} are needed",
        )  # fmt: skip
    raw = match["comparison"]
    compared = raw if isinstance(raw, Comparison) else Comparison.from_dict(raw)
    row = compared["champion"]
    mine, low = _shown(compared, compared.model.value), row.difference_low
    if low is None or row.difference is None:
        return Check(name, False, f"{mine} cannot be compared with the champion: there is no interval")
    if not low > -section.margin:
        return Check(
            name, False, f"{mine} may be worse than the champion ({_number(row.value)}) by more than the margin of "
            f"{section.margin:g}: the difference is {_by(row)} on {examples} fair examples",
        )  # fmt: skip
    return Check(
        name, True, f"{mine} is not worse than the champion ({_number(row.value)}) by more than {section.margin:g}: "
        f"the difference is {_by(row)} on {examples} fair examples",
    )  # fmt: skip


def _real_stays(match: Mapping[str, Any] | None, synthetic: bool) -> Check:
    """A model of made-up data never takes the place of one of real data, whatever its score on its own."""
    name = "synthetic never replaces real"
    if match is None or not synthetic:
        return Check(
            name, None, "the model was trained on real data" if not synthetic else "no champion stands"
        )
    if match.get("synthetic", False):
        return Check(name, True, "the champion was trained on synthetic data, too")
    return Check(
        name, False, "a model trained on synthetic data does not replace a champion trained on real data"
    )


def _shown(compared: Comparison, value: float) -> str:
    unit = f" {compared.unit}" if compared.unit else ""
    return f"{compared.score} {_number(value)}{unit}"


def _by(row: Row) -> str:
    assert row.difference is not None
    assert row.difference_low is not None
    assert row.difference_high is not None
    return f"{_signed(row.difference)} ({_signed(row.difference_low)} to {_signed(row.difference_high)})"


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "undefined"


def _signed(value: float) -> str:
    return f"{value:+.2g}" if value else "0"
