"""One step, against gradients worked out by hand; and the same step shared by two replicas."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared import worker
from shared.errors import TrainingError
from shared.training.predict import Forward
from shared.training.step import Stepper, make_optimizer

X = np.float32([[1.0], [2.0], [3.0], [4.0]])
Y = np.float32([[2.0], [2.0], [0.0], [1.0]])


def line(**kwargs) -> keras.Model:
    """y = w x with w = 1."""
    return keras.Sequential(
        [
            keras.layers.Input((1,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", **kwargs),
        ]
    )


def batches(weight=(1, 1, 1, 1), y=Y) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((X, y, np.float32(weight))).repeat()


def step(
    model: keras.Model, data: tf.data.Dataset, steps: int = 1, loss=None, **kwargs
) -> tuple[float, float]:
    stepper = Stepper(model, loss or keras.losses.mean_squared_error, keras.optimizers.SGD(1.0), **kwargs)
    return stepper.run(stepper.iterate(data), steps)


def weight_of(model: keras.Model) -> float:
    return float(model.trainable_variables[0].numpy().ravel()[0])


def test_loss_and_gradient_by_hand():
    model = line()
    total, count = step(model, batches())
    # losses (x - y)^2 = 1, 0, 9, 9; gradient 2 x (x - y) = -2, 0, 18, 24: mean 10
    assert (total, count) == (19.0, 4.0)
    assert weight_of(model) == pytest.approx(1 - 10)


def test_weights_are_a_weighted_mean():
    model = line()
    total, count = step(model, batches(weight=(1, 0, 3, 0)))
    assert (total, count) == (1 + 27, 4.0)
    assert weight_of(model) == pytest.approx(1 - (-2 + 3 * 18) / 4)


def test_a_batch_without_weight_changes_nothing():
    model = line()
    assert step(model, batches(weight=(0, 0, 0, 0))) == (0.0, 0.0)
    assert weight_of(model) == 1.0


def test_several_outputs_and_a_truth_of_several_values_are_told(caplog):
    inputs = keras.Input((1,))
    two = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])
    with pytest.raises(TrainingError, match="gives 2 outputs"):
        step(two, batches())
    step(line(), batches(y=np.repeat(Y, 3, axis=1)))
    assert "has 3 values an example and the model gives one" in caplog.text


def test_a_missing_truth_without_weight_does_no_harm():
    model = line()
    missing = np.float32([[2.0], [np.nan], [0.0], [1.0]])
    total, count = step(model, batches(weight=(1, 0, 1, 1), y=missing))
    assert (total, count) == (19.0, 3.0)
    assert weight_of(model) == pytest.approx(1 - (-2 + 18 + 24) / 3)


def test_several_steps_in_one_call_equal_as_many_calls():
    one, many = line(), line()
    stepper = Stepper(one, keras.losses.mean_squared_error, keras.optimizers.SGD(0.01))
    iterator = stepper.iterate(batches())
    sums = np.sum([stepper.run(iterator) for _ in range(5)], axis=0)
    stepper = Stepper(many, keras.losses.mean_squared_error, keras.optimizers.SGD(0.01))
    np.testing.assert_allclose(stepper.run(stepper.iterate(batches()), 5), sums)
    assert weight_of(one) == weight_of(many)


def test_accumulated_micro_batches_equal_the_whole_batch():
    model = line()
    assert step(model, batches(weight=(1, 2, 3, 4)), accumulation=2) == (1 + 0 + 27 + 36, 10.0)
    assert weight_of(model) == pytest.approx(1 - (-2 + 54 + 96) / 10)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_regulariser_counts_once_a_step(accumulation):
    model = line(kernel_regularizer=keras.regularizers.L2(0.5))  # gradient 2 * 0.5 * w = 1
    step(model, batches(), accumulation=accumulation)
    assert weight_of(model) == pytest.approx(1 - 10 - 1)


def test_gradients_are_clipped_by_their_global_norm():
    model = line()
    step(model, batches(), clip_norm=0.5)
    assert weight_of(model) == pytest.approx(0.5)
    model = line()
    step(model, batches(), clip_norm=11.0)
    assert weight_of(model) == pytest.approx(-9)


def test_xla_takes_the_same_step():
    model = line()
    step(model, batches(), xla=True, clip_norm=2.0)
    assert weight_of(model) == pytest.approx(-1)


def test_a_flat_truth_beside_a_column_is_not_broadcast():
    model = line()
    total, _ = step(model, batches(y=Y[:, 0]))
    assert total == 19.0


def test_pictures_have_the_mean_loss_of_their_pixels():
    model = keras.Sequential(
        [keras.layers.Input((1,)), keras.layers.Reshape((1, 1, 1)), keras.layers.Dense(1)]
    )
    total, _ = step(model, batches(y=Y[:, :, None, None]), loss=lambda y, p: tf.square(y - y + 0.0 * p + 3.0))
    assert total == 4 * 9.0


def test_a_loss_of_the_whole_batch_is_refused():
    with pytest.raises(TrainingError, match=r"one value per example.*\n.*reduction=None"):
        step(line(), batches(), loss=keras.losses.MeanSquaredError())


def test_a_half_precision_output_is_refused():
    with pytest.raises(TrainingError, match="output is float16"):
        step(line(dtype="mixed_float16"), batches())


def test_a_model_that_learns_nothing_is_refused():
    model = line()
    with pytest.raises(TrainingError, match="No trainable variable"):
        step(model, batches(), loss=lambda y, p: tf.reduce_sum(y, axis=-1))


def test_an_unused_variable_is_named_and_left(caplog):
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
    model.spare = keras.layers.Dense(1, name="spare")
    model.spare.build((None, 1))
    before = model.spare.kernel.numpy()
    with caplog.at_level("WARNING", "casebook.training"):
        step(model, batches())
    assert "spare/kernel, spare/bias" in caplog.text
    np.testing.assert_array_equal(model.spare.kernel.numpy(), before)


def test_an_fp16_overflow_skips_the_step_and_halves_the_scale():
    model = line(dtype="float32")
    optimizer = make_optimizer(0.1, precision="mixed_float16")
    stepper = Stepper(
        model, lambda y, p: keras.losses.mean_squared_error(y, p) * 1e37, optimizer, clip_norm=1.0
    )
    iterator = stepper.iterate(batches())
    stepper.run(iterator)
    assert weight_of(model) == 1.0
    assert float(optimizer.dynamic_scale.numpy()) == 2.0**14
    assert int(optimizer.iterations.numpy()) == 0


def test_loss_scaling_does_not_change_the_clipped_step():
    plain, scaled = line(), line()
    for model, precision in ((plain, "float32"), (scaled, "mixed_float16")):
        stepper = Stepper(
            model, keras.losses.mean_squared_error, make_optimizer(0.1, precision=precision), clip_norm=0.5
        )
        stepper.run(stepper.iterate(batches()), 3)
    assert weight_of(plain) == pytest.approx(weight_of(scaled), rel=1e-5)


def test_weight_decay_spares_biases():
    inputs = keras.Input((1,))
    model = keras.Model(
        inputs, keras.layers.Dense(1, kernel_initializer="ones", bias_initializer="ones")(inputs)
    )
    optimizer = make_optimizer(0.1, weight_decay=0.5)
    stepper = Stepper(model, lambda y, p: tf.reduce_sum(p * 0.0, axis=-1), optimizer)
    stepper.run(stepper.iterate(batches()))
    kernel, bias = (float(v.numpy().ravel()[0]) for v in model.trainable_variables)
    assert kernel == pytest.approx(1 - 0.1 * 0.5)
    assert bias == 1.0


def test_answers_come_in_order():
    forward = Forward(line())
    prediction, y, weight = forward.run((X, Y, np.float32([1, 1, 1, 0])))
    np.testing.assert_allclose(prediction, X)
    np.testing.assert_allclose(y, Y)
    assert weight.shape == (4,)


def on_two(xla: bool) -> dict[str, Any]:
    """In a child: some steps on one device, and on two halves of the same CPU."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 3)).astype(np.float32)
    y = rng.normal(size=(8, 1)).astype(np.float32)
    weight = np.float32([1, 2, 3, 4, 1, 1, 0, 0])  # unequal shares: a mean of the replicas' means is wrong
    found: dict[str, Any] = {}
    for name, strategy in (
        ("one", tf.distribute.get_strategy()),
        ("two", tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])),
    ):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.layers.Input((3,)),
                    keras.layers.Dense(4, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1)),
                    keras.layers.Dense(1),
                ]
            )
            stepper = Stepper(
                model,
                keras.losses.mean_squared_error,
                make_optimizer(0.05),
                strategy=strategy,
                clip_norm=0.3,
                xla=xla,
                accumulation=1 if xla else 2,
            )
        data = tf.data.Dataset.from_tensors((x, y, weight)).repeat()
        sums = stepper.run(stepper.iterate(data), 6)
        answers = Forward(model, strategy=strategy)
        prediction = np.concatenate([answers.run(b)[0] for b in answers.iterate(data.take(2))])
        found[name] = (sums, [v.numpy() for v in model.variables], prediction)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("xla", [False, True])
