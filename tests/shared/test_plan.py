"""Plans measured on tiny models, in real children."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from shared import plan, plan_words, planning, progress, worker
from shared.config import AcceleratorSection, DomainConfig, PlanSection
from shared.errors import InputError, TrainingError
from shared.machine import machine
from shared.plan import ExecutionPlan, Trial
from shared.trial import spread, steps_per_call

ONE_TRIAL = PlanSection(batch_size=16, precision="float32")


@pytest.fixture(autouse=True)
def own_lock(tmp_path_factory, monkeypatch):
    """Nobody else's run on this machine is waited for."""
    monkeypatch.setenv("CASEBOOK_LOCKS", str(tmp_path_factory.mktemp("locks")))


def model(units: int = 4):
    import keras

    return keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(units), keras.layers.Dense(1, dtype="float32")]
    )


def data(count: int = 200, bad: bool = False):
    import tensorflow as tf

    x = np.random.default_rng(0).normal(size=(count, 3)).astype("float32")
    y = np.full(count, np.nan, "float32") if bad else x.sum(1)
    return tf.data.Dataset.from_tensor_slices((x, y))


def loss(y, p):
    import keras

    return keras.losses.mean_squared_error(y, p)


def test_the_naive_plan_survives_json():
    trial = Trial(8, "float32", False, "fits", samples_per_second=10.0)
    naive = ExecutionPlan(trials=(trial,), reasons=("because",), about={"count": 3})
    assert ExecutionPlan.from_dict(naive.to_dict()) == naive
    with pytest.raises(InputError, match="another version"):
        ExecutionPlan.from_dict({**naive.to_dict(), "colour": "red"})


def test_a_search_finds_and_keeps_a_plan_and_finds_it_again(tmp_path: Path):
    section = PlanSection(max_batch_size=16, xla="off", seconds=60)
    heard: list[progress.Progress] = []
    with progress.listening(heard.append):
        found = plan.search(model, data, loss=loss, section=section, plans=tmp_path)
    assert found.measured
    assert found.device == "cpu"
    assert found.batch_size in (8, 16)
    assert found.samples_per_second > 0
    assert 0 <= found.input_bound_share <= 1
    assert 1 <= found.steps_per_call <= 200 // found.batch_size
    assert found.learning_rate_factor == pytest.approx((found.batch_size / 32) ** 0.5)
    assert found.learning_rate_rule == "square-root"
    assert 0 < found.cache_bytes + found.ram_budget_bytes < machine().memory_bytes
    ran = [t.batch_size for t in found.trials if t.verdict == "fits"]
    assert found.batch_size in ran
    text = "\n".join(found.reasons)
    assert "mixed_float16 not tried: TensorFlow's CPU kernels" in text
    assert f"Batch {found.batch_size}" in text
    assert "square root of" in text
    assert any("best so far batch 8" in report.note for report in heard)
    assert {report.label for report in heard} == {"plan"}

    kept = plan.search(model, data, loss=loss, section=section, plans=tmp_path)
    assert kept.about["kept"]
    assert kept.reasons[0].startswith("Kept from the search of")
    assert kept.trials == found.trials
    assert kept.to_dict() | {"reasons": 0, "about": 0} == found.to_dict() | {"reasons": 0, "about": 0}
    assert ExecutionPlan.from_dict(kept.to_dict()).fingerprint == found.fingerprint
    if "tensorflow" not in sys.modules:  # another test of this process may have imported it
        plan.table(found)
        assert "tensorflow" not in sys.modules


@pytest.mark.slow
def test_what_makes_a_kept_plan_another_one(tmp_path: Path):
    def key(model_fn=model, data_fn=data, **options) -> str:
        settings = {"section": ONE_TRIAL, "plans": tmp_path, **options}
        return plan.search(model_fn, data_fn, loss=loss, **settings).fingerprint

    first = key()
    assert key(data_fn=lambda: data(300)) == first  # more of the same examples
    wider = key(lambda: model(5))
    smaller = key(section=PlanSection(batch_size=8, precision="float32"))
    assert len({first, wider, smaller}) == 3
    assert len(list(tmp_path.glob("*.json"))) == 3
    kept = tmp_path / f"{first}.json"
    kept.write_text("{half of a pl")
    assert key() == first
    before = kept.read_text()  # made anew
    assert key(section=ONE_TRIAL.model_copy(update={"replan": True})) == first
    assert kept.read_text() != before


def test_nothing_is_searched_where_all_is_given():
    found = plan.search(model, data, loss=loss, section=ONE_TRIAL)
    assert [(t.batch_size, t.precision, t.xla) for t in found.trials] == [(16, "float32", False)]
    assert found.measured
    assert found.batch_size == 16


