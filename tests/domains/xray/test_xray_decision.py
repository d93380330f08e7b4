"""Calibration and operating point: chosen on validation, stored as plain numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from domains.xray.decision import Decision, fit
from domains.xray.predict import urgencies
from shared import files
from shared.contract import Predictions


def said(p, truth):
    p, truth = np.asarray(p, "float32"), np.asarray(truth, "float32")
    return Predictions(np.arange(len(p)).astype(str), p, truth)


def drawn(count=4000, slope=1.0, shift=0.0, seed=0):
    """Probabilities ``[n]`` whose log-odds are off by ``slope`` and ``shift``, and truth drawn of the right ones."""
    generator = np.random.default_rng(seed)
    odds = generator.normal(-1, 1.5, count)
    truth = (generator.random(count) < 1 / (1 + np.exp(-odds))).astype("float32")
    return 1 / (1 + np.exp(-(odds * slope + shift))), truth


@pytest.mark.parametrize(("slope", "shift"), [(1, 0), (3, 0), (0.5, 0), (1, 2.5), (2, -1)])
def test_calibration_takes_back_sharpness_and_weighting(slope, shift):
    a, b = fit(*drawn(slope=slope, shift=shift))
    assert a * slope == pytest.approx(1, abs=0.1)
    assert a * shift + b == pytest.approx(0, abs=0.15)


def test_calibration_keeps_the_order_and_its_head():
    assert fit(np.array([0.2, 0.9]), np.array([np.nan, 1.0])) == (1.0, 0.0)
    a, b = fit(np.array([0.1, 0.2, 0.8, 0.9]), np.array([0.0, 0.0, 1.0, 1.0]))  # perfectly separated
    assert 1 < a < 5
    assert np.isfinite(b)
    a, _ = fit(*(lambda p, t: (1 - p, t))(*drawn()))  # the wrong way round
    assert a == 0.05


def test_the_operating_point_reaches_its_sensitivity_on_validation():
    p, truth = drawn(600, shift=1.0)
    both = np.stack([p, np.full_like(p, 0.5)], axis=1)
    truth = np.stack([truth, np.where(truth == 1, 0.0, np.nan)], axis=1)
    decision = Decision.chosen(said(both, truth), ("a", "b"), 0.9)
    calls = decision.calls(decision.probabilities(both))
    assert calls[truth[:, 0] == 1, 0].mean() >= 0.9
    assert decision.threshold[0] < 0.5, "half is no threshold for anything"
    assert np.isnan(decision.threshold[1]), "no positive in validation, no operating point"
    assert not calls[:, 1].any()


def test_a_decision_survives_json():
    p, truth = drawn(300)
    decision = Decision.chosen(said(p[:, None], truth[:, None]), ("a",), 0.8)
    again = Decision.from_dict(json.loads(json.dumps(files.plain(decision.to_dict()))))
    assert np.array_equal(
        again.calls(again.probabilities(p[:, None])), decision.calls(decision.probabilities(p[:, None]))
    )
    missing = Decision(("a",), np.ones(1), np.zeros(1), np.array([np.nan]), 0.9)
    assert np.isnan(Decision.from_dict(json.loads(json.dumps(files.plain(missing.to_dict())))).threshold[0])


def test_urgency_is_measured_from_each_labels_own_threshold():
    decision = Decision(("common", "rare"), np.ones(2), np.zeros(2), np.array([0.6, 0.05]), 0.9)
    above = urgencies(np.array([[0.55, 0.01], [0.1, 0.2], [0.95, 0.01]], "float32"), decision).max(axis=1)
    assert np.argsort(-above).tolist() == [2, 1, 0]
    assert (above > 0).tolist() == [False, True, True]
