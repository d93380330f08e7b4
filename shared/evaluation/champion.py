"""A fair match between a candidate and the standing champion.

Fair means: only examples that neither model was trained or tuned on. By groups, that is
what the champion has not seen; by time, what lies after both trainings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shared import files
from shared.contract import Fold, Published, find
from shared.evaluation.comparison import MODEL, bootstrap
from shared.evaluation.predictions import read_predictions, write_predictions

SEEN = "seen.npz"
"""In a published model's folder: what it was trained and tuned on."""


def write_seen(model: Path, fold: Fold) -> None:
    """Writes which groups (or keys) and which last moment a model has seen, and of these has been trained on.

    In the file ``names`` and ``until`` are of train and validation together, ``trained`` and
    ``trained_until`` of train alone; the moments are left out where examples have no spans.
    """
    train = fold.splits["train"]
    seen = np.concatenate([train, fold.splits["validation"]])
    files.write_npz(
        model / SEEN,
        **_of(fold, seen, "names", "until"),
        **_of(fold, train, "trained", "trained_until"),
    )


def _of(fold: Fold, positions: np.ndarray, names: str, until: str) -> dict[str, np.ndarray]:
    arrays = {names: np.unique(_units(fold)[positions].astype(str))}
    if fold.spans is not None and len(positions):
        arrays[until] = np.asarray(fold.spans[positions, 1].max())
    return arrays


def add_seen(model: Path, earlier: Path) -> None:
    """Adds what the model behind ``earlier`` has seen: ``model`` was trained on from its weights."""
    mine, theirs = _seen(model / SEEN), _seen(earlier)
    arrays = {name: np.union1d(mine[name], theirs[name]) for name in ("names", "trained")}
    for name in ("until", "trained_until"):
        moments = [kept[name] for kept in (mine, theirs) if name in kept]
        if moments:
            arrays[name] = np.asarray(max(moments))
    files.write_npz(model / SEEN, **arrays)


def fair(fold: Fold, seen: Path, split: Literal["validation", "test"] = "test") -> np.ndarray:
    """Positions (into ``fold.splits[split]``) that the model behind ``seen`` may be judged by.

    In test: what it was neither trained nor tuned on. In validation: what it was not trained on;
    to be tuned on them is what these are for.
    """
    positions = fold.splits[split]
    kept = _seen(seen)
    names, until = ("names", "until") if split == "test" else ("trained", "trained_until")
    fresh = ~np.isin(_units(fold)[positions].astype(str), kept[names])
    if until in kept and fold.spans is not None:
        fresh &= fold.spans[positions, 0] > kept[until]
    return np.flatnonzero(fresh)


def _seen(file: Path) -> dict[str, np.ndarray]:
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
        kept = {name: stored[name] for name in stored.files}
    if "trained" not in kept:  # of a version that told train and validation together
        kept["trained"] = kept["names"]
        if "until" in kept:
            kept["trained_until"] = kept["until"]
    return kept


def match(
    domain: str,
    prepared: str,
    config: Mapping[str, Any],
    fold: int,
    candidate: str,
    champion: Published,
    champion_prepared: str,
    champion_config: Mapping[str, Any],
    out: str,
) -> dict[str, Any]:
    """Compares both on the fair examples of the candidate's fold; runs in a child process.

    The champion gets its inputs as its own configuration makes them (``champion_prepared``
    holds the same raw data, prepared its way), so that a changed feature is no obstacle.

    Args:
        candidate: File of the candidate's test predictions for this fold.
        out: File for the champion's predictions.

    Returns:
        ``examples`` (how many are fair and known to both) and, where there are any,
        ``comparison`` (a ``Comparison`` as plain data, the candidate being ``model``).
    """
    body = find(domain)
    settings = body.Config.model_validate(config)
    theirs = body.Config.model_validate(champion_config)
    mine = body.folds(Path(prepared), settings)[fold]
    ours = read_predictions(Path(candidate)).take(fair(mine, champion.path / SEEN))
    asked = _renumbered(body.folds(Path(champion_prepared), theirs)[-1], ours.keys)
    if len(asked.splits["test"]) == 0:
        return {"examples": 0}

    from shared.runs.export import Predictor, predictions_of

    said = predictions_of(Predictor.load(champion.path), body, Path(champion_prepared), theirs, asked, "test")
    write_predictions(Path(out), said)
    where = {key: position for position, key in enumerate(ours.keys)}
    ours = ours.take(np.array([where[key] for key in said.keys]))
    score = body.score(Path(prepared), settings)
    # The candidate's truth for both: the champion's labels may be defined otherwise.
    said = replace(said, truth=ours.truth, groups=ours.groups)
    gate = settings.gate
    comparison = bootstrap(
        score, {MODEL: ours, "champion": said}, resamples=gate.resamples, confidence=gate.confidence
    )
    return {"examples": len(ours), "comparison": comparison.to_dict()}


def _renumbered(fold: Fold, keys: np.ndarray) -> Fold:
    """``fold`` with a test split of the examples named ``keys``, as far as it has them."""
    where = {key: position for position, key in enumerate(fold.keys)}
    found = np.array([where[key] for key in keys if key in where], dtype=np.int64)
    return replace(fold, splits={**fold.splits, "test": found})


def _units(fold: Fold) -> np.ndarray:
    return fold.keys if fold.groups is None else fold.groups
