"""Guards: what must be true before a number may be believed.

Each guard is a small function that looks for one way in which a test set is seen in training.
It passes, fails with the fold and the key where it failed, or does not apply. They are run on
every run, on the arrays that were really trained and tested on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from shared.contract import SPLITS, Domain, Fold, FoldResult, Predictions, Score, Split
from shared.errors import LeakError
from shared.evaluation.comparison import MODEL, bootstrap
from shared.evaluation.digests import digests

SHUFFLED_CONFIDENCE = 0.999
"""Of the shuffled-labels guard: at 95% one honest run in forty would fail it by chance."""


@dataclass(frozen=True)
class GuardResult:
    """What one guard found.

    Attributes:
        name: E.g. ``"groups are not divided"``.
        passed: None where the guard does not apply to this domain.
        detail: What was checked, or what was found, in a sentence for people.
        fold: Name of the fold in which it failed.
        key: Of the example at which it failed.
    """

    name: str
    passed: bool | None
    detail: str
    fold: str = ""
    key: str = ""


def check(
    domain: Domain,
    prepared: Path,
    config: Any,
    results: Sequence[FoldResult],
    *,
    shuffled: Predictions | None = None,
) -> list[GuardResult]:
    """All guards, in the order of the report. Reads the domain's examples: run it in a child process.

    Args:
        results: Every fold with its predictions, oldest first.
        shuffled: Test predictions, on the last fold, of a model trained on shuffled labels.
    """
    folds = [result.fold for result in results]
    sources = (
        (fold, {split: digests(domain.examples(prepared, config, fold, split)) for split in SPLITS})
        for fold in folds
    )
    return [
        every("no example is in two splits", folds, disjoint),
        every("groups are not divided", folds, undivided),
        every("labels of training end before the test", folds, apart),
        no_copies(sources),
        prefix_invariant(domain, prepared, config, folds),
        predicted_once(results),
        finite(results),
        blind(domain.score(prepared, config), results[-1], shuffled),
    ]


def require(found: Sequence[GuardResult]) -> None:
    """Stops the run at the first guard that failed.

    Raises:
        LeakError: Names the guard, the fold and the key.
    """
    for result in found:
        if result.passed is False:
            fold = f" in fold {result.fold}" if result.fold else ""
            key = f", at {result.key}" if result.key else ""
            raise LeakError(
                f"Guard failed: {result.name}{fold}{key}. {result.detail}",
                "No score of this run can be trusted. Correct the split or the features, then run again.",
            )


def every(name: str, folds: Sequence[Fold], guard: Any) -> GuardResult:
    """``guard(name, fold)`` on every fold: the first failure, or the last result."""
    result = GuardResult(name, None, "There are no folds.")
    for fold in folds:
        result = guard(name, fold)
        if result.passed is False:
            return result
    return result


def disjoint(name: str, fold: Fold) -> GuardResult:
    """No number is in two splits, or twice in one, and no two examples share a key."""
    numbers = np.concatenate([fold.splits[split] for split in SPLITS])
    unique, first = np.unique(numbers, return_index=True)
    if len(unique) < len(numbers):
        twice = numbers[np.setdiff1d(np.arange(len(numbers)), first)[0]]
        return GuardResult(name, False, "It is in more than one place.", fold.name, str(fold.keys[twice]))
    keys = fold.keys[numbers]
    unique, first = np.unique(keys, return_index=True)
    if len(unique) < len(keys):
        twice = keys[np.setdiff1d(np.arange(len(keys)), first)[0]]
        return GuardResult(name, False, "Two examples have this key.", fold.name, str(twice))
    sizes = ", ".join(f"{len(fold.splits[split])} {split}" for split in SPLITS)
    return GuardResult(name, True, f"Checked by number and by key; last fold: {sizes}.")


def undivided(name: str, fold: Fold) -> GuardResult:
    """Nobody's examples are in two splits (a patient, a session)."""
    if fold.groups is None:
        return GuardResult(name, None, "The examples have no groups.")
    held = {split: fold.groups[fold.splits[split]] for split in SPLITS}
    for one, other in combinations(SPLITS, 2):
        where = np.flatnonzero(np.isin(held[other], held[one]))
        if len(where):
            return GuardResult(
                name, False, f"Group {held[other][where[0]]} of {other} is in {one} too, one of "
                f"{len(np.unique(held[other][where]))} such groups.",
                fold.name, str(fold.keys[fold.splits[other][where[0]]]),
            )  # fmt: skip
    sizes = ", ".join(f"{len(np.unique(held[split]))} {split}" for split in SPLITS)
    return GuardResult(name, True, f"Groups of the last fold: {sizes}.")


