"""The gate: each condition alone holds a model, and says why in words."""

import json
from dataclasses import asdict, replace

import pytest

from shared import files
from shared.config import GateSection
from shared.evaluation.comparison import Comparison, Row
from shared.evaluation.gate import decide
from shared.evaluation.guards import GuardResult

SECTION = GateSection()
GUARDS = [
    GuardResult("groups are not divided", True, "ok"),
    GuardResult("inputs do not look ahead", None, "no time"),
]
EXPORT = {"max_difference": 2e-7, "tolerance": 1e-4}


def compared(value=0.83, best=0.78, low=0.02, high=0.08, examples=400, higher=True, **others):
    sign = 1 if higher else -1
    rows = (
        Row("model", value, value - 0.03, value + 0.03),
        Row("majority", 0.5, 0.5, 0.5, sign * (value - 0.5), 0.2, 0.4),
        Row("gradient boosting", best, best - 0.03, best + 0.03, sign * (value - best), low, high),
    )
    return replace(
        Comparison(rows, "AUROC", "", higher, 0.5, examples, 80, "groups", None, 1000, 0.95), **others
    )


def against_champion(low, examples=100, difference=0.0):
    rows = (
        Row("model", 0.83, 0.8, 0.86),
        Row("champion", 0.83 - difference, 0.8, 0.86, difference, low, 0.05),
    )
    return {"examples": examples, "comparison": compared(rows=rows).to_dict()}


def verdict(comparison=None, champion=None, guards=GUARDS, export=EXPORT, section=SECTION, synthetic=False):
    return decide(
        comparison or compared(),
        champion=champion,
        guards=guards,
        export=export,
        section=section,
        synthetic=synthetic,
    )


def held(**given):
    gate = verdict(**given)
    assert gate.verdict == "hold"
    assert all(reason.startswith("held: ") for reason in gate.reasons)
    return "\n".join(gate.reasons)


def test_promoted_with_the_reason():
    gate = verdict()
    assert gate.verdict == "promote"
    assert gate.reasons == [
        "promoted: AUROC 0.83 is better than gradient boosting (0.78) by +0.05 (+0.02 to +0.08)",
        "promoted: no champion stands",
    ]
    assert [check.passed for check in gate.checks] == [True, True, True, True, None, None]


def test_not_better_than_the_best_baseline_by_the_lower_end():
    close = compared(value=0.52, best=0.51, low=-0.0098, high=0.03)
    assert held(comparison=close) == (
        "held: AUROC 0.52 is not better than gradient boosting (0.51) by the lower end of the interval: -0.0098"
    )
    assert "lower end of the interval: 0" in held(comparison=compared(low=0.0))  # equal is not better


def test_the_best_baseline_of_an_error_is_the_smallest():
    rows = (
        Row("model", 0.12, 0.11, 0.13),
        Row("bilinear", 1.1, 1.0, 1.2, 0.98, 0.9, 1.0),
        Row("ridge", 0.17, 0.16, 0.18, 0.05, 0.04, 0.06),
    )
    gate = verdict(comparison=compared(rows=rows, score="RMSE", unit="K", higher_is_better=False))
    assert gate.reasons[0] == "promoted: RMSE 0.12 K is better than ridge (0.17) by +0.05 (+0.04 to +0.06)"


def test_a_failed_guard_or_none_at_all_holds():
    leak = GuardResult("groups are not divided", False, "Group 7 of test is in train too.", "2010", "film-3")
    assert "no number here can be trusted (groups are not divided: Group 7" in held(guards=[*GUARDS, leak])
    assert "no guard was run" in held(guards=[])
    assert "no guard was run" in held(guards=GUARDS[1:])


@pytest.mark.parametrize("export", [None, {}, {"max_difference": None}, {"max_difference": float("nan")}])
def test_an_unchecked_export_holds(export):
    assert "was not shown to equal" in held(export=export)


def test_an_export_that_differs_holds():
    assert "differs from the trained one by 0.02, more than 0.0001" in held(
        export={**EXPORT, "max_difference": 0.02}
    )


def test_too_few_examples_or_too_many_undefined_resamples_hold():
    assert "29 test examples are too few" in held(comparison=compared(examples=29))
    rows = tuple(replace(row, undefined=501) for row in compared().rows)
    assert "undefined in 501 of 1000 resamples" in held(comparison=compared(rows=rows))


def test_the_champion_may_be_missed_by_the_margin_at_most():
    gate = verdict(champion=against_champion(low=-0.009))
    assert gate.verdict == "promote"
    assert "is not worse than the champion (0.83) by more than 0.01" in gate.reasons[-1]
    reason = held(champion=against_champion(low=-0.01, difference=0.01))
    assert "may be worse than the champion (0.82) by more than the margin of 0.01" in reason
    assert "+0.01 (-0.01 to +0.05) on 100 fair examples" in reason


@pytest.mark.parametrize("match", [{"examples": 0}, against_champion(0.1, examples=29)])
def test_too_few_fair_examples_hold(match):
    assert "examples that neither this model nor the champion was trained on are too few" in held(
        champion=match
    )


def test_without_baselines_chance_is_what_it_must_beat():
    alone = compared(rows=compared().rows[:1])
    assert verdict(comparison=alone).verdict == "promote"
    assert "is not better than chance (0.5)" in held(
        comparison=replace(alone, rows=(Row("model", 0.52, 0.49, 0.55),))
    )
    assert "stands alone" in held(comparison=replace(alone, chance=None))


def test_what_is_undefined_holds():
    rows = (Row("model", float("nan")), *compared().rows[1:])
    assert "AUROC of the model is undefined" in held(comparison=compared(rows=rows))
    rows = (compared().rows[0], Row("majority", 0.5, difference=0.3))
    assert "cannot be compared with majority: there is no interval" in held(comparison=compared(rows=rows))


def test_takes_what_the_run_folder_holds(tmp_path):
    files.write_json(
        tmp_path / "m.json", {"comparison": compared().to_dict(), "guards": [asdict(g) for g in GUARDS]}
    )
    kept = json.loads((tmp_path / "m.json").read_text())
    assert verdict(comparison=kept["comparison"], guards=kept["guards"]) == verdict()


def test_synthetic_never_replaces_real():
    real = {**against_champion(low=0.02), "synthetic": False}
    made_up = {**against_champion(low=0.02), "synthetic": True}
    assert "does not replace a champion trained on real data" in held(champion=real, synthetic=True)
    assert verdict(champion=made_up, synthetic=True).verdict == "promote"
    assert verdict(champion=made_up, synthetic=False).verdict == "promote"
    assert verdict(champion=None, synthetic=True).verdict == "promote"
