"""Which random ops of a traced step no checkpoint holds: found in real graphs."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from shared.training.randomness import STATEFUL_RANDOM, unrepeatable, warning

layers = keras.layers


class Noise(layers.Layer):
    def call(self, x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x))


class NoisyLoop(layers.Layer):
    def call(self, x: Any) -> Any:
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x + tf.random.shuffle(x)), [0, x])[1]


def traced(*stack: layers.Layer) -> tuple[Any, keras.Model]:
    model = keras.Sequential([layers.Input((3,)), *stack, layers.Dense(1)], name="net")

    @tf.function
    def step(iterator: Any, steps: Any) -> Any:
        total = tf.zeros([])
        for _ in tf.range(steps):
            total += tf.reduce_sum(model(next(iterator), training=True))
        return total

    data = iter(tf.data.Dataset.from_tensors(tf.ones([4, 3])))
    return step.get_concrete_function(data, tf.constant(1)), model


def test_what_keras_keeps_in_variables_is_repeatable():
    function, model = traced(
        layers.Dropout(0.5), layers.GaussianNoise(0.1), layers.Reshape((3, 1)), layers.LSTM(2, dropout=0.5)
    )
    assert unrepeatable(function) == []
    assert unrepeatable(function, model) == []


def test_ops_with_hidden_state_are_named_with_their_layer():
    function, model = traced(
        layers.Dropout(0.5),
        layers.Lambda(lambda x: x + tf.random.uniform(tf.shape(x)), name="jitter"),
        Noise(name="noise"),
        NoisyLoop(name="loop"),
    )
    assert sorted(unrepeatable(function, model)) == [
        "RandomShuffle in net/loop",
        "RandomStandardNormal in net/noise",
        "RandomUniform in net/jitter",
    ]
    assert len(unrepeatable(function.graph)) == 3


def test_functions_that_the_step_calls_are_searched():
    inner = tf.function(lambda x: x * tf.random.truncated_normal([]))
    outer = tf.function(lambda x: tf.cond(x > 0, lambda: inner(x), lambda: x))
    assert unrepeatable(outer.get_concrete_function(tf.constant(1.0))) == ["TruncatedNormal"]


def test_a_generator_of_tensorflows_is_not_in_a_checkpoint():
    generator = tf.random.Generator.from_seed(1)
    function, model = traced(layers.Lambda(lambda x: x + generator.normal([3]), name="jitter"))
    assert unrepeatable(function, model) == ["RngReadAndSkip in net/jitter"]


def test_seeds_that_the_model_does_not_hold_are_told():
    foreign = keras.random.SeedGenerator(3)
    function, model = traced(
        layers.Dropout(0.5), layers.Lambda(lambda x: x + keras.random.normal([3], seed=foreign))
    )
    assert unrepeatable(function, model) == ["keras.random without a SeedGenerator of the model's"]
    assert unrepeatable(function) == []  # a graph alone does not know


def test_the_ops_are_those_of_this_tensorflow():
    registry = pytest.importorskip("tensorflow.python.framework.op_def_registry")
    definitions = {name: registry.get(name) for name in dir(tf.raw_ops)}
    seeded = {
        name
        for name, op in definitions.items()
        if op is not None
        and op.is_stateful
        and ({"seed", "seed2"} & {attr.name for attr in op.attr} or name.startswith(("Rng", "Stateful")))
    }
    others = {name for name in seeded if name.startswith(("CudnnRNN", "RandomDataset", "RandomShuffleQueue"))}
    assert seeded - others - {"StatefulPartitionedCall"} == STATEFUL_RANDOM


def test_the_warning_says_what_to_do():
    assert "RandomUniform in net/jitter" in warning(["RandomUniform in net/jitter"])
    assert "SeedGenerator" in warning([])
