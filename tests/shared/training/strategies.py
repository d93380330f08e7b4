"""What is trained under every strategy, in a child each: the same examples, batch and seed.

Imported by the children of ``test_strategies.py``; all of it must give the same everywhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shared import accelerator, lock
from shared.config import AcceleratorSection, TrainSection
from shared.contract import Phase, Source
from shared.errors import TrainingError
from shared.plan import ExecutionPlan

BATCH = 24
"""Shared equally by 2, 3 and 4 replicas."""
TRAIN, VALIDATION = 101, 25
"""Both leave a remainder; that of validation is smaller than any number of replicas."""


def examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 5)).astype(np.float32)
    y = (x[:, :1] - x[:, 1:2] ** 2 + 0.3 * rng.normal(size=(count, 1)) > -0.5).astype(np.float32)
    return x, y


def everything(section: dict[str, Any]) -> dict[str, Any]:
    """All scenarios under one strategy; plain data."""
    settings = AcceleratorSection.model_validate(section)
    with lock.lent(), accelerator.opened(settings) as device:
        plan = ExecutionPlan(
            device=device.device, replicas=device.replicas, batch_size=BATCH, steps_per_call=2
        )
        return {
            "replicas": device.replicas,
            "plain": _curve(device.strategy, plan, _plain),
            "synchronised": _curve(device.strategy, plan, _synchronised),
            "batch normalisation": _curve(device.strategy, plan, _normalised),
            "accumulated": _curve(device.strategy, replace(plan, accumulation=2), _plain),
            "overflow": _overflow(device.strategy, plan),
            "nan": _nan(device.strategy, plan),
            "nan after a save by the clock": _nan_later(device.strategy, plan),
        }


def _plain() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
        ]
    )


def _line() -> Any:
    import keras

    return keras.Sequential(
        [keras.layers.Input((5,)), keras.layers.Dense(16), keras.layers.Dense(1, dtype="float32")]
    )


def _synchronised() -> Any:
    return _normalised(synchronized=True)


def _normalised(**options: Any) -> Any:
    import keras

    return keras.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Dense(16, use_bias=False),  # a bias before it has no gradient but noise
            keras.layers.BatchNormalization(momentum=0.8, **options),
            keras.layers.ReLU(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def _source(x: np.ndarray, y: np.ndarray, plan: ExecutionPlan, **options: Any) -> Source:
    import tensorflow as tf

    from shared.input_pipeline import cached

    return cached(Source(len(x), dataset=tf.data.Dataset.from_tensor_slices((x, y)), **options), plan)


def _augment(x: Any, seed: Any) -> Any:
    import tensorflow as tf

    return x + 0.05 * tf.random.stateless_normal([5], seed)


def _curve(strategy: Any, plan: ExecutionPlan, build: Any) -> dict[str, Any]:
    import keras

    from shared.training.loop import train_phase
    from shared.training.predict import predict

    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = build()
    phase = Phase(
        "only",
        lambda previous: model,
        keras.losses.binary_crossentropy,
        epochs=3,
        learning_rate=0.02,
        metrics={"AUROC": keras.metrics.AUC},
    )
    validation = _source(*examples(VALIDATION, 1), plan)
    result = train_phase(
        strategy,
        model,
        phase,
        _source(*examples(TRAIN, 0), plan, augment=_augment),
        validation,
        plan,
        TrainSection(),
        seed=5,
    )
    values, truth = predict(model, validation, plan, strategy)
    return {
        "loss": [row["loss"] for row in result.history],
        "val_loss": [row["val_loss"] for row in result.history],
        "AUROC": [row["val_AUROC"] for row in result.history],
        "weights": [np.asarray(v.numpy()).tolist() for v in model.variables],
        "copies": _copies(model),
        "values": values.tolist(),
        "truth": truth.tolist(),
    }


def _copies(model: Any) -> list[list[Any]]:
    """Of every variable its value on each replica of this process."""
    found = []
    for variable in model.variables:
        held = getattr(variable.value, "values", (variable.value,))
        found.append([np.asarray(one).tolist() for one in held])
    return found


def _overflow(strategy: Any, plan: ExecutionPlan) -> dict[str, Any]:
    """Float16: the last example of the first batch, so the last replica alone, has endless gradients."""
    import keras
    import tensorflow as tf

    from shared.training import crew
    from shared.training.step import make_stepper

    x, y = examples(BATCH, 2)
    wild = y.copy()
    wild[-1] = 1e4  # the loss is finite; its gradient times the loss scale is not, in float16
    index, size = crew.of(strategy).part
    mine = slice(index * BATCH // size, (index + 1) * BATCH // size)
    weight = np.ones(BATCH, np.float32)
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with strategy.scope():
            model = _line()
        stepper = make_stepper(
            model,
            keras.losses.mean_squared_error,
            replace(plan, precision="mixed_float16"),
            rate=0.01,
            strategy=strategy,
        )
    finally:
        keras.config.set_dtype_policy("float32")

    def batches(given: np.ndarray) -> tf.data.Dataset:
        part = tuple(value[mine] for value in (x, given, weight))
        return tf.data.Dataset.from_tensors(part).repeat(2)

    def state() -> dict[str, Any]:
        optimizer = stepper.optimizer
        return {
            "scale": float(optimizer.dynamic_scale.numpy()),
            "steps": int(optimizer.inner_optimizer.iterations.numpy()),
            "weights": [np.asarray(v.numpy()).tolist() for v in model.variables],
        }

    before = state()
    taken = stepper.take(stepper.iterate(batches(wild)), 1)
    skipped = state()
    stepper.take(stepper.iterate(batches(y)), 1)
    return {"before": before, "unsound": taken.unsound, "skipped": skipped, "after": state()}


def _nan(strategy: Any, plan: ExecutionPlan) -> dict[str, Any]:
    """One example's input is NaN: what is told, and the weights that are left."""
    import keras

    from shared.training.loop import train_phase

    x, y = examples(BATCH, 2)
    x[7, 2] = np.nan
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = _plain()
    before = [np.asarray(v.numpy()).tolist() for v in model.variables]
    phase = Phase("only", lambda p: model, keras.losses.mean_squared_error, epochs=2, learning_rate=0.02)
    try:
        train_phase(strategy, model, phase, _source(x, y, plan), None, plan, TrainSection(), seed=5)
    except TrainingError as error:
        after = [np.asarray(v.numpy()).tolist() for v in model.variables]
        return {"told": error.message, "restored": before == after}
    return {"told": "", "restored": False}


def _nan_later(strategy: Any, plan: ExecutionPlan) -> str:
    """A NaN in the third batch, where the chief alone has written checkpoints by its clock meanwhile."""
    import tempfile
    from pathlib import Path

    import keras

    from shared.training import loop
    from shared.training.checkpoint import Checkpoints

    x, y = examples(4 * BATCH, 2)
    x[np.random.default_rng([5, 0]).permutation(len(x))[2 * BATCH + 3], 1] = np.nan
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = _plain()
    phase = Phase("only", lambda p: model, keras.losses.mean_squared_error, epochs=2, learning_rate=0.02)
    plan = replace(plan, steps_per_call=1)
    before, loop.SECONDS_BETWEEN_CHECKPOINTS = loop.SECONDS_BETWEEN_CHECKPOINTS, 0.0
    try:
        with tempfile.TemporaryDirectory() as folder:
            kept = Checkpoints(Path(folder), "only")
            loop.train_phase(
                strategy,
                model,
                phase,
                _source(x, y, plan),
                None,
                plan,
                TrainSection(),
                seed=5,
                checkpoints=kept,
            )
    except TrainingError as error:
        return error.message
    finally:
        loop.SECONDS_BETWEEN_CHECKPOINTS = before
    return ""
