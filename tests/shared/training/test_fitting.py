"""``fit`` for a person who has only a Keras model function and a tf.data function."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared import Source
from shared.config import AcceleratorSection, TrainSection
from shared.errors import InputError
from shared.plan import ExecutionPlan
from shared.training import Trained, fit

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
