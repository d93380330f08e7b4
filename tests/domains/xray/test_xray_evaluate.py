"""What the field sees of a model: by label, with intervals by patient, and what to beware of."""

from __future__ import annotations

import numpy as np
import pytest

from domains.xray import domain
from domains.xray.baselines import ACQUISITION
from domains.xray.config import XrayConfig
from shared.contract import Fold, FoldResult, Predictions

LABELS = ["opacity", "nodules"]


def predictions(count, seed, skill=2.0):
    generator = np.random.default_rng(seed)
    truth = (generator.random((count, 2)) < 0.4).astype("float32")
    odds = skill * (truth - 0.5) + generator.normal(size=(count, 2))
    truth[::9, 1] = np.nan
    patients = np.array([f"p-{number // 2:03d}" for number in range(count)])
    keys = np.array([f"{patient}/f-{seed}-{number}" for number, patient in enumerate(patients)])
    return Predictions(keys, (1 / (1 + np.exp(-odds))).astype("float32"), truth, patients)


@pytest.fixture
def result():
    test, chance = predictions(120, 2), predictions(120, 2, skill=0.0)
    fold = Fold("patients", {}, test.keys, about={"labels": LABELS})
    leaky = Predictions(test.keys, test.values, test.truth, test.groups)
    return FoldResult(fold, predictions(100, 1), test, {"prevalence": chance, ACQUISITION: leaky})


def test_every_label_has_its_numbers_with_intervals(result, tmp_path):
    evaluation = domain.evaluate([result], XrayConfig(), tmp_path)
    named = {metric.name: metric for metric in evaluation.metrics}
    for name in ("AUROC opacity", "AUPRC opacity", "AUROC nodules", "AUPRC nodules"):
        metric = named[name]
        assert metric.low < metric.value < metric.high
        assert metric.value > 0.8
    assert {figure.path.name for figure in evaluation.figures} == {
        "roc.png",
        "reliability.png",
        "separation.png",
    }
    assert evaluation.decision["labels"] == LABELS
    assert evaluation.limits
    assert "%" in evaluation.tables[0].rows[0][-1]


def test_a_shortcut_through_the_acquisition_is_flagged(result, tmp_path):
    flags = domain.evaluate([result], XrayConfig(), tmp_path).flags
    assert sum("the machine or the ward" in flag for flag in flags) == 2


def test_the_score_is_the_mean_over_labels_and_ignores_unknown_ones(result):
    from sklearn.metrics import roc_auc_score

    score = domain.score(None, XrayConfig())
    test = result.test
    known = ~np.isnan(test.truth[:, 1])
    by_hand = [
        roc_auc_score(test.truth[:, 0], test.values[:, 0]),
        roc_auc_score(test.truth[known, 1], test.values[known, 1]),
    ]
    assert score.of(test) == pytest.approx(np.mean(by_hand))
    assert score.resample == "groups"
