"""A fair match between a candidate and the standing champion.

Fair means: only examples that neither model was trained or tuned on. By groups, that is
what the champion has not seen; by time, what lies after both trainings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shared import files
from shared.contract import Fold, Published, Split, find
from shared.evaluation.comparison import MODEL, bootstrap
from shared.evaluation.predictions import read_predictions, write_predictions

SEEN = "seen.npz"
"""In a published model's folder: what it was trained and tuned on."""


def write_seen(model: Path, fold: Fold) -> None:
    """Writes which groups (or keys) and which last moment a model has seen."""
    positions = np.concatenate([fold.splits["train"], fold.splits["validation"]])
    arrays = {"names": _units(fold)[positions].astype(str)}
    if fold.spans is not None:
        arrays["until"] = np.asarray(fold.spans[positions, 1].max())
    files.write_npz(model / SEEN, **arrays)


def add_seen(model: Path, earlier: Path) -> None:
    """Adds what the model behind ``earlier`` has seen: ``model`` was trained on from its weights."""
    with np.load(model / SEEN, allow_pickle=False) as mine, np.load(earlier, allow_pickle=False) as theirs:
        arrays = {"names": np.union1d(mine["names"], theirs["names"])}
        until = [kept["until"] for kept in (mine, theirs) if "until" in kept]
        if until:
            arrays["until"] = np.asarray(max(until))
    files.write_npz(model / SEEN, **arrays)


def fair(fold: Fold, seen: Path, split: Split = "test") -> np.ndarray:
    """Positions (into ``fold.splits[split]``) that the model behind ``seen`` has not seen."""
    positions = fold.splits[split]
    with np.load(seen, allow_pickle=False) as kept:
        names = kept["names"]
        until = kept.get("until", None)
    fresh = ~np.isin(_units(fold)[positions].astype(str), names)
    if until is not None and fold.spans is not None:
        fresh &= fold.spans[positions, 0] > until
    return np.flatnonzero(fresh)


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
