"""A model's answers to every example of a source, in order, none lost: as losses, metrics or arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from shared import input_pipeline
from shared.contract import Source
from shared.plan import ExecutionPlan
from shared.training import crew


class Forward:
    """The model's answers, example by example, on one device or many.

    Args:
        model: Called with ``training=False``.
        strategy: As in :class:`Stepper`.
    """

    def __init__(self, model: keras.Model, *, strategy: tf.distribute.Strategy | None = None) -> None:
        self.model = model
        self.strategy = strategy or tf.distribute.get_strategy()
        self.crew = crew.of(self.strategy)
        self._run = tf.function(self._together)

    def iterate(self, batches: tf.data.Dataset) -> Iterator[Any]:
        return crew.distributed(self.strategy, batches)

    def all_of(self, source: Source, plan: ExecutionPlan) -> Iterator[Any]:
        """Batches of every example of the source, padded at the end, each replica its share."""
        return self.iterate(input_pipeline.evaluation_batches(source, plan, part=self.crew.part))

    def run(self, batch: Any) -> tuple[Any, Any, Any]:
        """(prediction, y, weight) of one global batch, each ``[B, ...]``, in order, padding included."""
        return self._run(*batch)

    def _on_replica(self, x: Any) -> Any:
        return self.model(x, training=False)

    def _together(self, x: Any, y: Any, weight: Any) -> Any:
        prediction = self.strategy.run(self._on_replica, args=(x,))
        return tuple(tf.nest.map_structure(self._joined, part) for part in (prediction, y, weight))

    def _joined(self, part: Any) -> Any:
        if self.crew.size > 1:
            return self.strategy.gather(part, axis=0)
        return tf.concat(self.strategy.experimental_local_results(part), axis=0)


class Evaluator:
    """Mean loss and metrics over every example of a source exactly once.

    Padding never reaches loss or metrics; both are taken over the examples' own weights.

    Args:
        example_losses: ``(y, prediction) -> [B]``, as a :class:`Stepper` has it.
        metrics: Name to Keras metric.
    """

    def __init__(
        self, forward: Forward, example_losses: Callable[[Any, Any], Any], metrics: Mapping[str, Any]
    ) -> None:
        self.forward, self.example_losses, self.metrics = forward, example_losses, metrics
        self._score = tf.function(self._score_rows)  # kept: made anew it would be traced anew

    def run(self, source: Source, plan: ExecutionPlan) -> dict[str, float]:
        """``{"loss": ..., name: ...}``."""
        for metric in self.metrics.values():
            metric.reset_state()
        total, weights, left = 0.0, 0.0, source.count
        for batch in self.forward.all_of(source, plan):
            prediction, y, weight = self.forward.run(batch)
            if left < weight.shape[0]:
                prediction, y, weight = prediction[:left], y[:left], weight[:left]
            loss, weight_sum = self._score(prediction, y, weight)
            total, weights, left = total + float(loss), weights + float(weight_sum), left - weight.shape[0]
        measured = {"loss": total / weights if weights else 0.0}
        measured.update({name: float(metric.result()) for name, metric in self.metrics.items()})
        return measured

    def _score_rows(self, prediction: Any, y: Any, weight: Any) -> Any:
        for metric in self.metrics.values():
            metric.update_state(y, prediction, sample_weight=weight)
        losses = self.example_losses(y, prediction)
        return tf.reduce_sum(tf.where(weight > 0, losses * weight, 0.0)), tf.reduce_sum(weight)


def predict(
    model: Any, source: Source, plan: ExecutionPlan, strategy: tf.distribute.Strategy | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and truth, float32 ``[n, ...]`` each, in the order of the source.

    Args:
        model: A Keras model with one output.
        plan: Its batch is the batch of the forward pass.
        strategy: Default: the current one.
    """
    forward = Forward(model, strategy=strategy)
    values, truth = [], []
    if source.count:
        for batch in forward.all_of(source, plan):
            prediction, y, _ = forward.run(batch)
            values.append(np.asarray(prediction, np.float32))
            truth.append(np.asarray(y, np.float32))
    if not values:
        return np.zeros((0,), np.float32), np.zeros((0,), np.float32)
    return np.concatenate(values)[: source.count], np.concatenate(truth)[: source.count]
