"""``fit``: the training loop for a person who has a Keras model function and a tf.data function.

>>> import keras, tensorflow as tf
>>> from shared.training import fit
>>> def model():
...     return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
>>> def data():
...     x = tf.random.stateless_normal([100, 4], seed=[0, 1])
...     return tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1)))
>>> trained = fit(model, data, loss=keras.losses.mean_squared_error, epochs=30, learning_rate=0.1)
>>> trained.history[-1]["loss"] < 0.05 * trained.history[0]["loss"]
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import keras

from shared import accelerator, input_pipeline, mixed_precision
from shared.config import AcceleratorSection, TrainSection
from shared.contract import Phase
from shared.plan import ExecutionPlan
from shared.training import asked, stopping
from shared.training.checkpoint import Checkpoints
from shared.training.loop import PhaseResult, Row, train_phase
from shared.training.stopping import Stop
from shared.training.watching import Watch


@dataclass(frozen=True)
class Trained:
    """What ``fit`` gives back.

    Attributes:
        model: With the weights of its best epoch.
        result: How training went: best value and epoch, speed, input-bound share, advice.
        plan: The plan that was followed.
        device_name: Where it ran, proved.
    """

    model: keras.Model
    result: PhaseResult
    plan: ExecutionPlan
    device_name: str

    @property
    def history(self) -> list[Row]:
        """One row an epoch: epoch, loss, val_loss, val_<metric>, lr, seconds, samples_per_second, ..."""
        return self.result.history


def fit(
    model_fn: Callable[[], keras.Model],
    data_fn: Callable[[], Any],
    plan: ExecutionPlan | None = None,
    *,
    loss: Callable[[Any, Any], Any],
    epochs: int,
    learning_rate: float = 1e-3,
    validation_fn: Callable[[], Any] | None = None,
    monitor: str = "loss",
    monitor_mode: Literal["min", "max"] = "min",
    metrics: Mapping[str, Callable[[], Any]] | None = None,
    augment: Callable[[Any, Any], Any] | None = None,
    seed: int = 0,
    checkpoints: Path | str | None = None,
    train: TrainSection | None = None,
    device: AcceleratorSection | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> Trained:
    """Trains the model of ``model_fn`` on the data of ``data_fn`` as ``plan`` says.

    Runs in this process; the device is held until it returns. Sets Python's, numpy's and Keras's
    global seeds.

    Args:
        model_fn: Returns a new Keras model with one float32 output; called under the strategy.
        data_fn: Returns a finite tf.data set of single (unbatched, unshuffled) examples ``(x, y)`` or
            ``(x, y, weight)``, or a :class:`shared.Source`. Called after the device is set up.
        plan: From ``shared.plan.search``; default: batch 32 (at least one a replica) in float32.
        loss: ``loss(y_true, y_pred)`` that returns one value per example, e.g.
            ``keras.losses.mean_squared_error``.
        epochs: Most epochs; early stopping may end it sooner.
        learning_rate: At a batch of 32; times the plan's factor.
        validation_fn: As ``data_fn``; default: none, and the training loss is monitored.
        monitor: ``"loss"``, or a name in ``metrics``; decides on the best epoch and on stopping.
        metrics: Name to a factory of a ``keras.metrics.Metric``, computed on validation.
        augment: ``augment(x, seed) -> x`` for one example, with int32 ``[2]`` seed for
            ``tf.random.stateless_*``; training only.
        seed: Of weights, order and augmentation.
        checkpoints: Folder to keep checkpoints in and to resume from; default: none are kept. A
            finished training found there is not repeated.
        train: Patience, schedule, clipping and so on; default: :class:`shared.config.TrainSection`'s.
        device: Where to run; default: the plan's device, or the best that answers. Where ``TF_CONFIG``
            names several workers, every one of them calls this with the same arguments.
        callbacks: Keras callbacks. One that sets the learning rate needs ``train`` with a constant
            schedule and no warm-up.

    With ``checkpoints``, in the main thread, SIGTERM ends it after a checkpoint, with ``Stopped``.

    Raises:
        DeviceError, InputError, TrainingError: See their messages.
    """
    asked.check(
        model_fn,
        data_fn,
        loss=loss,
        epochs=epochs,
        validation_fn=validation_fn,
        metrics=metrics,
        callbacks=callbacks,
    )
    kept = Checkpoints(asked.folder(checkpoints), "fit") if checkpoints else None
    before = keras.config.dtype_policy().name
    with (
        stopping.listening() if kept else nullcontext(Stop()) as stop,
        accelerator.opened(device or AcceleratorSection(), plan=plan) as opened,
    ):
        chosen = plan or unmeasured_plan(opened)
        try:
            mixed_precision.apply(chosen.precision)
            keras.utils.set_random_seed(seed)
            with opened.strategy.scope():
                model = asked.model_of(model_fn)
        finally:
            keras.config.set_dtype_policy(before)
        examples = input_pipeline.as_source(data_fn())
        if examples.count:
            with opened.strategy.scope():
                asked.try_on(model, examples)
        if augment is not None:
            examples = replace(examples, augment=augment)
        validation = None if validation_fn is None else input_pipeline.as_source(validation_fn())
        phase = Phase(
            name="fit",
            build=lambda previous: model,
            loss=loss,
            epochs=epochs,
            learning_rate=learning_rate,
            monitor=monitor,
            metrics=dict(metrics or {}),
            monitor_mode=monitor_mode,
        )
        result = train_phase(
            opened.strategy,
            model,
            phase,
            input_pipeline.cached(examples, chosen),
            None if validation is None else input_pipeline.cached(validation, chosen),
            chosen,
            train or TrainSection(),
            seed=seed,
            checkpoints=kept,
            watch=Watch(callbacks=callbacks, stop=stop),
        )
        return Trained(model, result, chosen, opened.device_name)


def unmeasured_plan(opened: accelerator.Accelerator) -> ExecutionPlan:
    """The plan of someone who measured nothing: float32, a batch of 32, or one example a replica."""
    return ExecutionPlan(
        device=opened.device,
        device_name=opened.device_name,
        replicas=opened.replicas,
        batch_size=max(1, 32 // opened.replicas) * opened.replicas,
    )