def test_a_given_batch_larger_than_the_data_is_the_data():
    section = ONE_TRIAL.model_copy(update={"batch_size": 100_000})
    found = plan.search(model, lambda: data(40), loss=loss, section=section)
    assert found.batch_size == 40
    assert any("100000 was asked for; there are 40 examples" in reason for reason in found.reasons)


def test_what_was_given_is_taken_unmeasured_where_the_trial_takes_too_long():
    found = plan.search(model, data, loss=loss, section=ONE_TRIAL.model_copy(update={"trial_seconds": 0.01}))
    assert (found.batch_size, found.measured, found.samples_per_second) == (16, False, None)
    assert "not measured: the trial was stopped at its limit of 0.01 s" in found.reasons[0]


def test_a_bug_ends_the_search_and_is_shown():
    def broken():
        raise ZeroDivisionError("planted")

    with pytest.raises(TrainingError, match="ZeroDivisionError: planted") as caught:
        plan.search(broken, data, loss=loss)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "in broken" in str(caught.value.__cause__.__cause__)


def test_a_bug_that_only_training_shows():
    def other_shape(y, p):
        import keras

        return keras.losses.categorical_crossentropy(y, p * np.ones((7, 5), "float32"))

    with pytest.raises(
        TrainingError, match="batch 16 and float32 failed: NotImplementedError: Cannot convert"
    ):
        plan.search(model, data, loss=other_shape, section=ONE_TRIAL)


def test_a_batch_whose_loss_is_nan_is_unsound():
    with pytest.raises(TrainingError, match="unsound") as caught:
        plan.search(model, lambda: data(bad=True), loss=loss, section=ONE_TRIAL)
    assert "NaN" in caught.value.remedy


def test_no_examples():
    with pytest.raises(InputError, match="no training examples"):
        plan.search(model, lambda: data().take(0), loss=loss, section=ONE_TRIAL)


@pytest.mark.slow
def test_examples_that_do_not_fit_are_streamed_in_the_trial_too(monkeypatch):
    monkeypatch.setattr(planning, "CACHE_SHARE", 0.0)
    found = plan.search(model, data, loss=loss, section=ONE_TRIAL)
    assert found.cache_bytes == 0
    assert 0 <= found.input_bound_share <= 1
    assert any("are streamed" in reason for reason in found.reasons)

    def slow():
        import time

        import tensorflow as tf

        def read(x, y):
            return tf.py_function(lambda x: (time.sleep(0.05), x)[1], [x], tf.float32), y

        return data().map(lambda x, y: (tf.ensure_shape(read(x, y)[0], [3]), y))

    found = plan.search(model, slow, loss=loss, section=ONE_TRIAL)
    assert found.input_bound_share is None
    assert any("reading is too slow to try" in reason for reason in found.reasons)


def hungry():
    import keras

    return keras.Sequential(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(4),
            keras.layers.Lambda(lambda x: keras.ops.repeat(x, 1 << 19, axis=1)),  # 8 MB an example
            keras.layers.Activation("tanh"),
            keras.layers.Lambda(lambda x: keras.ops.mean(x, axis=1, keepdims=True)),
        ]
    )


@pytest.mark.slow
def test_a_given_batch_that_does_not_fit_is_planned_in_micro_batches():
    section = PlanSection(batch_size=16, precision="float32", memory_gb=0.3, trial_seconds=200)
    found = plan.search(hungry, data, loss=loss, section=section)
    assert found.measured
    assert found.batch_size == 16
    assert found.trials[0].verdict == "out of memory"
    assert found.accumulation == found.trials[-1].accumulation > 1
    row = plan.table(found)[-1]
    assert row[0] == f"16 ({found.accumulation} x {16 // found.accumulation})"
    assert (row[3], row[-1]) == ("fits", "chosen")
    assert f"in {found.accumulation} micro-batches" in found.reasons[0]
    assert ExecutionPlan.from_dict(found.to_dict()) == found


@pytest.mark.slow
def test_memory_ends_the_climb():
    section = PlanSection(precision="float32", xla="off", memory_gb=0.4, seconds=100)
    found = plan.search(hungry, data, loss=loss, section=section)
    assert found.trials[-1].verdict == "out of memory"
    assert found.batch_size < found.trials[-1].batch_size
    assert any("out of memory" in reason for reason in found.reasons)


@pytest.mark.slow
def test_logical_devices_share_the_batch():
    device = AcceleratorSection(device="cpu", logical_cpus=2)
    section = PlanSection(precision="float32", xla="off", max_batch_size=8)
    found = plan.search(model, data, loss=loss, section=section, device=device)
    assert (found.replicas, found.batch_size) == (2, 8)
    with pytest.raises(InputError, match="2 replicas cannot share"):
        plan.search(
            model, data, loss=loss, section=PlanSection(batch_size=7, precision="float32"), device=device
        )


