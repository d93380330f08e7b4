"""Intervals and paired differences: the same resamples for all, right coverage, no silence."""

import json
from dataclasses import replace

import numpy as np
import pytest

from shared import files
from shared.contract import Predictions, Score
from shared.errors import CasebookError
from shared.evaluation import metrics
from shared.evaluation.comparison import Comparison, bootstrap, interval
from shared.evaluation.resampling import Resamples, Units, block_length

AUROC = Score("AUROC", metrics.auroc, higher_is_better=True, chance=0.5)
RMSE = Score("RMSE", metrics.rmse, higher_is_better=False, unit="K")


def contenders(examples=300, seed=0, groups=None):
    generator = np.random.default_rng(seed)
    truth = (generator.random(examples) < 0.5).astype(np.float32)
    keys = np.array([f"k{number:04d}" for number in range(examples)])
    noise = generator.random(examples)

    def one(skill):
        return Predictions(keys, (truth * skill + noise).astype(np.float32) / 2, truth, groups)

    return {"model": one(0.6), "weak": one(0.2), "twin": one(0.6)}


def test_rows_differences_and_their_direction():
    compared = bootstrap(AUROC, contenders(), resamples=200)
    model, weak, twin = compared.rows
    assert (model.name, model.difference) == ("model", None)
    assert model.low < model.value < model.high
    assert weak.difference == pytest.approx(model.value - weak.value)
    assert 0 < weak.difference_low < weak.difference < weak.difference_high
    # The same resamples for all: against an equal the paired difference is exactly nothing.
    assert (twin.difference, twin.difference_low, twin.difference_high) == (0, 0, 0)
    assert compared.best_baseline.name == "twin"
    lower_is_better = bootstrap(RMSE, contenders(), resamples=200)
    assert lower_is_better["weak"].difference > 0  # the model errs less: still positive
    assert bootstrap(AUROC, contenders(), resamples=200) == compared


@pytest.mark.parametrize("kind", ["groups", "blocks"])
@pytest.mark.parametrize("grouped", [True, False])
def test_at_once_equals_one_call_a_resample(kind, grouped):
    groups = np.array([f"2020-{number % 60:03d}" for number in range(300)]) if grouped else None
    fast = replace(AUROC, resample=kind)
    slow = replace(fast, of=lambda predictions: metrics.auroc(predictions))
    both = [bootstrap(score, contenders(groups=groups), resamples=50) for score in (fast, slow)]
    for one, other in zip(*(compared.rows for compared in both), strict=True):
        assert one.low == pytest.approx(other.low, abs=1e-12)
        assert one.high == pytest.approx(other.high, abs=1e-12)
    assert both[0].units == (60 if grouped else 300)


def test_groups_are_drawn_whole():
    units = Units.of(np.array(["b", "a", "b", "c", "a"]), 5)
    plan = Resamples(units, number=20, seed=3)
    for drawn in plan.draws():
        for counts, positions in zip(plan.counts(drawn), plan.positions(drawn), strict=True):
            assert counts[0] == counts[2]
            assert counts[1] == counts[4]
            assert counts[[1, 0, 3]].sum() == 3
            assert np.bincount(positions, minlength=5).tolist() == counts.tolist()


def test_blocks_draw_neighbours():
    plan = Resamples(Units.of(None, 200), number=50, kind="blocks", block=20, seed=0)
    steps = np.concatenate([np.diff(drawn, axis=1).ravel() % 200 for drawn in plan.draws()])
    assert np.mean(steps == 1) == pytest.approx(0.95, abs=0.01)


def test_the_same_resamples_in_whatever_chunks(monkeypatch):
    plan = Resamples(Units.of(None, 30), number=20, kind="blocks", block=4, seed=1)
    whole = np.concatenate(list(plan.draws()))
    monkeypatch.setattr("shared.evaluation.resampling._CELLS", 90)
    assert np.array_equal(np.concatenate(list(plan.draws())), whole)


def test_a_smooth_series_asks_for_long_blocks_and_gets_a_wider_interval():
    generator = np.random.default_rng(0)
    smooth = np.convolve(generator.normal(size=449), np.ones(50) / 50, mode="valid")
    assert block_length([generator.normal(size=400)]) < 5 < block_length([smooth])
    assert block_length([np.ones(400)]) == block_length([np.arange(3.0)]) == 1
    keys = np.array([f"{number:04d}" for number in range(400)])
    one = Predictions(keys, 1 + smooth.astype(np.float32), np.zeros(400, dtype=np.float32))
    series, apart = (
        interval(replace(RMSE, resample=kind), one, resamples=300) for kind in ("blocks", "groups")
    )
    assert series.high - series.low > 2 * (apart.high - apart.low)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """AUROC of two normals a distance of 1 apart is Phi(1/sqrt(2)) = 0.7602."""
    generator = np.random.default_rng(5)
    hits = 0
    for trial in range(200):
        truth = np.repeat([0.0, 1.0], 60)
        values = generator.normal(truth, 1)
        one = Predictions(np.arange(120).astype(str), values, truth)
        found = interval(AUROC, one, resamples=300, seed=trial, confidence=0.9)
        hits += found.low <= 0.7602 <= found.high
    assert 0.84 <= hits / 200 <= 0.95


def test_undefined_resamples_are_left_out_and_counted():
    truth = np.zeros(12, dtype=np.float32)
    truth[0] = 1
    one = Predictions(np.arange(12).astype(str), np.linspace(1, 0, 12).astype(np.float32), truth)
    row = bootstrap(AUROC, {"model": one}, resamples=400).model
    assert 0.25 < row.undefined / 400 < 0.45  # (11/12)**12 = 0.35: the only positive was not drawn
    assert (row.value, row.low) == (1, 1)
    assert "undefined in" in interval(AUROC, one, resamples=400).note


def test_one_group_has_no_interval():
    row = bootstrap(AUROC, contenders(groups=np.array(["only"] * 300)), resamples=200)["weak"]
    assert row.low is row.high is row.difference_low is None
    assert np.isfinite(row.value)


def test_survives_json_even_where_nothing_is_defined(tmp_path):
    some = contenders()
    some["nan"] = replace(some["weak"], values=np.full(300, np.nan, dtype=np.float32))
    compared = bootstrap(AUROC, some, resamples=100)
    assert compared.best_baseline.name == "twin"
    files.write_json(tmp_path / "m.json", compared.to_dict())
    again = Comparison.from_dict(json.loads((tmp_path / "m.json").read_text()))
    assert again.rows[:3] == compared.rows[:3]
    assert np.isnan(again["nan"].value)
    with pytest.raises(KeyError, match="was not compared; there are model, weak"):
        again["other"]


def test_rivals_on_other_examples_are_refused_and_another_order_is_put_right():
    some = contenders()
    shuffled = some["weak"].take(np.random.default_rng(1).permutation(300))
    expected = bootstrap(AUROC, some, resamples=100)["weak"]
    assert bootstrap(AUROC, {**some, "weak": shuffled}, resamples=100)["weak"] == expected
    with pytest.raises(CasebookError, match=r"'weak' was predicted on other examples.*k0299"):
        bootstrap(AUROC, {**some, "weak": some["weak"].take(np.arange(299))})
    with pytest.raises(CasebookError, match="another truth"):
        bootstrap(AUROC, {**some, "weak": replace(some["weak"], truth=1 - some["weak"].truth)})
    with pytest.raises(CasebookError, match="must be named 'model'"):
        bootstrap(AUROC, {"weak": some["weak"]})
    with pytest.raises(CasebookError, match="no test examples"):
        bootstrap(AUROC, {"model": some["model"].take(np.array([], dtype=int))})
