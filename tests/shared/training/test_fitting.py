"""``fit`` for a person who has only a Keras model function and a tf.data function."""

from __future__ import annotations

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared import Source
from shared.config import AcceleratorSection, TrainSection
from shared.errors import InputError, TrainingError
from shared.plan import ExecutionPlan
from shared.training import Trained, fit
from shared.training.stopping import Stopped

CPU = AcceleratorSection.model_validate({"device": "cpu"})
TRUTH = np.float32([1.0, -2.0, 0.5])


def model() -> keras.Model:
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])


def data(count: int = 64, seed: int = 0) -> tf.data.Dataset:
    x = np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x @ TRUTH))


def train(**kwargs) -> Trained:
    given = {
        "loss": keras.losses.mean_squared_error,
        "epochs": 12,
        "learning_rate": 0.2,
        "device": CPU,
        **kwargs,
    }
    return fit(model, data, **given)


def test_a_line_is_learnt():
    trained = train(
        epochs=30,
        validation_fn=lambda: data(17, seed=1),
        metrics={"MAE": keras.metrics.MeanAbsoluteError},
        train=TrainSection.model_validate({"patience": 0}),
    )
    np.testing.assert_allclose(trained.model.trainable_variables[0].numpy()[:, 0], TRUTH, atol=0.1)
    assert trained.history[-1]["val_MAE"] < 0.1
    assert trained.plan.batch_size == 32
    assert not trained.plan.measured


def test_the_same_seed_gives_the_same_bits_and_goes_on_from_checkpoints(tmp_path):
    steady = {"train": TrainSection.model_validate({"schedule": "constant"})}
    first, second = train(epochs=3, **steady), train(epochs=2, checkpoints=tmp_path, **steady)
    assert len(second.history) == 2
    third = train(epochs=3, checkpoints=tmp_path, **steady)
    for ours, theirs in zip(third.model.variables, first.model.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_a_plan_is_followed_and_the_policy_is_the_persons_again():
    def wide() -> keras.Model:
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, dtype="float32")])

    plan = ExecutionPlan(batch_size=16, precision="mixed_bfloat16", steps_per_call=2)
    trained = fit(wide, data, plan, loss=keras.losses.mean_squared_error, epochs=1, device=CPU)
    assert trained.plan is plan
    assert keras.config.dtype_policy().name == "float32"


def test_augmentation_reaches_training():
    shifted = train(augment=lambda x, seed: x * 0.0, epochs=1)
    kernel = shifted.model.trainable_variables[0].numpy()
    keras.utils.set_random_seed(0)
    np.testing.assert_array_equal(kernel, model().trainable_variables[0].numpy())  # nothing to learn from


def test_a_source_does_as_well():
    x = tf.ones([8, 3])
    trained = fit(
        model,
        lambda: Source(8, gather=lambda p: (tf.gather(x, p), tf.gather(x[:, :1], p))),
        loss=keras.losses.mean_squared_error,
        epochs=1,
        device=CPU,
    )
    assert len(trained.history) == 1


def test_arrays_are_refused_with_a_hint():
    with pytest.raises(InputError, match="from_tensor_slices"):
        fit(model, lambda: np.ones(3), loss=keras.losses.mean_squared_error, epochs=1, device=CPU)


def plain_rate(**kwargs) -> TrainSection:
    """A rate that a callback may set."""
    return TrainSection.model_validate({"schedule": "constant", "warmup_share": 0.0, "patience": 0, **kwargs})


def watched_rate() -> list[keras.callbacks.Callback]:
    """Halves the rate after every epoch; its own state says when."""
    return [keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=1e9)]


