"""Honest rivals, from knowing nothing to a strong learner on the very inputs of the network.

Each learns from the fold's training split; where there is something to choose (the strength of a
penalty, the number of trees) it is chosen on validation, as the network's last epoch is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from domains.stocks import data
from domains.stocks.panel import examples_of
from shared.contract import Fold, Predictions

if TYPE_CHECKING:
    from domains.stocks.config import StocksConfig

_PENALTIES = (1e-4, 1e-3, 1e-2)
_TREES = 120


def baselines(prepared: Path, config: StocksConfig, fold: Fold) -> dict[str, Predictions]:
    """Predictions on the test split by four rivals, each as probabilities of up, ``[n, 1]``.

    ===================  ================================================================
    majority             the share of up in training, for everything
    persistence          the last ``horizon`` sessions' direction goes on
    logistic regression  on the flattened, standardised windows
    gradient boosting    HistGradientBoosting on the flattened windows
    ===================  ================================================================
    """
    x, y = {}, {}
    for split in ("train", "validation", "test"):
        windows, truth = data.arrays(prepared, config, fold, split)
        x[split], y[split] = windows.reshape(len(windows), -1), truth[:, 0]
    values = {
        "majority": np.full(len(y["test"]), y["train"].mean()),
        "persistence": _persistence(prepared, config, fold),
        "logistic regression": _logistic(x, y),
        "gradient boosting": _boosting(x, y),
    }
    test = fold.splits["test"]
    truth = data.arrays(prepared, config, fold, "test")[1]
    return {
        name: Predictions(
            keys=fold.keys[test],
            values=probability.astype(np.float32).reshape(-1, 1),
            truth=truth,
            groups=None if fold.groups is None else fold.groups[test],
        )
        for name, probability in values.items()
    }


def _persistence(prepared: Path, config: StocksConfig, fold: Fold) -> np.ndarray:
    """The sign of the last ``horizon`` sessions' move, as sure of itself as it was right in training.

    At least a hair above one half: a rule that training taught to bet *against* the last move would
    be another rule, reversal.
    """
    panel = data.load_panel(prepared)
    found = examples_of(panel, config.window)
    before = panel.close[found.rows - config.window.horizon]
    sign = np.sign(panel.close[found.rows] - before)
    train, test = fold.splits["train"], fold.splits["test"]
    right = np.mean((sign[train] > 0) == (found.truth[train, 0] > 0.5))
    return 0.5 + sign[test] * max(float(right) - 0.5, 0.001)


def _logistic(x: dict[str, np.ndarray], y: dict[str, np.ndarray]) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    from shared.evaluation.scaling import Standardizer

    if len(np.unique(y["train"])) < 2:
        return np.full(len(y["test"]), y["train"].mean())
    scaler = Standardizer.fit(x["train"])
    scaled = {split: np.clip(scaler.transform(values), -6, 6) for split, values in x.items()}
    best: tuple[float, np.ndarray] | None = None
    for penalty in _PENALTIES:
        model = LogisticRegression(C=penalty, max_iter=300).fit(scaled["train"], y["train"])
        loss = _log_loss(model.predict_proba(scaled["validation"])[:, 1], y["validation"])
        if best is None or loss < best[0]:
            best = loss, model.predict_proba(scaled["test"])[:, 1]
    assert best is not None
    return best[1]


def _boosting(x: dict[str, np.ndarray], y: dict[str, np.ndarray]) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    if len(np.unique(y["train"])) < 2:
        return np.full(len(y["test"]), y["train"].mean())
    model = HistGradientBoostingClassifier(
        max_iter=_TREES,
        learning_rate=0.05,
        max_leaf_nodes=15,
        min_samples_leaf=50,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    )
    best: tuple[float, np.ndarray] | None = None
    # OpenMP's threads wait by spinning: beside other work two of them took ten times as long as one.
    with threadpool_limits(1, user_api="openmp"):
        model.fit(x["train"], y["train"])
        stages = (model.staged_predict_proba(x[split]) for split in ("validation", "test"))
        for validation, test in zip(*stages, strict=True):
            loss = _log_loss(validation[:, 1], y["validation"])
            if best is None or loss < best[0]:
                best = loss, test[:, 1]
    assert best is not None
    return best[1]


def _log_loss(probability: np.ndarray, truth: np.ndarray) -> float:
    probability = np.clip(probability, 1e-7, 1 - 1e-7)
    return float(-np.mean(truth * np.log(probability) + (1 - truth) * np.log1p(-probability)))
