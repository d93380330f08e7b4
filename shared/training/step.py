"""One optimizer step, on one device or many: the very step that the plan search times.

A step takes a global batch ``(x, y, weight)``, shared over the replicas. Its loss is the mean of
the examples' losses weighted over the *global* batch, so that it does not depend on how many
replicas share it. Gradients are summed over the replicas before anything looks at them: so the
clipping norm is the global one, and a NaN or an overflow on any replica is seen by all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from shared.config import TrainSection
from shared.errors import CasebookError, TrainingError
from shared.plan import ExecutionPlan
from shared.training import crew
from shared.training.replica_seeds import distinct_on_replicas

log = logging.getLogger("casebook.training")


def make_optimizer(
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
    *,
    weight_decay: float = 0.0,
    precision: str = "float32",
) -> keras.optimizers.Optimizer:
    """Adam, or AdamW where weights decay; with loss scaling for ``mixed_float16``.

    The names are fixed, because a checkpoint finds the optimizer's variables by path and Keras
    would count on (``adam_1``) wherever an earlier phase was trained in the same process.
    """
    if weight_decay:
        optimizer: Any = keras.optimizers.AdamW(learning_rate, weight_decay=weight_decay, name="optimizer")
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    else:
        optimizer = keras.optimizers.Adam(learning_rate, name="optimizer")
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale")
    return optimizer


class Taken(NamedTuple):
    """What some steps came to, over all replicas of all workers.

    Attributes:
        loss: Sum of weighted example losses.
        weight: Sum of weights; ``loss / weight`` is the mean loss.
        unsound: Steps whose gradients held NaN or Inf. Loss scaling (``mixed_float16``) skips these;
            otherwise they have reached the weights.
        stops: Replicas whose process was told to stop; all of them get to know it in the same step.
    """

    loss: float
    weight: float
    unsound: int
    stops: int


class Stepper:
    """A model with its optimizer, ready to step.

    Args:
        model: A Keras model with a float32 output, built inside the strategy's scope.
        loss: ``loss(y_true, y_pred)`` that returns one value per example ``[B]``; where it returns
            more (``[B, H, W]``, as Keras's functions do for pictures) their mean is taken.
        optimizer: As :func:`make_optimizer` gives it.
        strategy: ``tf.distribute`` strategy; default: the current one.
        clip_norm: Global norm that gradients are clipped to; 0: none.
        xla: Compile forward and backward pass with XLA. The update stays outside: inside, it
            fails under MirroredStrategy on a CPU.
        accumulation: Micro-batches that a replica's share is cut into, to save memory. The sum
            of their gradients is that of the whole share (batch normalisation sees micro-batches).
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Callable[[Any, Any], Any],
        optimizer: keras.optimizers.Optimizer,
        *,
        strategy: tf.distribute.Strategy | None = None,
        clip_norm: float = 0.0,
        xla: bool = False,
        accumulation: int = 1,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.strategy = strategy or tf.distribute.get_strategy()
        self.clip_norm, self.accumulation = clip_norm, accumulation
        with self.strategy.scope():
            if not optimizer.built:
                optimizer.build(model.trainable_variables)
        self._gradients: Callable[..., Any] = self._forward_backward
        if xla:
            self._gradients = tf.function(self._forward_backward, jit_compile=True)
        self._trainable = list(model.trainable_variables)
        # Each replica moves batch normalisation's statistics by its own share of the batch.
        several = self.strategy.num_replicas_in_sync > 1
        self._statistics = moving_statistics(model) if several else []
        self._problem: CasebookError | None = None
        self.graph: Any = None  # of the steps, once they are traced
        self._steps = tf.function(self._many)

    def iterate(self, batches: tf.data.Dataset) -> Iterator[Any]:
        """An iterator of batches, each shared over the replicas of this process."""
        return crew.distributed(self.strategy, batches)

    def run(self, iterator: Iterator[Any], steps: int = 1) -> tuple[float, float]:
        """Takes ``steps`` steps; sum of weighted example losses, and sum of weights, see :meth:`take`."""
        taken = self.take(iterator, steps)
        return taken.loss, taken.weight

    def take(self, iterator: Iterator[Any], steps: int = 1, *, stop: bool = False) -> Taken:
        """Takes ``steps`` steps in one call into the graph.

        Args:
            stop: This process was told to stop, which it tells the others.

        Raises:
            TrainingError: The loss function or the model cannot be trained as they are.
        """
        try:
            totals = self._steps(iterator, tf.constant(steps, tf.int32), tf.constant(float(stop)))
        except Exception:
            if self._problem is not None:  # AutoGraph would bury it
                raise self._problem from None
            raise
        loss, weight, unsound, stops = totals.numpy()
        return Taken(float(loss), float(weight), int(unsound), int(stops))

    def _many(self, iterator: Any, steps: Any, stop: Any) -> Any:
        self.graph = tf.compat.v1.get_default_graph()
        totals = tf.zeros([4], tf.float64)
        for _ in tf.range(steps):
            per_replica = self._on_replicas(*next(iterator), stop)
            # The same on every replica, because everything in it is summed over them.
            totals += tf.cast(self.strategy.experimental_local_results(per_replica)[0], tf.float64)
        if self._statistics:
            self.strategy.run(self._average_statistics)
        return totals

    def _on_replicas(self, *arguments: Any) -> Any:
        if self.strategy.num_replicas_in_sync == 1:
            return self.strategy.run(self._replica_step, args=arguments)
        with distinct_on_replicas():
            return self.strategy.run(self._replica_step, args=arguments)

    def _average_statistics(self) -> None:
        """Makes moving statistics equal on all replicas, so that any of them may be saved and evaluated.

        After every call rather than before a save: saves happen by the clock, and must not change
        the numbers.
        """
        context = tf.distribute.get_replica_context()
        values = [tf.identity(v.value) for v in self._statistics]
        means = context.all_reduce(tf.distribute.ReduceOp.MEAN, values)
        for variable, mean in zip(self._statistics, means, strict=True):
            variable.assign(mean)

    def _replica_step(self, x: Any, y: Any, weight: Any, stop: Any) -> Any:
        replicas = self.strategy.num_replicas_in_sync
        local = tf.reduce_sum(weight)
        total = self._sum_over_replicas(local)
        losses, gradients = self._accumulated(x, y, weight, total)
        pairs = [pair for pair in zip(gradients, self._trainable, strict=True) if pair[0] is not None]
        self._check_gradients(pairs)
        numbers = tf.stack([losses, local, stop])
        *summed, numbers = self._sum_over_replicas(
            [*(tf.convert_to_tensor(gradient) for gradient, _ in pairs), numbers]
        )
        norm = tf.linalg.global_norm(summed)
        summed = self._clipped(summed, norm)
        if replicas > 1:
            # Keras's optimizer sums over the replicas once more.
            summed = [gradient / replicas for gradient in summed]
        self.optimizer.apply(summed, [variable for _, variable in pairs])
        unsound = 1.0 - tf.cast(tf.math.is_finite(norm), tf.float32)
        return tf.stack([numbers[0], numbers[1], unsound, numbers[2]])

    def _accumulated(self, x: Any, y: Any, weight: Any, total: Any) -> tuple[Any, list[Any]]:
        if self.accumulation == 1:
            return self._gradients(x, y, weight, total)
        losses, gradients = tf.constant(0.0), None
        for index in range(self.accumulation):
            # One after the other: left to itself TensorFlow runs them side by side, and no memory is saved.
            with tf.control_dependencies([] if gradients is None else _without_none(gradients)):
                part = tf.nest.map_structure(lambda t, i=index: self._micro_batch(t, i), (x, y, weight))
            loss, new = self._gradients(*part, total)
            losses += loss
            new = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in new]
            if gradients is None:
                gradients = new
            else:
                gradients = [
                    None if a is None or b is None else a + b for a, b in zip(gradients, new, strict=True)
                ]
        assert gradients is not None
        return losses, gradients

    def _micro_batch(self, tensor: Any, index: int) -> Any:
        size = tf.shape(tensor)[0] // self.accumulation
        return tensor[index * size : (index + 1) * size]

    def _forward_backward(self, x: Any, y: Any, weight: Any, total: Any) -> tuple[Any, list[Any]]:
        y = without_padding(y, weight)
        with tf.GradientTape() as tape:
            losses = self.example_losses(y, self.model(x, training=True))
            weighted = tf.reduce_sum(tf.where(weight > 0, losses * weight, 0.0))
            objective = tf.math.divide_no_nan(weighted, total)
            share = self.strategy.num_replicas_in_sync * self.accumulation
            for penalty in self.model.losses:  # regularisers, once a step
                objective += tf.cast(tf.reduce_sum(penalty), tf.float32) / share
            scaled = self.optimizer.scale_loss(objective)
        return weighted, tape.gradient(scaled, self._trainable)

    def example_losses(self, y: Any, prediction: Any) -> Any:
        """Loss of each example, float32 ``[B]``."""
        if not hasattr(prediction, "dtype"):
            self._refuse(
                f"The model gives {len(prediction)} outputs; the loop trains a model of one.",
                "Concatenate them into one output, and tell them apart in the loss.",
            )
        if prediction.dtype not in (tf.float32, tf.float64):
            self._refuse(
                f"The model's output is {prediction.dtype.name}; losses need float32.",
                'Give the last layer dtype="float32".',
            )
        if len(y.shape) == len(prediction.shape) - 1 and prediction.shape[-1] == 1:
            y = y[..., tf.newaxis]  # [B] beside [B, 1] would broadcast to [B, B]
        if len(y.shape) == len(prediction.shape) > 1 and prediction.shape[-1] == 1 and (y.shape[-1] or 1) > 1:
            log.warning(
                "The truth has %d values an example and the model gives one: each is compared with that one.",
                y.shape[-1],
            )
        losses = tf.cast(self.loss(y, prediction), tf.float32)
        if len(losses.shape) == 0:
            self._refuse(
                "The loss must return one value per example, received one value for the whole batch.",
                "Pass a function such as keras.losses.mean_squared_error, or a loss class made with "
                "reduction=None.",
            )
        if len(losses.shape) > 1:
            losses = tf.reduce_mean(tf.reshape(losses, [tf.shape(losses)[0], -1]), axis=1)
        return losses

    def _clipped(self, gradients: list[Any], norm: Any) -> list[Any]:
        if not self.clip_norm:
            return gradients
        # Scaled losses have scaled gradients: scale the limit likewise.
        limit = self.optimizer.scale_loss(tf.constant(self.clip_norm, tf.float32))
        # A norm of NaN or Inf gives NaN gradients everywhere, which loss scaling skips.
        factor = limit / tf.maximum(norm, limit)
        return [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]

    def _sum_over_replicas(self, tensors: Any) -> Any:
        if self.strategy.num_replicas_in_sync == 1:
            return tensors
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)

    def _check_gradients(self, pairs: list[Any]) -> None:
        if not pairs:
            self._refuse(
                f"No trainable variable of model {self.model.name!r} reaches the loss.",
                "Check that layers are trainable and that the loss uses the model's output.",
            )
        if len(pairs) < len(self._trainable):
            reached = {id(variable) for _, variable in pairs}
            missing = [variable.path for variable in self._trainable if id(variable) not in reached]
            log.warning("These variables do not reach the loss and stay as they are: %s.", ", ".join(missing))

    def _refuse(self, message: str, remedy: str) -> None:
        self._problem = TrainingError(message, remedy)
        raise self._problem


