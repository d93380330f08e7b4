"""What a film model must beat: the prevalence, the picture's brightness, how and where it was taken.

Logistic regressions, fitted on the train split for each label by itself. *Acquisition* sees nothing
of the film but its file format, bits, view and size: where it does well, the labels follow the
machine or the ward, and a network would learn that instead of medicine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from domains.xray import data
from domains.xray.config import XrayConfig
from domains.xray.model import prevalences
from shared import progress
from shared.contract import Fold, Predictions

ACQUISITION = "logistic on acquisition alone"
_GRID = 8


def baselines(prepared: Path, config: XrayConfig, fold: Fold) -> dict[str, Predictions]:
    """See :meth:`shared.contract.Domain.baselines`."""
    films = data.opened(prepared)
    train, test = fold.splits["train"], fold.splits["test"]
    intensity, thumbnails = _of_pixels(films, np.concatenate([train, test]))
    inputs = {
        "logistic on brightness": intensity,
        "logistic on an 8x8 thumbnail": thumbnails,
        ACQUISITION: _acquisition(films)[np.concatenate([train, test])],
    }
    said = {"prevalence": np.tile(prevalences(films.truth[train]), (len(test), 1))}
    for name, x in inputs.items():
        said[name] = _regression(x[: len(train)], films.truth[train], x[len(train) :])
    return {
        name: Predictions(fold.keys[test], values.astype("float32"), films.truth[test], films.patients[test])
        for name, values in said.items()
    }


def _of_pixels(films: data.Prepared, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Brightness features float64 ``[n, 14]`` and thumbnails ``[n, 64]``, one pass over the films."""
    brightness, thumbnails = [], []
    for done, number in enumerate(numbers):
        film = films.film(int(number)).astype("float64")
        steps = np.abs(np.diff(film, axis=0)).mean(), np.abs(np.diff(film, axis=1)).mean()
        quantiles = np.quantile(film, np.linspace(0.05, 0.95, 10))
        brightness.append([film.mean(), film.std(), *steps, *quantiles])
        side = film.shape[0] // _GRID
        cut = film[: side * _GRID, : side * _GRID]
        thumbnails.append(cut.reshape(_GRID, side, _GRID, side).mean(axis=(1, 3)).ravel())
        progress.emit("baselines", done + 1, len(numbers))
    return np.array(brightness), np.array(thumbnails)


def _acquisition(films: data.Prepared) -> np.ndarray:
    """One column a kind of acquisition, and the logarithm of height and width."""
    kinds, index = np.unique(films.acquisition, return_inverse=True)
    return np.concatenate([np.eye(len(kinds))[index], np.log(films.sizes)], axis=1)


def _regression(train: np.ndarray, truth: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Probabilities float64 ``[n, labels]``; the prevalence where a label has one answer only."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    said = np.tile(prevalences(truth), (len(test), 1))
    for label in range(truth.shape[1]):
        known = ~np.isnan(truth[:, label])
        if len(np.unique(truth[known, label])) == 2:
            model = make_pipeline(StandardScaler(), LogisticRegression(C=0.3, max_iter=2000))
            model.fit(train[known], truth[known, label])
            said[:, label] = model.predict_proba(test)[:, 1]
    return said