DOMAIN = """
import numpy as np
from shared import Domain, DomainConfig, Fold, Source, Phase

class Doubling(Domain):
    name, title, Config = "doubling", "Doubles", DomainConfig
    ingest = baselines = score = evaluate = predict = synthesize = None
    def folds(self, prepared, config):
        assert prepared.name == "prepared"
        splits = {"train": np.arange(100), "validation": np.arange(0), "test": np.arange(0)}
        return [Fold(name, splits, np.arange(100).astype(str)) for name in ("first", "last")]
    def examples(self, prepared, config, fold, split):
        import tensorflow as tf
        assert (fold.name, split) == ("last", "train")
        x = tf.random.stateless_normal([100, 3], seed=[0, 1])
        return Source(100, gather=lambda positions: (tf.gather(x, positions), tf.gather(x, positions)[:, 0]))
    def phases(self, prepared, config, fold):
        import keras
        def head(previous):
            return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4)])
        def whole(previous):
            return keras.Sequential([previous, keras.layers.Dense(1, dtype="float32")])
        mse = keras.losses.mean_squared_error
        return [Phase("head", head, mse, 1, 1e-3), Phase("whole", whole, mse, 1, 1e-3)]

domain = Doubling()
"""


def test_a_domain_is_planned_by_its_last_phase_and_fold(tmp_path: Path, monkeypatch):
    (tmp_path / "doubling_domain.py").write_text(DOMAIN)
    info = tmp_path / "doubling-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doubling\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[casebook]\ndoubling = doubling_domain:domain\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = DomainConfig(plan=ONE_TRIAL)
    found = plan.for_domain("doubling", tmp_path / "prepared", config, plans=tmp_path / "plans")
    assert found.measured
    assert found.about["count"] == 100
    assert found.about["parameters"] == 3 * 4 + 4 + 4 + 1
    assert "The examples lie in memory already." in found.reasons
    assert [file.stem for file in (tmp_path / "plans").iterdir()] == [found.fingerprint]


def test_table_of_trials():
    trials = (
        Trial(8, "float32", False, "fits", 1234.5, 0.024, 0.00648, 1.52, 512_000_000),
        Trial(16, "mixed_bfloat16", True, "out of memory", note="at the first step"),
    )
    rows = plan.table(ExecutionPlan(batch_size=8, trials=trials))
    assert rows == [
        ["batch", "precision", "XLA", "verdict", "samples/s", "step ms", "compile s", "memory", "note"],
        ["8", "float32", "off", "fits", "1,234 ± 2%", "6.48", "1.5", "512 MB", "chosen"],
        ["16", "mixed_bfloat16", "on", "out of memory", "", "", "", "", "at the first step"],
    ]


def test_a_kept_plan_takes_less_cache_where_memory_has_become_short():
    from dataclasses import replace

    here = replace(machine(), memory_available_bytes=100 << 20)
    suited = planning._suited(ExecutionPlan(cache_bytes=1 << 30), here)
    assert suited.cache_bytes == 40 << 20
    assert "less memory is free" in suited.reasons[-1]


def test_spread_and_steps_per_call():
    assert spread([1.0]) == 0.0
    assert spread([1.0, 1.0, 9.0, 1.0, 1.0]) == 0.0  # one outlier is not the spread
    assert steps_per_call(0.01, 1000) == 10
    assert steps_per_call(0.01, 0) == 1


def test_a_worker_that_fails_to_build_is_told_as_such():
    outcome = worker.Outcome(worker.Verdict.TIMED_OUT, message="It was stopped at its limit of 600 s.")
    assert "Building failed. It was stopped" in planning._as_error(outcome, "Building").message


@pytest.mark.parametrize(
    ("error", "message", "words"),
    [
        (ValueError("one\ntwo."), "", "ValueError: one"),
        (None, "Traceback (most recent call last):\n  File\na.b.OpError: deep\n\nmore", "OpError: deep"),
        (TypeError("in user code:\n\n    File x  *\n\n    ValueError: 7 and 5\n"), "", "ValueError: 7 and 5"),
        (
            ValueError("Exception encountered when calling D.call().\n\n\x1b[1mOdd.\x1b[0m\n\nArguments"),
            "",
            "ValueError: Odd. (in D.call)",
        ),
        (None, "It left.\nThe last it printed:\n    OSError: no", "It left"),
    ],
)
def test_last_words(error, message, words):
    assert plan_words.last_words(worker.Outcome(worker.Verdict.BUG, None, error, message)) == words
