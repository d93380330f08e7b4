"""The loop over epochs: best weights, stopping, exact evaluation, resuming to the bit, unsound numbers."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared import progress, worker
from shared.config import TrainSection
from shared.contract import Phase, Source
from shared.errors import TrainingError
from shared.input_pipeline import cached
from shared.plan import ExecutionPlan
from shared.training import learning_rate, loop
from shared.training.checkpoint import Checkpoints
from shared.training.loop import PhaseResult, train_phase
from shared.training.predict import Evaluator, Forward, predict

PLAN = ExecutionPlan(batch_size=8, steps_per_call=2)
TIMING = ("seconds", "samples_per_second", "input_bound_share")


def data(count: int = 44, seed: int = 0, augment: Any = None) -> Source:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    y = (x[:, :1] + 0.3 * rng.normal(size=(count, 1)) > 0).astype(np.float32)
    source = Source(count, dataset=tf.data.Dataset.from_tensor_slices((x, y)), augment=augment)
    return cached(source, PLAN)


def noise(x, seed):
    return x + 0.1 * tf.random.stateless_normal([4], seed)


def network() -> keras.Model:
    """With all that carries state from step to step: batch normalisation and dropout."""
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def phase(**kwargs) -> Phase:
    given = {
        "name": "head",
        "build": lambda previous: network(),
        "loss": keras.losses.binary_crossentropy,
        "epochs": 3,
        "learning_rate": 0.01,
        **kwargs,
    }
    return Phase(**given)


def watched(**kwargs) -> Phase:
    return phase(metrics={"AUROC": keras.metrics.AUC}, **kwargs)


def train(model: keras.Model, folder: Path | None = None, **kwargs) -> PhaseResult:
    given: dict[str, Any] = {
        "strategy": tf.distribute.get_strategy(),
        "model": model,
        "phase": phase(),
        "train": data(augment=noise),
        "validation": data(21, seed=1),
        "plan": PLAN,
        "section": TrainSection(),
        "seed": 3,
        "checkpoints": None if folder is None else Checkpoints(folder, "head"),
        **kwargs,
    }
    return train_phase(**given)


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in TIMING} for row in rows]


def test_a_phase_learns_and_tells(caplog):
    model = network()
    heard: list[progress.Progress] = []
    rows: list[int] = []
    with progress.listening(heard.append), caplog.at_level(logging.INFO, "casebook.training"):
        result = train(
            model, phase=watched(epochs=4, learning_rate=0.05), on_epoch=lambda h: rows.append(len(h))
        )
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert set(result.history[0]) == {"phase", "epoch", "loss", "val_loss", "val_AUROC", "lr", *TIMING}
    assert rows == list(range(1, result.epochs + 1))
    assert heard[-1].done == result.epochs * 5
    assert heard[-1].total == 4 * 5
    assert set(heard[-1].numbers) == {"loss", "val_loss"}
    # epoch metrics go through logging, so they reach the flow's log
    assert sum("epoch" in r.message and "val_AUROC" in r.message for r in caplog.records) == result.epochs
    assert 0 <= result.input_bound_share <= 1
    assert result.samples_per_second > 0


def test_the_model_ends_with_its_best_epoch():
    model = network()
    validation = data(21, seed=1)
    result = train(model, phase=phase(epochs=6, learning_rate=0.3), section=TrainSection(patience=3))
    best = min(result.history, key=lambda row: row["val_loss"])
    assert (result.best, result.best_epoch) == (best["val_loss"], best["epoch"])
    metrics = {"AUROC": keras.metrics.AUC()}
    evaluator = Evaluator(
        Forward(model), loop.make_stepper(model, phase().loss, PLAN, rate=0.1).example_losses, metrics
    )
    assert evaluator.run(validation, PLAN)["loss"] == pytest.approx(best["val_loss"], rel=1e-6)


def test_a_refinement_that_never_helps_leaves_what_it_started_with(tmp_path):
    model = network()
    train(model, phase=phase(epochs=6, learning_rate=0.05))
    good = [variable.numpy() for variable in model.variables]
    worse = phase(name="refine", epochs=2, learning_rate=1.0, refines=True)
    result = train(model, tmp_path, phase=worse, section=TrainSection(warmup_share=0))
    assert result.best_epoch == 0
    assert result.best < min(row["val_loss"] for row in result.history)
    assert all(np.array_equal(one, two.numpy()) for one, two in zip(good, model.variables, strict=True))
    # and again, from the checkpoint of the last epoch
    again = network()
    assert train(again, tmp_path, phase=worse, section=TrainSection(warmup_share=0)).best_epoch == 0
    assert all(np.array_equal(one, two.numpy()) for one, two in zip(good, again.variables, strict=True))


def test_patience_stops_early():
    result = train(
        network(),
        phase=watched(epochs=50, learning_rate=1e-7, monitor="AUROC", monitor_mode="max"),
        section=TrainSection(patience=2, warmup_share=0),
    )
    assert result.stopped == "early"
    assert result.epochs == result.best_epoch + 2


def test_without_validation_the_training_loss_is_watched():
    result = train(network(), validation=None)
    assert "val_loss" not in result.history[0]
    assert result.best == min(row["loss"] for row in result.history)


def test_evaluation_is_exact_whatever_the_batch():
    model = network()
    source = data(21, seed=1)
    values, truth = predict(model, source, PLAN)
    assert values.shape == truth.shape == (21, 1)
    expected = -np.mean(np.where(truth > 0, np.log(values), np.log(1 - values)))
    whole = keras.metrics.AUC()
    whole.update_state(truth, values)
    losses = loop.make_stepper(model, phase().loss, PLAN, rate=0.1).example_losses
    for batch in (4, 21, 64):
        evaluator = Evaluator(Forward(model), losses, {"AUROC": keras.metrics.AUC()})
        measured = evaluator.run(source, replace(PLAN, batch_size=batch))
        assert measured["loss"] == pytest.approx(expected, rel=1e-5)
        assert measured["AUROC"] == pytest.approx(float(whole.result()), rel=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_examples_than_a_batch_still_train(count):
    result = train(network(), train=data(count), phase=phase(epochs=1))
    assert np.isfinite(result.history[0]["loss"])


def test_no_examples_is_an_error():
    with pytest.raises(TrainingError, match="no training examples"):
        train(network(), train=Source(0, gather=lambda p: (p, p)))


@pytest.fixture(scope="module")
def whole() -> tuple[PhaseResult, list[np.ndarray]]:
    """An uninterrupted training: its result and the bits it ended with."""
    model = network()
    return train(model), [variable.numpy() for variable in model.variables]


class _Killed(Exception):
    pass


def kill_after(calls: int) -> Any:
    """A listener that ends training after so many calls into the graph."""
    left = [calls]

    def listener(report: progress.Progress) -> None:
        left[0] -= 1
        if not left[0]:
            raise _Killed

    return listener


@pytest.mark.parametrize(("calls", "between"), [(4, 600.0), (8, 0.0)])
def test_a_killed_training_ends_with_the_same_bits(whole, tmp_path, monkeypatch, calls, between):
    """Killed in its second epoch with checkpoints at epochs only; in its third with some in their midst."""
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", between)
    with progress.listening(kill_after(calls)), pytest.raises(_Killed):
        train(network(), tmp_path)
    assert max(tmp_path.iterdir()).name == (
        "head-00001-00000000.npz" if between else "head-00002-00000002.npz"
    )
    resumed = network()
    for variable in resumed.variables:  # whatever it starts from
        variable.assign(np.ones(variable.shape))
    result = train(resumed, tmp_path)
    assert without_times(result.history) == without_times(whole[0].history)
    for ours, theirs in zip(resumed.variables, whole[1], strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_an_epoch_is_kept_before_its_validation(whole, tmp_path, monkeypatch):
    """Validation hears no SIGTERM, and may be killed when its grace is over."""
    monkeypatch.setattr(loop, "SECONDS_AT_RISK", 0.0)
    validations = []

    def killed(self) -> dict[str, float]:
        validations.append(self)
        if len(validations) == 2:
            raise _Killed
        return validate(self)

    validate = loop._PhaseRun.validate
    monkeypatch.setattr(loop._PhaseRun, "validate", killed)
    with pytest.raises(_Killed):
        train(network(), tmp_path)
    assert max(tmp_path.iterdir()).name == "head-00001-00000005.npz"  # all 5 steps of the second epoch
    result = train(network(), tmp_path)
    assert without_times(result.history) == without_times(whole[0].history)


def test_a_finished_training_is_not_repeated(tmp_path):
    first = train(network(), tmp_path)
    model = network()
    with progress.listening(kill_after(1)):
        again = train(model, tmp_path)
    assert again == first


def test_a_corrupt_checkpoint_costs_an_epoch_not_the_training(whole, tmp_path, caplog):
    with progress.listening(kill_after(8)), pytest.raises(_Killed):
        train(network(), tmp_path)
    newest = max(tmp_path.iterdir())
    newest.write_bytes(newest.read_bytes()[:1000])
    result = train(network(), tmp_path)
    assert newest.name in caplog.text
    assert without_times(result.history) == without_times(whole[0].history)


def test_the_schedule_is_made_anew_with_the_batch(tmp_path, caplog):
    """44 examples are 5 steps of 8, and 2 of 16: after epoch 2 the rate must be where 4 steps of 6 are."""
    steady = {"section": TrainSection(warmup_share=0)}
    with progress.listening(kill_after(7)), pytest.raises(_Killed):
        train(network(), tmp_path, **steady)
    caplog.set_level(logging.INFO, "casebook.training")
    result = train(network(), tmp_path, plan=replace(PLAN, batch_size=16), **steady)
    assert "made anew, at step 4 of 6" in caplog.text
    shape = {"peak": 0.01, "total": 6, "warmup": 0, "kind": "cosine"}
    assert result.history[2]["lr"] == learning_rate.rate(5, **shape)  # of the last step
    assert result.epochs == 3


def test_threads_that_changed_are_told(tmp_path, caplog):
    train(network(), tmp_path, determinism={"intra_op_threads": 2})
    train(network(), tmp_path, determinism={"intra_op_threads": 1})
    assert "intra_op_threads was 2 and is 1 now" in caplog.text


def test_nan_weights_are_found_though_the_loss_is_fine(tmp_path):
    """The moving statistics become NaN, which training mode never reads."""

    @keras.saving.register_keras_serializable("tests")
    class Poison(keras.layers.Layer):
        def build(self, shape):
            self.statistic = self.add_weight(name="statistic", shape=(2,), trainable=False)
            self.steps = self.add_weight(name="steps", shape=(), trainable=False)

        def call(self, x, training=None):
            if training:
                self.steps.assign(self.steps + 1.0)
                self.statistic.assign(
                    keras.ops.where(self.steps > 7.0, float("nan"), self.statistic) * keras.ops.ones(2)
                )
            return x

    model = keras.Sequential(
        [keras.layers.Input((4,)), Poison(name="poison"), keras.layers.Dense(1, activation="sigmoid")]
    )
    with pytest.raises(
        TrainingError, match=r"phase head, epoch 2, step 5.*poison/statistic \(2 of 2 values\)"
    ):
        train(model, tmp_path)
    assert Checkpoints(tmp_path, "head").newest().meta["epoch"] == 1  # the last good one


def test_a_loss_of_nan_stops_at_once():
    bad = data(44)

    def gather(positions):
        x, y = bad.gather(positions)
        return x * float("nan"), y

    with pytest.raises(TrainingError, match=r"epoch 1, step 2: the loss became nan.*dense_?\d*/kernel"):
        train(network(), train=Source(44, gather=gather))


def test_a_monitor_that_is_no_metric_is_refused():
    with pytest.raises(TrainingError, match=r"monitors 'auc'.*\n.*AUROC"):
        train(network(), phase=watched(monitor="auc"))


def test_a_slow_source_is_found_out():
    def slow(positions):
        return tf.py_function(lambda p: _slowly(p), [positions], [tf.float32, tf.float32])

    def _slowly(positions):
        import time

        time.sleep(0.05)
        return np.ones((len(positions), 4), np.float32), np.ones((len(positions), 1), np.float32)

    def gather(positions):
        x, y = slow(positions)
        return tf.ensure_shape(x, [None, 4]), tf.ensure_shape(y, [None, 1])

    result = train(
        network(),
        train=Source(32, gather=gather),
        plan=replace(PLAN, parallel_calls=1),
        phase=phase(epochs=1),
    )
    assert result.input_bound_share > 0.5
    assert "waiting for input" in result.advice


def mirrored(replicas: int, folder: Path) -> dict[str, Any]:
    """In a child: a network whose shares do not matter, and one with state, killed and resumed."""
    strategy = tf.distribute.get_strategy()
    if replicas > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * replicas
        )
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    plan = replace(PLAN, replicas=replicas)
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.layers.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
        )
    squares = phase(loss=keras.losses.mean_squared_error, metrics={"MAE": keras.metrics.MeanAbsoluteError})
    found: dict[str, Any] = {"history": train(model, phase=squares, strategy=strategy, plan=plan).history}
    found["values"], _ = predict(model, data(21, seed=1), plan, strategy)
    if replicas > 1:
        given: dict[str, Any] = {"strategy": strategy, "plan": plan, "phase": phase(epochs=2)}
        with strategy.scope():
            whole, killed, resumed = network(), network(), network()
        train(whole, **given)
        with progress.listening(kill_after(4)), pytest.raises(_Killed):
            train(killed, folder, **given)
        train(resumed, folder, **given)
        found["bits"] = [
            (a.path, np.array_equal(a.numpy(), b.numpy()))
            for a, b in zip(whole.variables, resumed.variables, strict=True)
        ]
    return found


@pytest.mark.slow
def test_two_replicas_train_as_one_does_and_resume_to_the_bit(tmp_path):
    one, two = (worker.call(mirrored, replicas, tmp_path, timeout=300) for replicas in (1, 2))
    for row_one, row_two in zip(one["history"], two["history"], strict=True):
        for name in ("loss", "val_loss", "val_MAE", "lr"):
            assert row_two[name] == pytest.approx(row_one[name], rel=1e-4)
    np.testing.assert_allclose(one["values"], two["values"], rtol=1e-4, atol=1e-5)
    assert len(two["values"]) == 21
    assert all(equal for _, equal in two["bits"]), two["bits"]


def test_another_seed_is_not_resumed(tmp_path):
    train(network(), tmp_path, phase=phase(epochs=1))
    with pytest.raises(TrainingError, match="seed 3, received 4"):
        train(network(), tmp_path, seed=4)
