"""Truth and values brought into one shape, whatever the kind of output."""

from __future__ import annotations

import numpy as np

from shared.contract import Predictions
from shared.errors import InputError


def cells(predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Truth and values as float64 ``[n, cells]``: labels, classes or a flattened field.

    One class number an example, ``[n]``, becomes one-hot beside values ``[n, classes]``.

    Raises:
        InputError: The shapes of truth and values do not belong together.
    """
    values = np.asarray(predictions.values, dtype=np.float64)
    truth = np.asarray(predictions.truth, dtype=np.float64)
    # Not -1 for the second length: numpy cannot infer it where there are no examples.
    values = values.reshape(len(values), int(np.prod(values.shape[1:])))
    truth = truth.reshape(len(truth), int(np.prod(truth.shape[1:])))
    if truth.shape[1] == 1 and values.shape[1] > 1:
        truth = np.where(np.isnan(truth), np.nan, truth == np.arange(values.shape[1]))
    if truth.shape != values.shape:
        raise InputError(
            f"Values {np.shape(predictions.values)} and truth {np.shape(predictions.truth)} do not match.",
            "Give truth in the shape of the values, or one class number an example.",
        )
    return truth, values


def classes(predictions: Predictions, threshold: float = 0.5) -> tuple[np.ndarray, np.ndarray, int]:
    """Exclusive classes as numbers: truth int ``[n]`` (-1: unknown), decided int ``[n]``, how many.

    Binary outputs are decided at ``threshold``, ``[n, classes]`` by the largest.
    """
    truth, values = cells(predictions)
    unknown = np.isnan(truth).any(axis=1)
    if values.shape[1] > 1:
        return (
            np.where(unknown, -1, np.nan_to_num(truth).argmax(axis=1)),
            values.argmax(axis=1),
            values.shape[1],
        )
    number = (np.nan_to_num(truth[:, 0]) > 0.5).astype(int)
    # In the dtype of the values: a threshold that is one of them must call it positive.
    decided = np.asarray(predictions.values).reshape(-1) >= threshold
    return np.where(unknown, -1, number), decided.astype(int), 2