def moving_statistics(model: keras.Model) -> list[Any]:
    """Variables that the forward pass moves, such as batch normalisation's; not frozen weights."""
    found = []
    for layer in model._flatten_layers():
        if layer.trainable:  # a frozen batch normalisation runs in inference
            found += [v for v in layer._non_trainable_variables if str(v.dtype) in ("float32", "float64")]
    return found


def without_padding(y: Any, weight: Any) -> Any:
    """Zeros for the truth of examples without weight: a NaN there would reach the gradients as 0 x NaN."""

    def masked(part: Any) -> Any:
        if not part.dtype.is_floating:
            return part
        counts = tf.reshape(weight > 0, [-1, *[1] * (len(part.shape) - 1)])
        return tf.where(counts, part, tf.zeros_like(part))

    return tf.nest.map_structure(masked, y)


def _without_none(gradients: list[Any]) -> list[Any]:
    return [gradient for gradient in gradients if gradient is not None]


def make_stepper(
    model: keras.Model,
    loss: Callable[[Any, Any], Any],
    plan: ExecutionPlan,
    *,
    rate: Any,
    section: TrainSection | None = None,
    strategy: tf.distribute.Strategy | None = None,
) -> Stepper:
    """The step of the training loop under ``plan``; the plan search times this same one.

    Args:
        rate: Learning rate, or a Keras schedule.
        section: Clipping and weight decay; default: the settings' defaults.
    """
    section = section or TrainSection()
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        optimizer = make_optimizer(rate, weight_decay=section.weight_decay, precision=plan.precision)
        return Stepper(
            model,
            loss,
            optimizer,
            strategy=strategy,
            clip_norm=section.clip_norm,
            xla=plan.xla,
            accumulation=plan.accumulation,
        )


def seconds_per_step(
    stepper: Stepper, batches: tf.data.Dataset, steps_per_call: int, *, seconds: float = 0.5, calls: int = 10
) -> float:
    """Median seconds of a step, after the call that compiles.

    The model trains meanwhile: keep and restore its variables where that matters.

    Args:
        batches: Endless, as :func:`shared.input_pipeline.one_batch` gives them.
        seconds: Enough after this much time; at least one call.
        calls: Most calls. Several workers take 2, whatever their clocks say.
    """
    if crew.of(stepper.strategy).size > 1:
        seconds, calls = float("inf"), 2
    iterator = stepper.iterate(batches)
    stepper.run(iterator, 1)
    taken: list[float] = []
    while len(taken) < calls and sum(taken) < seconds:
        started = time.perf_counter()
        stepper.run(iterator, steps_per_call)
        taken.append(time.perf_counter() - started)
    return float(np.median(taken)) / steps_per_call
