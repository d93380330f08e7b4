"""NaN and Inf planted in every place that they can come from: each is found there, and named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared import worker
from shared.training import checkpoint
from shared.training.diagnosis import diagnose
from shared.training.step import Stepper, make_optimizer

layers = keras.layers
STEPS, SIZE = 6, 8


class Logarithm(layers.Layer):
    """NaN where its input is negative."""

    def call(self, x: Any) -> Any:
        return tf.math.log(x)


class RootOfSquare(layers.Layer):
    """Finite at 0, where its derivative is not."""

    def call(self, x: Any) -> Any:
        return tf.sqrt(tf.square(x))


class Subclassed(keras.Model):
    """Takes a logarithm between its layers."""

    def __init__(self) -> None:
        super().__init__(name="subclassed")
        self.before = layers.Dense(2, kernel_initializer="ones", name="before")
        self.after = layers.Dense(1, name="after")

    def call(self, x: Any) -> Any:
        return self.after(tf.math.log(self.before(x)))


def examples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positive x [48, 3], y [48, 1], weight [48]."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 1.5, (STEPS * SIZE, 3)).astype(np.float32)
    return x, x.mean(axis=1, keepdims=True), np.ones(len(x), np.float32)


def plain(*stack: layers.Layer) -> keras.Model:
    return keras.Sequential(
        [layers.Input((3,)), *stack, layers.Dense(1, name="head", dtype="float32")], name="net"
    )


def step_of(example: int) -> int:
    return example // SIZE + 1


class Case:
    """A training that has gone wrong, with what its loop would know."""

    def __init__(
        self,
        model: keras.Model,
        arrays: Any,
        *,
        loss: Callable[..., Any] = keras.losses.mean_squared_error,
        optimizer: keras.optimizers.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        self.arrays = arrays
        model(tf.nest.map_structure(lambda a: a[:1], arrays[0]))
        self.stepper = Stepper(model, loss, optimizer or keras.optimizers.SGD(1e-3), **kwargs)
        self.good = checkpoint.values(self.variables)
        self.stepper.run(self.stepper.iterate(self.batches()), STEPS)

    @property
    def variables(self) -> list[Any]:
        return [*self.stepper.model.variables, *self.stepper.optimizer.variables]

    def batches(self) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self.arrays).batch(SIZE, drop_remainder=True)

    def restore(self) -> None:
        checkpoint.assign(self.variables, self.good, "the test")

    def diagnosis(self, **kwargs: Any) -> str:
        found = diagnose(self.stepper, self.restore, self.batches, STEPS, **kwargs)
        for path, value in checkpoint.values(self.variables).items():
            np.testing.assert_array_equal(value, self.good[path])
        return found


@pytest.mark.parametrize("part", [0, 1, 2])
def test_an_unsound_input_is_named_with_its_example(part: int):
    arrays = examples()
    arrays[part][21] = np.nan
    found = Case(plain(), arrays).diagnosis()
    assert found.startswith(f"In step {step_of(21)} since the last checkpoint, the input itself is unsound: ")
    assert f"{('x', 'y', 'weight')[part]} has" in found
    assert "the first in example 5 of the batch" in found


def test_a_component_of_the_input_is_named():
    x, y, weight = examples()
    one, two = keras.Input((3,), name="one"), keras.Input((3,), name="two")
    model = keras.Model({"one": one, "two": two}, layers.Dense(1)(layers.Add()([one, two])))
    other = x.copy()
    other[0, 2] = np.inf
    found = Case(model, ({"one": x, "two": other}, y, weight)).diagnosis()
    assert "x['two'] has 1 of 24 values" in found
    assert "example 0 of the batch at [2]" in found


def test_the_first_layer_is_named_with_its_path():
    x, y, weight = examples()
    x[40:] *= -1
    inner = keras.Sequential([layers.Input((3,)), Logarithm(name="log"), layers.Dense(2)], name="block")
    found = Case(plain(layers.Activation("linear"), inner, layers.ReLU()), (x, y, weight)).diagnosis()
    assert found == (
        f"In step {step_of(40)} since the last checkpoint, layer 'block/log' (Logarithm) is the first whose output "
        f"is not finite (24 of 24 values), while its input is (largest magnitude {np.abs(x[40:]).max():.3g})."
    )


def test_an_operation_of_a_functional_model_is_named():
    x, y, weight = examples()
    x[8] = -1
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layers.Dense(1)(keras.ops.log(inputs)))
    assert (
        "step 2 since the last checkpoint, operation 'log' (Log) is the first"
        in Case(model, (x, y, weight)).diagnosis()
    )


def test_a_models_own_code_is_told_apart_from_its_layers():
    x, y, weight = examples()
    x[16] = -1
    found = Case(Subclassed(), (x, y, weight)).diagnosis()
    assert "step 3" in found
    assert "model 'subclassed' (Subclassed) is the first" in found
    assert "inside it, layer 'after' (Dense) is the first that is given such values" in found


def test_an_overflow_in_float16_says_where_that_ends():
    x, y, weight = examples()
    x[9] = 1e6
    model = plain(layers.Dense(2, name="half", dtype="mixed_float16"))
    found = Case(model, (x, y, weight), optimizer=make_optimizer(1e-3, precision="mixed_float16")).diagnosis()
    assert "step 2" in found
    assert "layer 'half' (Dense) is the first" in found
    assert "(largest magnitude 1e+06, of its weights" in found
    assert found.endswith("; it computes in float16, which ends at 65504.")


def test_a_loss_that_is_not_finite_for_an_example():
    def loss(y: Any, prediction: Any) -> Any:
        return tf.reduce_mean(tf.math.log(y) + 0.0 * prediction, axis=-1)

    x, y, weight = examples()
    y[26] = 0.0
    found = Case(plain(), (x, y, weight), loss=loss).diagnosis()
    assert "step 4" in found
    assert "the loss is not finite for 1 of 8 examples (the first is example 2, counted from 0)" in found


def test_a_penalty_that_is_not_finite():
    model = plain(
        layers.Dense(2, name="odd", kernel_regularizer=lambda kernel: tf.sqrt(-tf.reduce_sum(kernel**2)))
    )
    assert "the penalty of layer 'odd' (Dense) is not finite" in Case(model, examples()).diagnosis()


def test_a_gradient_is_traced_to_the_layer_whose_derivative_it_is():
    x, y, weight = examples()
    x[32] = 0.0
    first = layers.Dense(2, use_bias=False, name="first")
    found = Case(plain(first, RootOfSquare(name="root")), (x, y, weight)).diagnosis()
    assert "step 5" in found
    assert "the gradient of 'net/first/kernel' is not finite (6 of 6 values)" in found.replace(
        "'first/", "'net/first/"
    )
    assert "it comes from the derivative of layer 'root' (RootOfSquare)" in found


def test_a_gradient_of_the_loss_function_itself():
    def loss(y: Any, prediction: Any) -> Any:
        return tf.sqrt(tf.nn.relu(prediction[:, 0] * 0.0))

    found = Case(plain(), examples(), loss=loss).diagnosis()
    assert "step 1" in found
    assert "while all layers' outputs and the loss are finite; it comes from the loss function's own" in found


def test_a_norm_that_overflows_is_told_from_its_gradients():
    found = Case(plain(), examples(), loss=lambda y, p: 1e25 * tf.reduce_sum(p, axis=-1)).diagnosis()
    assert "step 1" in found
    assert "the norm of the gradients overflows float32, while each of them is finite" in found


def test_a_y_without_weight_is_no_unsound_input():
    x, y, weight = examples()
    y[5], weight[5] = np.nan, 0.0
    assert "all were sound" in Case(plain(), (x, y, weight)).diagnosis()


def test_an_update_that_ruins_a_weight():
    def loss(y: Any, prediction: Any) -> Any:
        return 1e3 * keras.losses.mean_squared_error(y, prediction + 1.0)

    found = Case(plain(), examples(), loss=loss, optimizer=keras.optimizers.SGD(1e38)).diagnosis()
    assert "step 1" in found
    assert "the update made the weight 'head/kernel' unsound" in found.replace("'net/head", "'head")
    assert "while input, layers, loss and gradients are finite" in found


def test_moving_statistics_are_told_from_weights():
    x, y, weight = examples()
    x[24:32] *= np.float32([[1e25], [-1e25]] * 4)  # a variance above float32's range
    model = plain(layers.BatchNormalization(name="bn"))
    found = Case(model, (x, y, weight)).diagnosis()
    assert "step 4" in found
    assert "bn" in found
    assert "BatchNormalization" in found


def test_the_loss_scale_at_its_end_is_a_finding_and_its_fall_is_none():
    x, y, weight = examples()
    model = plain(layers.Dense(2, use_bias=False, name="first"), RootOfSquare(name="root"))
    optimizer = make_optimizer(1e-3, precision="mixed_float16")
    x[:] = 0.0  # every gradient is NaN
    case = Case(model, (x, y, weight), optimizer=optimizer)
    assert (
        "All 6 steps since the last checkpoint were taken again, and this time all were sound"
        in case.diagnosis()
    )
    optimizer.dynamic_scale.assign(2.0**3)
    case.good = checkpoint.values(case.variables)
    found = case.diagnosis()
    assert "step 3" in found
    assert "it comes from the derivative of layer 'root'" in found


def test_a_good_moment_that_is_none_is_told():
    case = Case(plain(), examples())
    path = next(iter(case.good))
    case.good[path][:] = math.nan
    assert "The last good moment itself holds NaN or Inf in" in case.diagnosis()


def test_it_gives_up_in_time_and_says_how_far_it_came():
    x, y, weight = examples()
    x[40:] = np.nan
    assert "1 of 6 steps since the last checkpoint were taken again" in Case(
        plain(), (x, y, weight)
    ).diagnosis(seconds=0.0)


def test_a_failing_look_hides_nothing():
    case = Case(plain(), examples())

    def broken() -> tf.data.Dataset:
        raise OSError("the disk is gone")

    found = diagnose(case.stepper, case.restore, broken, STEPS)
    assert found == "Where it comes from could not be found: OSError: the disk is gone"


def test_a_look_that_fails_leaves_the_step():
    class GraphOnly(layers.Layer):
        def call(self, x: Any) -> Any:
            if tf.executing_eagerly() and hasattr(x, "numpy") and len(x) > 1:
                raise MemoryError("too large")
            return x

    x, y, weight = examples()
    x[40:] *= 1e30
    found = Case(plain(GraphOnly()), (x, y, weight)).diagnosis()
    assert "step 6" in found
    assert "a closer look failed (" in found
    assert "too large" in found


def test_a_micro_batch_is_named():
    x, y, weight = examples()
    x[14] = -1
    found = Case(plain(Logarithm(name="log")), (x, y, weight), accumulation=2).diagnosis()
    assert "layer 'log' (Logarithm)" in found
    assert "so in micro-batch 1." in found


def on_two() -> dict[str, str]:
    """In a child: a layer on the second replica only, and a share without examples."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = {}
    x, y, weight = examples()
    x[14] = -1
    with strategy.scope():
        model = plain(Logarithm(name="log"), layers.Dropout(0.1), layers.BatchNormalization(name="bn"))
        case = Case(model, (x, y, weight), strategy=strategy)
    found["layer"] = case.diagnosis()

    class Short(Case):
        def batches(self) -> tf.data.Dataset:
            return tf.data.Dataset.from_tensor_slices(self.arrays).batch(SIZE)

    x, y, weight = (array[: (STEPS - 1) * SIZE + 1] for array in examples())
    with strategy.scope():
        case = Short(plain(layers.BatchNormalization(name="bn")), (x, y, weight), strategy=strategy)
    found["empty"] = case.diagnosis()
    return found


@pytest.mark.slow
def test_replicas_are_looked_at_in_turn():
    found = worker.call(on_two, timeout=120)
    assert "step 2 since the last checkpoint, layer 'log' (Logarithm) is the first" in found["layer"]
    assert found["layer"].endswith("so on replica 1.")
    assert "step 6" in found["empty"]
    assert "bn" in found["empty"]
    assert found["empty"].endswith("of this batch, replica 1 had no example.")