def apart(name: str, fold: Fold) -> GuardResult:
    """No label that was trained on, or tuned on, looks at a moment that a test label looks at."""
    if fold.spans is None or len(fold.splits["test"]) == 0:
        return GuardResult(name, None, "The labels have no place in time.")
    test = fold.spans[fold.splits["test"]]
    # Test spans merged into stretches without a gap, so that one search answers for all of them.
    test = test[np.argsort(test[:, 0], kind="stable")]
    ends = np.maximum.accumulate(test[:, 1])
    opens = np.concatenate([[True], test[1:, 0] > ends[:-1]])
    starts, closes = test[opens, 0], ends[np.concatenate([opens[1:], [True]])]
    for split in SPLITS[:2]:
        spans = fold.spans[fold.splits[split]]
        before = np.searchsorted(starts, spans[:, 1], side="right") - 1  # last stretch that starts in time
        meets = np.flatnonzero((before >= 0) & (closes[np.maximum(before, 0)] >= spans[:, 0]))
        if len(meets):
            worst = meets[0]
            return GuardResult(
                name, False, f"Its label in {split} looks at {spans[worst, 0]} to {spans[worst, 1]}, the test at "
                f"{starts[before[worst]]} to {closes[before[worst]]}; so do {len(meets)} in all.",
                fold.name, str(fold.keys[fold.splits[split][worst]]),
            )  # fmt: skip
    return GuardResult(
        name, True, f"The last fold's test looks at {starts[0]} to {closes[-1]}; no other label does."
    )


def no_copies(folds: Iterator[tuple[Fold, Mapping[Split, np.ndarray]]]) -> GuardResult:
    """No input of test or validation is, to the bit, an input of train or of the other.

    Args:
        folds: Each fold with the :func:`~shared.evaluation.digests.digests` of its splits, str ``[n_split]``.
    """
    name, checked = "no input is copied between splits", 0
    for fold, held in folds:
        for one, other in combinations(SPLITS, 2):
            known = {digest: number for number, digest in enumerate(held[one]) if digest}
            copies = [number for number, digest in enumerate(held[other]) if digest in known]
            if copies:
                twin = fold.keys[fold.splits[one][known[held[other][copies[0]]]]]
                return GuardResult(
                    name, False, f"This input of {other} equals {twin} of {one}; {len(copies)} such copies in all.",
                    fold.name, str(fold.keys[fold.splits[other][copies[0]]]),
                )  # fmt: skip
        checked = sum(len(numbers) for numbers in held.values())
    return GuardResult(name, True, f"{checked} inputs compared by hash in the last fold.")


def prefix_invariant(domain: Domain, prepared: Path, config: Any, folds: Sequence[Fold]) -> GuardResult:
    """Inputs at t are the same whether or not anything after t is known.

    Everything that looks ahead shows here: centred windows, backward filling, scalers and
    adjustments made over the whole series.
    """
    name = "inputs do not look ahead"
    moments = _moments(folds)
    whole = domain.inputs_as_of(prepared, config, None) if moments else None
    if whole is None:
        return GuardResult(name, None, "The inputs are not computed along time.")
    keys, inputs = whole
    where = {str(key): number for number, key in enumerate(keys)}
    compared = 0
    for moment in moments:
        cut = domain.inputs_as_of(prepared, config, moment)
        if cut is None:
            continue
        some, then = cut
        unknown = [str(key) for key in some if str(key) not in where]
        if unknown:
            return GuardResult(
                name, False, f"As of {moment} it exists, with all data known it does not.", "", unknown[0]
            )
        now = inputs[[where[str(key)] for key in some]]
        same = np.isclose(then, now, rtol=1e-5, atol=1e-6, equal_nan=True).reshape(len(some), -1).all(axis=1)
        if not same.all():
            wrong = int(np.argmin(same))
            gap = float(np.nanmax(np.abs(np.asarray(then[wrong], dtype=float) - now[wrong])))
            return GuardResult(
                name, False, f"With data up to {moment} this input differs by up to {gap:.3g} from the one with "
                f"later data known; so do {int((~same).sum())} of {len(same)}.", "", str(some[wrong]),
            )  # fmt: skip
        compared += len(some)
    if compared == 0:
        return GuardResult(name, False, f"No input could be computed as of {', '.join(moments)}.")
    return GuardResult(name, True, f"{compared} inputs recomputed as of {', '.join(moments)}: unchanged.")


