"""A trained run judged: members averaged, baselines made, compared, guards asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from shared import files, progress
from shared.contract import SPLITS, Domain, Fold, FoldResult, Predictions, find
from shared.errors import CasebookError
from shared.evaluation import guards
from shared.evaluation.comparison import MODEL, bootstrap
from shared.evaluation.predictions import mean, pooled, read_predictions, write_predictions


def judge(
    domain: str,
    prepared: str,
    config: Mapping[str, Any],
    members: Sequence[Sequence[str]],
    run: str,
    shuffled: str | None = None,
) -> dict[str, Any]:
    """Evaluates all folds of a run and writes ``metrics.json``; runs in a child process.

    The promise of a walk-forward is the aggregate over its folds: their test predictions
    are pooled, and the intervals are of the pool.

    Args:
        members: For each fold the folders that ``train_member`` filled.
        run: The run's folder. ``folds.json``, ``predictions.npz``, ``figures/`` and
            ``metrics.json`` are written there.
        shuffled: File of test predictions by a member trained on shuffled labels (``--guards full``).

    Returns:
        What ``metrics.json`` holds.

    Raises:
        LeakError: A guard failed. ``metrics.json`` is written before.
    """
    body = find(domain)
    settings = body.Config.model_validate(config)
    where, out = Path(prepared), Path(run)
    folds = body.folds(where, settings)
    files.write_json(out / "folds.json", [drawn(fold) for fold in folds])
    results = []
    for number, (fold, trained) in enumerate(zip(folds, members, strict=True)):
        progress.emit("baselines", number, len(folds), note=fold.name)
        results.append(_result(body, where, settings, fold, [Path(member) for member in trained]))
    progress.emit("baselines", len(folds), len(folds))

    score = body.score(where, settings)
    gate = settings.gate
    pools = {MODEL: pooled([result.test for result in results])}
    for name in results[0].baselines:
        pools[name] = pooled([result.baselines[name] for result in results])
    write_predictions(out / "predictions.npz", pools[MODEL])
    for number, result in enumerate(results):
        write_predictions(out / "work" / f"fold-{number}.npz", result.test)
        write_predictions(out / "work" / f"fold-{number}-validation.npz", result.validation)
    comparison = bootstrap(score, pools, resamples=gate.resamples, confidence=gate.confidence)
    found = guards.check(
        body,
        where,
        settings,
        results,
        shuffled=None if shuffled is None else read_predictions(Path(shuffled)),
    )
    figures = out / "figures"
    figures.mkdir(exist_ok=True)
    evaluation = asdict(body.evaluate(results, settings, figures))
    for figure in evaluation["figures"]:
        figure["path"] = str(Path(figure["path"]).relative_to(out))
    report = {
        "score": {
            "name": score.name,
            "unit": score.unit,
            "higher_is_better": score.higher_is_better,
            "chance": score.chance,
        },
        "comparison": comparison.to_dict(),
        "per_fold": [_by_fold(score, result) for result in results],
        "evaluation": evaluation,
        "guards": [asdict(guard) for guard in found],
    }
    files.write_json(out / "metrics.json", report)
    guards.require(found)
    return report


def drawn(fold: Fold) -> dict[str, Any]:
    """What the report needs to draw a fold."""
    extent = groups = None
    if fold.spans is not None:
        extent = {
            split: [str(fold.spans[where, 0].min()), str(fold.spans[where, 1].max())]
            for split in SPLITS
            if len(where := fold.splits[split])
        }
    if fold.groups is not None:
        groups = {split: len(np.unique(fold.groups[fold.splits[split]])) for split in SPLITS}
    sizes = {split: len(fold.splits[split]) for split in SPLITS}
    return {"name": fold.name, "sizes": sizes, "about": fold.about, "extent": extent, "groups": groups}


def _result(body: Domain, prepared: Path, config: Any, fold: Fold, members: Sequence[Path]) -> FoldResult:
    test = mean([read_predictions(member / "test.npz") for member in members])
    baselines = body.baselines(prepared, config, fold)
    if not baselines:
        raise CasebookError(
            f"{body.name} gave no baselines.",
            "A model is only shown beside what it must beat: give at least one.",
        )
    for name, said in baselines.items():
        _same_examples(name, said, test)
    return FoldResult(
        fold=fold,
        validation=mean([read_predictions(member / "validation.npz") for member in members]),
        test=test,
        baselines=baselines,
    )


def _same_examples(name: str, said: Predictions, test: Predictions) -> None:
    if not np.array_equal(said.keys, test.keys):
        raise CasebookError(
            f"The baseline {name!r} predicted {len(said)} examples, the model {len(test)}, or in another order.",
            "baselines() must predict fold.splits['test'] in that order.",
        )
    if not np.allclose(said.truth, test.truth, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise CasebookError(
            f"The baseline {name!r} and the model were judged by different truths.",
            "Take the truth of baselines() from the same labels as examples().",
        )


def _by_fold(score: Any, result: FoldResult) -> dict[str, Any]:
    rows = {MODEL: score.of(result.test)}
    rows |= {name: score.of(said) for name, said in result.baselines.items()}
    return {"fold": result.fold.name, "examples": len(result.test), **rows}