def test_two_replicas_take_the_step_of_one(xla):
    found = worker.call(on_two, xla, timeout=120)
    np.testing.assert_allclose(found["two"][0], found["one"][0], rtol=1e-5)
    for two, one in zip(found["two"][1], found["one"][1], strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["two"][2], found["one"][2], rtol=1e-5, atol=1e-6)


def two_replicas() -> dict[str, Any]:
    """In a child: an overflow on the second replica only, and batch normalisation of unlike shares."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = line()
        optimizer = make_optimizer(0.1, precision="mixed_float16")
        stepper = Stepper(model, keras.losses.mean_squared_error, optimizer, strategy=strategy)
    y = np.float32([[1.0], [1.0], [1.0], [1e38]])  # only the second replica's share overflows
    stepper.run(stepper.iterate(batches(y=y)))

    def copies(variable: keras.Variable) -> list[float]:
        results = strategy.experimental_local_results(variable.value)
        return [float(copy.numpy().ravel()[0]) for copy in results]

    found: dict[str, Any] = {
        "weights": copies(model.trainable_variables[0]),
        "scale": float(optimizer.dynamic_scale.numpy()),
    }
    with strategy.scope():
        normalised = keras.Sequential(
            [keras.layers.Input((1,)), keras.layers.BatchNormalization(momentum=0.5)]
        )
        stepper = Stepper(normalised, keras.losses.mean_squared_error, make_optimizer(0.1), strategy=strategy)
    stepper.run(stepper.iterate(batches()))
    found["moving_mean"] = copies(normalised.layers[0].moving_mean)
    return found


@pytest.mark.slow
def test_what_one_replica_sees_all_know():
    found = worker.call(two_replicas, timeout=120)
    assert found["weights"] == [1.0, 1.0]  # the step was skipped by both
    assert found["scale"] == 2.0**14  # and the scale halved once
    # means of the shares are 1.5 and 3.5; half-way from 0 they are 0.75 and 1.75, and 1.25 together
    assert found["moving_mean"] == [1.25, 1.25]
