"""Metrics against scikit-learn, on samples and on examples that count several times."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from shared.contract import Predictions
from shared.errors import InputError
from shared.evaluation import metrics


def made(values, truth, groups=None):
    values, truth = np.asarray(values, dtype=np.float32), np.asarray(truth, dtype=np.float32)
    return Predictions(np.arange(len(truth)).astype(str), values, truth, groups)


samples = st.lists(
    st.tuples(st.integers(0, 10), st.integers(0, 1), st.integers(0, 3)), min_size=4, max_size=40
).filter(lambda rows: {0, 1} <= {truth for _, truth, count in rows if count})


@settings(max_examples=60, deadline=None)
@given(samples)
def test_equals_scikit_learn_with_ties_and_multiplicities(rows):
    score, truth, counts = (np.array(column) for column in zip(*rows, strict=True))
    one = made(score / 10, truth)
    weights = counts[None].astype(float)
    value, weight = one.values.astype(float), {"sample_weight": counts}
    expected = {
        metrics.auroc: sk.roc_auc_score(truth, value, **weight),
        metrics.auprc: sk.average_precision_score(truth, value, **weight),
        metrics.brier: sk.brier_score_loss(truth, value, **weight),
        metrics.mcc: sk.matthews_corrcoef(truth, value >= 0.5, **weight),
        metrics.accuracy: sk.accuracy_score(truth, value >= 0.5, **weight),
        metrics.rmse: sk.root_mean_squared_error(truth, value, **weight),
        metrics.mae: sk.mean_absolute_error(truth, value, **weight),
    }
    repeated = one.take(np.repeat(np.arange(len(rows)), counts))
    for metric, right in expected.items():
        assert metric.resampled(one, weights)[0] == pytest.approx(right, abs=1e-6), metric
        assert metric(repeated) == pytest.approx(right, abs=1e-6), metric


def test_several_labels_are_averaged_and_missing_ones_left_out():
    generator = np.random.default_rng(0)
    truth = (generator.random((200, 3)) < 0.3).astype(float)
    values = np.clip(truth * 0.2 + generator.random(truth.shape) * 0.8, 0, 1)
    truth[::7, 1] = np.nan
    one = made(values, truth)
    known = ~np.isnan(truth[:, 1])
    each = [sk.roc_auc_score(truth[known, k], one.values[known, k]) if k == 1 else
            sk.roc_auc_score(truth[:, k], one.values[:, k]) for k in range(3)]  # fmt: skip
    assert metrics.auroc(one) == pytest.approx(np.mean(each))
    assert metrics.Ranked(metrics.auroc.curve, label=1)(one) == pytest.approx(each[1])


def test_exclusive_classes_by_number_or_one_hot():
    generator = np.random.default_rng(1)
    number = generator.integers(0, 4, 300)
    values = np.eye(4)[number] * 0.5 + generator.random((300, 4))
    for truth in (number, np.eye(4)[number]):
        one = made(values, truth)
        assert metrics.accuracy(one) == pytest.approx(sk.accuracy_score(number, values.argmax(1)))
        assert metrics.mcc(one) == pytest.approx(sk.matthews_corrcoef(number, values.argmax(1)))
    with pytest.raises(InputError, match="do not match"):
        metrics.accuracy(made(values, np.zeros((300, 2))))


def test_undefined_is_nan_and_silent():
    flat = made([0.2, 0.9], [1, 1])
    assert np.isnan(metrics.auroc(flat))
    assert np.isnan(metrics.mcc(flat))
    assert np.isnan(metrics.auprc(made([0.2, 0.9], [0, 0])))
    assert np.isnan(metrics.brier(made([0.2], [np.nan])))
    assert metrics.mcc(made([0.9, 0.9], [0, 1])) == 0  # one class always predicted: no skill, not undefined


@pytest.mark.parametrize("metric", [metrics.auroc, metrics.mcc, metrics.brier, metrics.accuracy])
def test_a_nan_prediction_cannot_hide(metric):
    assert np.isnan(metric(made([0.1, np.nan, 0.8, 0.9], [0, 0, 1, 1])))


def test_a_metric_of_nothing_is_nan():
    for metric in (metrics.auroc, metrics.brier, metrics.mcc):
        assert np.isnan(metric(made(np.zeros((0,)), np.zeros((0,)))))


def test_fields_are_weighted_by_area_over_known_cells_only():
    truth = np.zeros((5, 2, 3))
    values = np.ones((5, 2, 3))
    values[:, 1] = 3
    weights = np.array([[1.0], [0.5]])
    assert metrics.weighted_rmse(weights)(made(values, truth)) == pytest.approx(np.sqrt((1 + 9 * 0.5) / 1.5))
    truth[:, 1, :] = np.nan  # land: its weight goes to the sea
    assert metrics.weighted_rmse(weights)(made(values, truth)) == pytest.approx(1.0)
    assert metrics.rmse(made(values, truth)) == pytest.approx(1.0)


def test_collapse_is_named_with_the_base_rate():
    assert metrics.collapse(made([0.2, 0.8, 0.9], [0, 1, 1])) is None
    assert metrics.collapse(made([0.7, 0.8, 0.9, 0.9], [0, 1, 1, 1]), ["down", "up"]) == (
        "down is never predicted: accuracy near the base rate of 75% is no skill."
    )
