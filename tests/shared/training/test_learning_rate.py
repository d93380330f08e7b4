from __future__ import annotations

import numpy as np
import pytest

from shared.errors import InputError
from shared.training.learning_rate import FLOOR, factor, rate, schedule, warmup_steps


@pytest.mark.parametrize(
    ("rule", "batch", "expected"),
    [
        ("square-root", 128, 2.0),
        ("auto", 8, 0.5),
        ("linear", 128, 4.0),
        ("linear", 8, 0.25),
        ("none", 512, 1.0),
    ],
)
def test_factor(rule, batch, expected):
    assert factor(rule, batch) == expected


def test_an_unknown_rule_is_refused():
    with pytest.raises(InputError, match="'cubic'"):
        factor("cubic", 32)


@pytest.mark.parametrize(
    ("total", "share", "steps"), [(100, 0.05, 5), (100, 0.0, 0), (3, 0.05, 1), (1, 0.05, 1), (10, 0.999, 9)]
)
def test_warmup_steps(total, share, steps):
    assert warmup_steps(total, share) == steps


def test_cosine_by_hand():
    shape = {"peak": 2.0, "total": 12, "warmup": 4, "kind": "cosine"}
    rates = [rate(step, **shape) for step in range(13)]
    np.testing.assert_allclose(rates[:4], [0.5, 1.0, 1.5, 2.0])
    assert rates[4] == 2.0
    assert rates[8] == pytest.approx(2.0 * (FLOOR + (1 - FLOOR) / 2))  # half of the way down
    assert rates[12] == pytest.approx(2.0 * FLOOR)
    assert rate(99, **shape) == rates[12]


def test_constant_stays():
    assert [rate(s, peak=1.0, total=9, warmup=0, kind="constant") for s in (0, 5, 50)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("kind", "warmup"), [("cosine", 0), ("cosine", 3), ("constant", 3)])
def test_the_keras_schedule_equals_the_plain_function(kind, warmup):
    shape = {"peak": 0.01, "total": 11, "warmup": warmup, "kind": kind}
    keras_rate = schedule(**shape)
    for step in (0, 1, 2, 3, 7, 10, 12):
        assert float(keras_rate(step)) == pytest.approx(rate(step, **shape), rel=1e-5)
    assert keras_rate.get_config() == shape


def test_a_rate_that_never_changes_is_a_plain_number():
    """So that Keras's ReduceLROnPlateau may set it."""
    assert schedule(peak=0.01, total=11, warmup=0, kind="constant") == 0.01
