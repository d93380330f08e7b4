"""One suite for every strategy: one CPU, mirrored over 2 and 4, 2 and 3 worker processes.

The same global batch gives the same curve, within rounding: sums over replicas are taken in another
order, so losses agree to 1e-5 of their size after 12 steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shared import cluster, worker
from shared.worker import Call
from tests.shared.training import strategies

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

STRATEGIES = ("mirrored-2", "mirrored-4", "workers-2", "workers-3")
CURVES = ("plain", "synchronised", "accumulated")
_found: dict[str, list[dict[str, Any]]] = {}


def of(name: str) -> list[dict[str, Any]]:
    """What every process of the strategy found; run once."""
    if name not in _found:
        kind, _, number = name.partition("-")
        count = int(number or 1)
        if kind == "workers":
            calls = [
                Call(strategies.everything, ({"device": "workers"},), {}, environment)
                for environment in cluster.environments(count)
            ]
        else:
            calls = [Call(strategies.everything, ({"device": "cpu", "logical_cpus": count},))]
        _found[name] = [worker.value_of(done, name) for done in worker.together(calls, timeout=900)]
    return _found[name]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return of("cpu")[0]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("model", CURVES)
def test_the_curve_is_that_of_one_process(alone, name, model):
    for found in of(name):
        assert found["replicas"] == int(name[-1])
        for numbers in ("loss", "val_loss", "AUROC"):
            np.testing.assert_allclose(found[model][numbers], alone[model][numbers], rtol=1e-5)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("model", [*CURVES, "batch normalisation"])
def test_weights_and_statistics_are_equal_on_all(name, model):
    first, *others = of(name)
    assert first[model]["weights"]
    for found in others:
        assert found[model]["weights"] == first[model]["weights"]
    for copies in (variable for found in of(name) for variable in found[model]["copies"]):
        assert all(copy == copies[0] for copy in copies)
        assert np.isfinite(copies[0]).all()


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_example_of_validation_is_lost(alone, name):
    """25 examples, in batches of 24: the last one is shared out as padding but for itself."""
    truth = strategies.examples(strategies.VALIDATION, 1)[1]
    for found in of(name):
        np.testing.assert_array_equal(found["plain"]["truth"], truth)
        values = np.array(found["plain"]["values"])
        np.testing.assert_allclose(values, alone["plain"]["values"], rtol=1e-4)


@pytest.mark.parametrize("name", STRATEGIES)
def test_validation_is_the_mean_over_all_examples(name):
    truth = strategies.examples(strategies.VALIDATION, 1)[1]
    for found in of(name):
        best = int(np.argmin(found["plain"]["val_loss"]))
        p = np.clip(np.array(found["plain"]["values"]), 1e-7, 1 - 1e-7)
        by_hand = -np.mean(truth * np.log(p) + (1 - truth) * np.log(1 - p))
        np.testing.assert_allclose(found["plain"]["val_loss"][best], by_hand, rtol=1e-5)


@pytest.mark.parametrize("name", ["cpu", *STRATEGIES])
def test_an_overflow_on_one_replica_skips_the_step_on_all(name):
    for found in of(name):
        seen = found["overflow"]
        assert seen["unsound"] == 1
        assert seen["skipped"]["weights"] == seen["before"]["weights"]
        assert seen["skipped"]["scale"] == seen["before"]["scale"] / 2  # once, however many replicas
        assert seen["skipped"]["steps"] == 0
        assert seen["after"]["steps"] == 1
        assert seen["after"]["weights"] != seen["before"]["weights"]
        assert all(np.isfinite(v).all() for v in seen["after"]["weights"])
        assert seen["after"]["weights"] == of(name)[0]["overflow"]["after"]["weights"]


@pytest.mark.parametrize("name", ["cpu", *STRATEGIES])
def test_all_agree_on_a_failure(name):
    for found in of(name):
        assert "step 1" in found["nan"]["told"]
        assert found["nan"]["told"] == of(name)[0]["nan"]["told"]
        assert found["nan"]["restored"]


@pytest.mark.parametrize("name", ["cpu", *STRATEGIES])
def test_workers_go_back_to_the_same_moment_whatever_their_clocks_say(name):
    told = {found["nan after a save by the clock"] for found in of(name)}
    assert len(told) == 1
    assert "step 3" in told.pop()