def _moments(folds: Sequence[Fold]) -> list[str]:
    """Four moments: where the last test starts and through the whole history; none without spans."""
    if not folds or folds[-1].spans is None:
        return []
    begins = folds[-1].spans[:, 0]
    used = np.sort(np.concatenate([begins[folds[-1].splits[split]] for split in SPLITS]))
    chosen = [used[int(share * (len(used) - 1))] for share in (0.35, 0.65, 0.95)]
    test = begins[folds[-1].splits["test"]]
    return [str(moment) for moment in np.unique([*chosen, *([test.min()] if len(test) else [])])]


def predicted_once(results: Sequence[FoldResult]) -> GuardResult:
    """Model and baselines predicted each test example, once, and nothing else."""
    name, count = "every test example is predicted once", 0
    for result in results:
        expected = result.fold.keys[result.fold.splits["test"]].astype(str)
        for who, said in {MODEL: result.test, **result.baselines}.items():
            got = said.keys.astype(str)
            if len(got) != len(expected) or not np.array_equal(np.sort(got), np.sort(expected)):
                odd = np.setxor1d(got, expected)
                return GuardResult(
                    name, False, f"{who} has {len(got)} predictions for {len(expected)} test examples.",
                    result.fold.name, str(odd[0]) if len(odd) else "",
                )  # fmt: skip
        count += len(expected)
    return GuardResult(name, True, f"{count} test examples in {len(results)} fold{'s' * (len(results) > 1)}.")


def finite(results: Sequence[FoldResult]) -> GuardResult:
    """The model said a number, not NaN or Inf, of every example."""
    name = "predictions are finite"
    for result in results:
        for split, said in (("validation", result.validation), ("test", result.test)):
            sound = (
                np.isfinite(said.values).reshape(len(said), -1).all(axis=1) if len(said) else np.ones(0, bool)
            )
            if not sound.all():
                return GuardResult(
                    name, False, f"{int((~sound).sum())} of {len(said)} predictions of {split} are NaN or Inf.",
                    result.fold.name, str(said.keys[int(np.argmin(sound))]),
                )  # fmt: skip
    return GuardResult(name, True, "All predictions of validation and test are.")


def blind(score: Score, result: FoldResult, shuffled: Predictions | None) -> GuardResult:
    """A model trained on shuffled labels knows nothing; if it seems to, the test leaks."""
    name = "shuffled labels teach nothing"
    if shuffled is None:
        return GuardResult(
            name, None, "Not asked for; --gate.guards full trains once more on shuffled labels."
        )
    rivals = {} if score.chance is not None else dict(result.baselines)
    found = bootstrap(score, {MODEL: shuffled, **rivals}, confidence=SHUFFLED_CONFIDENCE)
    value = f"{score.name} {found.model.value:.3g}"
    if score.chance is not None:
        low, high, sign = found.model.low, found.model.high, 1 if score.higher_is_better else -1
        edge = low if score.higher_is_better else high
        seen = edge is not None and sign * (edge - score.chance) > 0
        return GuardResult(
            name, not seen, f"{value}{', which is better than' if seen else ' against'} chance at {score.chance:g}.",
            result.fold.name if seen else "",
        )  # fmt: skip
    best = found.best_baseline
    if best is None:
        return GuardResult(name, None, "The score has neither a chance level nor a baseline to compare with.")
    seen = best.difference_low is not None and best.difference_low > 0
    return GuardResult(
        name, not seen, f"{value}{', which is better than' if seen else ' against'} {best.name} at {best.value:.3g}.",
        result.fold.name if seen else "",
    )  # fmt: skip
