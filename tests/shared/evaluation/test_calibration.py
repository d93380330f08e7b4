"""Temperature, reliability and operating point."""

import numpy as np
import pytest

from shared.contract import Predictions
from shared.errors import InputError
from shared.evaluation import calibration, metrics


def made(values, truth):
    return Predictions(np.arange(len(truth)).astype(str), np.asarray(values), np.asarray(truth))


def overconfident(examples=4000, factor=3.0, seed=0):
    """Probabilities whose logits are ``factor`` times too large."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 1.5, examples)
    truth = (generator.random(examples) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return 1 / (1 + np.exp(-factor * logits)), truth, factor * logits


def test_temperature_undoes_overconfidence_and_keeps_the_order():
    said, truth, logits = overconfident()
    found = calibration.temperature(said, truth)
    assert found == pytest.approx(3.0, rel=0.1)
    assert calibration.temperature(logits, truth, logits=True) == pytest.approx(found, rel=1e-3)
    calm = calibration.apply(said, found)
    assert calibration.reliability(calm, truth).error < 0.02 < calibration.reliability(said, truth).error
    assert metrics.auroc(made(calm, truth)) == pytest.approx(metrics.auroc(made(said, truth)), abs=1e-4)
    assert np.array_equal(calm > 0.5, said > 0.5)
    told = np.abs(logits) < 15  # beyond, the probability is too near 0 or 1 to hold its logit
    np.testing.assert_allclose(calibration.apply(logits, found, logits=True)[told], calm[told], atol=1e-5)


def test_temperature_of_exclusive_classes():
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 1, (3000, 4))
    true = np.array([generator.choice(4, p=np.exp(row) / np.exp(row).sum()) for row in logits])
    said = calibration.apply(2 * logits, 1.0, logits=True, classes=True)
    np.testing.assert_allclose(said.sum(axis=1), 1, atol=1e-5)
    for truth in (true, np.eye(4)[true]):
        assert calibration.temperature(said, truth, classes=True) == pytest.approx(2.0, rel=0.1)


def test_temperature_stays_one_where_validation_cannot_tell():
    assert calibration.temperature(np.zeros(0), np.zeros(0)) == 1
    assert calibration.temperature(np.array([0.2, 0.9]), np.array([1, 1])) == 1
    assert calibration.temperature(np.array([0.2, 0.9]), np.array([np.nan, np.nan])) == 1


def test_missing_labels_change_nothing():
    said, truth, _ = overconfident(500)
    more = np.concatenate([said, [0.5, 1.0]]), np.concatenate([truth, [np.nan, np.nan]])
    assert calibration.temperature(*more) == calibration.temperature(said, truth)
    assert calibration.reliability(*more).error == calibration.reliability(said, truth).error


def test_certain_probabilities_stay_finite():
    said = np.array([0.0, 1.0, 1.0, 0.0])
    calm = calibration.apply(said, calibration.temperature(said, np.array([0, 1, 0, 1])))
    assert np.isfinite(calm).all()


@pytest.mark.parametrize("sensitivity", [0.5, 0.9, 0.95, 1.0])
def test_operating_point_keeps_its_promise_with_the_least_work(sensitivity):
    said, truth, _ = overconfident(500, seed=3)
    said = said.astype(np.float32)
    point = calibration.operating_point(truth, said, sensitivity=sensitivity)
    assert np.mean(said[truth == 1] >= point.threshold) >= sensitivity - 1e-9
    higher = np.min(said[said > point.threshold])
    assert np.mean(said[truth == 1] >= higher) < sensitivity or sensitivity == 1.0
    assert point.sensitivity == pytest.approx(np.mean(said[truth == 1] >= point.threshold))
    assert point.specificity == pytest.approx(np.mean(said[truth == 0] < point.threshold))


def test_operating_point_of_nineteen_in_twenty():
    values = np.linspace(0.05, 1, 20)
    assert calibration.operating_point(np.ones(20), values, sensitivity=0.95).sensitivity == 0.95
    assert calibration.operating_point(np.zeros(20), values) is None
    with pytest.raises(InputError, match="received 95"):
        calibration.operating_point(np.ones(20), values, sensitivity=95)
