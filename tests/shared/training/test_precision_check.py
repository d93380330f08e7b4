"""Sound models take float32's path in 16 bits; models with planted trouble of 16 bits do not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared.training.precision_check import compare, float32_twin
from shared.training.step import Stepper, make_optimizer

layers = keras.layers


@keras.saving.register_keras_serializable("casebook-tests")
class Scaled(layers.Layer):
    def __init__(self, by: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.by = by

    def call(self, x: Any) -> Any:
        return x * self.by

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "by": self.by}


class WithoutConfig(keras.Model):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.dense = layers.Dense(units)

    def call(self, x: Any) -> Any:
        return self.dense(x)


@pytest.fixture(autouse=True)
def float32_again():
    yield
    keras.config.set_dtype_policy("float32")


def built(policy: str, make: Callable[[], keras.Model]) -> keras.Model:
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    model = make()
    keras.config.set_dtype_policy("float32")
    return model


def stacked(*stack: layers.Layer, features: int = 8) -> keras.Model:
    head = layers.Dense(1, activation="sigmoid", dtype="float32")
    return keras.Sequential([layers.Input((features,)), *stack, layers.Dense(16, activation="relu"), head])


def pictures() -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3)(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Dropout(0.5)(layers.GlobalAveragePooling2D()(layers.ReLU()(x)))
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid", dtype="float32")(x))


def recurrent() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((6, 3)),
            layers.LSTM(8, dropout=0.2),
            layers.Dense(1, activation="sigmoid", dtype="float32"),
        ]
    )


def data(*shape: int, steps: int = 8, change: Callable[[Any], Any] = lambda x: x) -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16 * steps, *shape)).astype(np.float32)
    y = (x.reshape(len(x), -1)[:, :1] > 0).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((change(x), y, np.ones(len(x), np.float32))).batch(16)


def stepper(model: keras.Model, policy: str, rate: float = 1e-3, loss: Any = None) -> Stepper:
    optimizer = make_optimizer(rate, precision=policy)
    return Stepper(model, loss or keras.losses.binary_crossentropy, optimizer, clip_norm=1.0)


def checked(make: Callable[[], keras.Model], policy: str, batches: tf.data.Dataset, **kwargs: Any) -> Any:
    model = built(policy, make)
    twin = float32_twin(model)
    assert twin is not None
    return compare(stepper(model, policy, **kwargs), stepper(twin, "float32", **kwargs), batches)


def perceptron() -> keras.Model:
    return stacked(layers.Dense(16, activation="gelu"), layers.Dropout(0.3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "make", "shape"),
    [
        ("mixed_float16", perceptron, (8,)),
        ("mixed_bfloat16", pictures, (8, 8, 3)),
        ("mixed_float16", recurrent, (6, 3)),
    ],
)
def test_a_sound_model_takes_the_path_of_float32(policy: str, make: Callable[[], keras.Model], shape: Any):
    found = checked(make, policy, data(*shape), rate=1e-2)
    assert not found.diverged, found
    assert len(found.mixed) == len(found.full) == 8
    assert 0 < found.gap < found.explained
    assert "takes the path of float32" in found.sentence


@pytest.mark.slow
def test_an_offset_that_rounds_the_signal_away_is_noticed():
    found = checked(
        lambda: stacked(layers.Lambda(lambda x: tf.subtract(x, 1000.0))),
        "mixed_bfloat16",
        data(8, change=lambda x: x + 1000),
    )
    assert found.diverged
    assert "another path than in float32" in found.sentence


def test_a_small_constant_that_float16_makes_zero_is_noticed():
    def standardised(x: Any) -> Any:
        return x / (tf.math.reduce_std(x, axis=0) + 1e-8)

    def constant(x: Any) -> Any:
        x[:, 4:] = 0.0
        return x

    found = checked(lambda: stacked(layers.Lambda(standardised)), "mixed_float16", data(8, change=constant))
    assert found.diverged
    assert "In 16 bits the loss became nan in step 1" in found.sentence


@pytest.mark.slow
def test_a_sum_that_overflows_float16_is_noticed():
    found = checked(
        lambda: stacked(
            layers.Lambda(lambda x: tf.reduce_sum(x, 1, keepdims=True) / 50000.0), features=50000
        ),
        "mixed_float16",
        data(50000, steps=2, change=lambda x: x + 2),
    )
    assert found.diverged


@pytest.mark.slow
def test_a_softmax_of_huge_float16_logits_is_noticed():
    def answer(x: Any) -> Any:
        return tf.nn.softmax(x * 30000.0)

    found = checked(lambda: stacked(layers.Dense(4), layers.Lambda(answer)), "mixed_float16", data(8))
    assert found.diverged


@pytest.mark.slow
def test_steps_that_loss_scaling_skips_are_skipped_by_both():
    def steep(y: Any, prediction: Any) -> Any:
        return 1e3 * keras.losses.mean_squared_error(y, prediction)

    model = built("mixed_float16", lambda: stacked())
    twin = float32_twin(model)
    assert twin is not None
    mine = stepper(model, "mixed_float16", loss=steep)
    found = compare(mine, stepper(twin, "float32", loss=steep), data(8, steps=16))
    assert not found.diverged, found
    skipped = len(found.mixed) - 8
    assert 0 < skipped <= 8
    assert int(mine.optimizer.iterations.numpy()) == 8


@pytest.mark.slow
def test_gradients_that_overflow_at_every_scale_are_noticed():
    def derivative_of_nan(y: Any, prediction: Any) -> Any:
        return tf.sqrt(tf.nn.relu(prediction[:, 0] * 0.0)) + keras.losses.mean_squared_error(y, prediction)

    found = checked(lambda: stacked(), "mixed_float16", data(8, steps=2), loss=derivative_of_nan)
    assert found.diverged
    assert "gradients overflowed in each of 2 steps" in found.sentence


def test_what_float32_does_too_is_not_blamed_on_precision():
    found = checked(lambda: stacked(), "mixed_bfloat16", data(8, change=lambda x: x * np.nan))
    assert not found.diverged
    assert "In float32 too the loss became nan" in found.sentence


def test_the_twin_is_the_model_in_float32():
    def make() -> keras.Model:
        inner = keras.Sequential([layers.Input((4,)), layers.Dense(4), layers.Dropout(0.5)], name="inner")
        inner.trainable = False
        inputs = keras.Input((4,))
        x = keras.ops.tanh(Scaled(2.0)(inner(inputs)))
        return keras.Model(
            inputs, layers.Dense(1, dtype="float32")(layers.Lambda(lambda x: tf.nn.relu(x))(x))
        )

    model = built("mixed_bfloat16", make)
    model(np.ones([2, 4], np.float32), training=True)  # the seed's state is not that of the start
    before = random.getstate()
    twin = float32_twin(model)
    assert random.getstate() == before  # what is built next is what would have been
    assert twin is not None
    assert {layer.compute_dtype for layer in twin._flatten_layers()} == {"float32"}
    for mine, theirs in zip(twin.variables, model.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    assert len(twin.trainable_variables) == len(model.trainable_variables) == 2
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_allclose(twin(x), model(x), rtol=0.05, atol=0.02)


def test_a_model_without_a_configuration_has_no_twin():
    model = built("mixed_bfloat16", lambda: WithoutConfig(2))
    model(np.ones([1, 3], np.float32))
    assert float32_twin(model) is None
