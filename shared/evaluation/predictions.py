"""Predictions on disk, and the mean of an ensemble's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shared import files
from shared.contract import Predictions
from shared.errors import CasebookError


def read_predictions(path: Path) -> Predictions:
    """Predictions that :func:`write_predictions` wrote."""
    with np.load(path, allow_pickle=False) as kept:
        groups = kept.get("groups", None)
        return Predictions(kept["keys"], kept["values"], kept["truth"], groups)


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Writes an ``.npz`` without pickle, whole or not at all."""
    arrays = {"keys": predictions.keys, "values": predictions.values, "truth": predictions.truth}
    if predictions.groups is not None:
        arrays["groups"] = predictions.groups
    files.write_npz(path, **{name: _as_text(array) for name, array in arrays.items()})


def mean(members: Sequence[Predictions]) -> Predictions:
    """The ensemble's prediction: the mean of its members' outputs on the same examples."""
    first = members[0]
    for other in members[1:]:
        if not np.array_equal(first.keys, other.keys):
            raise CasebookError("The members of an ensemble predicted different examples.")
    values = np.mean(np.stack([member.values for member in members]), axis=0, dtype=np.float64)
    return replace(first, values=np.asarray(values, np.float32))


def pooled(folds: Sequence[Predictions]) -> Predictions:
    """The predictions of several folds, one after the other, as one."""
    groups = None
    if all(fold.groups is not None for fold in folds):
        groups = np.concatenate([np.asarray(fold.groups) for fold in folds])
    return Predictions(
        np.concatenate([fold.keys for fold in folds]),
        np.concatenate([fold.values for fold in folds]),
        np.concatenate([fold.truth for fold in folds]),
        groups,
    )


def _as_text(array: np.ndarray) -> np.ndarray:
    """Object arrays of text as fixed-width text: objects would need pickle."""
    return array.astype(str) if array.dtype == object else array