def test_keras_callbacks_are_heard_and_go_on_from_checkpoints(tmp_path):
    given = {"train": plain_rate(), "epochs": 6}
    whole = train(callbacks=watched_rate(), **given)
    assert whole.history[-1]["lr"] < whole.history[0]["lr"] / 4

    class Leave(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 3:
                raise KeyboardInterrupt  # before the checkpoint of this epoch

    with pytest.raises(KeyboardInterrupt):
        train(callbacks=[*watched_rate(), Leave()], checkpoints=tmp_path, **given)
    resumed = train(callbacks=watched_rate(), checkpoints=tmp_path, **given)
    assert [row["lr"] for row in resumed.history] == [row["lr"] for row in whole.history]
    for ours, theirs in zip(resumed.model.variables, whole.model.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_a_callback_that_sets_a_scheduled_rate_is_told_how():
    with pytest.raises(TrainingError, match="learning rate") as caught:
        train(callbacks=watched_rate())
    assert "train.schedule = constant" in caught.value.remedy


def test_a_callback_may_stop_the_training():
    trained = train(callbacks=[keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=2)])
    assert len(trained.history) == 3
    assert trained.result.stopped == "early"


def test_sigterm_keeps_the_moment_and_the_rest_is_the_same_to_the_bit(tmp_path):
    """Spot machines give 30 seconds' notice. Here it comes in the midst of an epoch of 16 steps."""
    plan = ExecutionPlan(batch_size=4, steps_per_call=2)
    whole = train(plan=plan, epochs=3)

    class Terminated(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.seen and batch == 5:
                os.kill(os.getpid(), signal.SIGTERM)

        def on_epoch_end(self, epoch, logs=None):
            self.seen = True

        seen = False

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="epoch 2, step 8"):
        train(plan=plan, epochs=3, callbacks=[Terminated()], checkpoints=tmp_path)
    assert signal.getsignal(signal.SIGTERM) == before
    resumed = train(plan=plan, epochs=3, checkpoints=tmp_path)
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]
    for ours, theirs in zip(resumed.model.variables, whole.model.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (
            {"model_fn": model()},
            "model_fn must be a function that returns a new Keras model, received Sequential",
        ),
        ({"model_fn": lambda: None}, "model_fn must return a Keras model, received NoneType"),
        ({"data_fn": data()}, "data_fn must be a function that returns a tf.data set"),
        ({"validation_fn": data()}, "validation_fn must be a function"),
        ({"loss": "mse"}, "loss must be a function of .*, received 'mse'"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, received 0"),
        ({"callbacks": keras.callbacks.TerminateOnNaN()}, "callbacks must be a list of Keras callbacks"),
        (
            {"metrics": {"MAE": keras.metrics.MeanAbsoluteError()}},
            "must be a factory of a keras.metrics.Metric",
        ),
    ],
)
def test_what_is_no_function_where_one_is_meant_is_told_before_the_graph(given, what):
    whole = {"model_fn": model, "data_fn": data, "loss": keras.losses.mean_squared_error, "epochs": 1}
    with pytest.raises(InputError, match=what) as caught:
        fit(**{**whole, "device": CPU, **given})
    assert caught.value.remedy


def test_checkpoints_may_be_named_by_text(tmp_path):
    train(epochs=1, checkpoints=str(tmp_path / "kept"))
    assert list((tmp_path / "kept").glob("fit-*.npz"))


def test_a_folder_that_cannot_be_is_told_before_an_epoch_is_trained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file cannot be made: File exists"):
        train(checkpoints=tmp_path / "file", epochs=10**6)


def two_inputs() -> keras.Model:
    inputs = {name: keras.Input((3,), name=name) for name in ("left", "right")}
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Add()(list(inputs.values()))))


class TwoOutputs(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, x):
        return self.one(x), self.other(x)


class NoOutput(keras.Model):
    def call(self, x):
        self.seen = x.shape


@pytest.mark.parametrize(
    ("model_fn", "data_fn", "what"),
    [
        (model, lambda: data().batch(16), r"expected shape=\(None, 3\), found shape=\(1, 16, 3\)"),
        (two_inputs, lambda: data().map(lambda x, y: ({"left": x}, y)), 'Missing data for input "right"'),
        (TwoOutputs, data, "gives 2 outputs"),
        (NoOutput, data, "must give one tensor, received NoneType"),
    ],
)
def test_examples_that_do_not_fit_the_model_are_told_without_the_graph(model_fn, data_fn, what):
    with pytest.raises(InputError, match=what) as caught:
        fit(model_fn, data_fn, loss=keras.losses.mean_squared_error, epochs=1, device=CPU)
    assert "user code" not in caught.value.message
    assert "Arguments received" not in caught.value.message
