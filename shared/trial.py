"""One trial of the plan search: what runs in a child, with the device to itself.

A trial times the training loop's own step (``shared/training/step.py``) on one batch that lies
in memory, and then once more fed by the real input pipeline: the difference is the input-bound share.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shared import accelerator, contract, lock
from shared.accelerator import Accelerator
from shared.config import AcceleratorSection, TrainSection
from shared.contract import Source
from shared.plan import ExecutionPlan

if TYPE_CHECKING:
    import keras

    from shared.training.step import Stepper

POOL = 64
"""Examples that a trial reads; a larger batch repeats them, since speed does not depend on what they show."""

SECONDS_PER_CALL = 0.1
"""How long one call into the graph should take: long enough that its cost vanishes, short enough
to report progress and to react."""

MOST_STEPS_PER_CALL = 64

_BLOCKS = 7
_TIMED_SECONDS = 0.8
_INPUT_SECONDS = 0.3
_READING_SECONDS = 2.0


@dataclass(frozen=True)
class Work:
    """What is to be trained, built for one device: the last phase's model with its training examples."""

    model: keras.Model
    source: Source
    loss: Callable[[Any, Any], Any]
    learning_rate: float
    train: TrainSection


class Recipe(Protocol):
    """Builds the work inside a child. Travels there, so it holds plain data or functions only."""

    def build(self, device: Accelerator) -> Work: ...


@dataclass(frozen=True)
class DomainRecipe:
    """The last phase of a domain's last fold, on a chain of untrained models."""

    domain: str
    prepared: str
    config: Mapping[str, Any]

    def build(self, device: Accelerator) -> Work:
        domain = contract.find(self.domain)
        config = domain.Config.model_validate(dict(self.config))
        prepared = Path(self.prepared)
        fold = domain.folds(prepared, config)[-1]
        phases = domain.phases(prepared, config, fold)
        model: keras.Model | None = None
        with device.strategy.scope():
            for phase in phases:
                model = phase.build(model)
        assert model is not None
        last = phases[-1]
        source = last.source("train") if last.source else domain.examples(prepared, config, fold, "train")
        rate = config.train.learning_rate or last.learning_rate
        return Work(model, source, last.loss, rate, config.train)


@dataclass(frozen=True)
class BareRecipe:
    """A person's own model function and data function."""

    model_fn: Callable[[], keras.Model]
    data_fn: Callable[[], Any]
    loss: Callable[[Any, Any], Any]
    augment: Callable[[Any, Any], Any] | None
    train: TrainSection

    def build(self, device: Accelerator) -> Work:
        from shared import input_pipeline

        with device.strategy.scope():
            model = self.model_fn()
        source = input_pipeline.as_source(self.data_fn())
        if self.augment is not None:
            source = replace(source, augment=self.augment)
        return Work(model, source, self.loss, self.train.learning_rate or 1e-3, self.train)


def describe(recipe: Recipe, section: AcceleratorSection) -> dict[str, Any]:
    """What the plan depends on, found by building the work once, in float32.

    Returns:
        Plain data: ``device``, ``device_name``, ``replicas``, ``count``, ``example_bytes``,
        ``examples`` (shapes and dtypes), ``augmented``, ``in_memory``, ``loss`` (its name), ``graph``
        (hash of layers and variables), ``parameters``, ``versions``.
    """
    import keras
    import tensorflow as tf

    from shared import input_pipeline

    with _opened(section) as device:
        work = recipe.build(device)
        pool = _pool(work.source, 1)
        _built(work, pool, device)
        return {
            "device": device.device,
            "device_name": device.device_name,
            "replicas": device.replicas,
            "count": work.source.count,
            "example_bytes": input_pipeline.example_bytes(work.source),
            "examples": [[list(part.shape[1:]), part.dtype.name] for part in tf.nest.flatten(pool)],
            "augmented": work.source.augment is not None,
            "in_memory": work.source.gather is not None,
            "loss": getattr(work.loss, "__qualname__", type(work.loss).__qualname__),
            "graph": graph_hash(work.model),
            "parameters": int(work.model.count_params()),
            "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
        }


def measure(recipe: Recipe, section: AcceleratorSection, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Compiles and times the training step under ``settings``, an ``ExecutionPlan.to_dict()``.

    Returns:
        Plain data: ``samples_per_second``, ``spread`` (half the range between the quartiles, over the
        median), ``step_seconds``, ``compile_seconds``, ``peak_bytes`` (of the device's memory on a
        GPU, else of this process), ``steps_per_call``, ``input_bound_share`` (None where reading is too
        slow to try), ``advice`` (on that share), ``sound`` (False: the loss was NaN or Inf).
    """
    import tensorflow as tf

    from shared import input_pipeline, mixed_precision
    from shared.training.loop import make_stepper

    plan = ExecutionPlan.from_dict(settings)
    size = plan.batch_size
    with _opened(section) as device:
        mixed_precision.apply(plan.precision)
        work = recipe.build(device)
        started = time.perf_counter()
        pool = _pool(work.source, min(POOL, work.source.count))
        rows = int(tf.nest.flatten(pool)[0].shape[0])
        reading = (time.perf_counter() - started) / rows
        _built(work, pool, device)
        mixed_precision.check_float32_head(work.model)

        in_memory = _repeated(pool, rows, size)
        stepper = make_stepper(
            work.model, work.loss, plan, rate=work.learning_rate, section=work.train, strategy=device.strategy
        )
        one_batch = input_pipeline.training_batches(in_memory, plan, seed=0, epoch=0).take(1).cache().repeat()
        iterator = stepper.iterate(one_batch)
        started = time.perf_counter()
        losses = [_step(stepper, iterator, 1)]
        compiled = time.perf_counter() - started
        losses.append(_step(stepper, iterator, 1))
        per_call = steps_per_call(_seconds(stepper, iterator, 1), work.source.count // size)
        times, more = _blocks(stepper, iterator, per_call, _TIMED_SECONDS)
        losses += more
        step = statistics.median(times)
        share, advice = _input_bound(work, in_memory, reading, stepper, plan, per_call, step)
        return {
            "samples_per_second": size / step,
            "spread": spread(times),
            "step_seconds": step,
            "compile_seconds": max(0.0, compiled - step),
            "peak_bytes": _peak_bytes(device),
            "steps_per_call": per_call,
            "input_bound_share": share,
            "advice": advice,
            "sound": all(math.isfinite(loss) for loss in losses),
        }


def steps_per_call(step_seconds: float, steps_per_epoch: int) -> int:
    """How many steps one call should take; a whole epoch at most.

    >>> steps_per_call(0.004, 1000), steps_per_call(0.004, 10), steps_per_call(2.0, 10), steps_per_call(1e-5, 10**6)
    (25, 10, 1, 64)
    """
    wanted = round(SECONDS_PER_CALL / max(step_seconds, 1e-9))
    return max(1, min(wanted, MOST_STEPS_PER_CALL, steps_per_epoch))


def spread(times: list[float]) -> float:
    """Half the range between the quartiles, over the median.

    >>> spread([1.0, 1.0, 1.1, 1.0, 0.9])
    0.0
    >>> round(spread([1.0, 1.2, 0.8, 1.1, 0.9]), 3)
    0.1
    """
    if len(times) < 2:
        return 0.0
    first, middle, third = statistics.quantiles(times, n=4, method="inclusive")
    return (third - first) / 2 / middle


def graph_hash(model: keras.Model) -> str:
    """Hash of a model's layers, their settings and their variables' shapes; not of weights."""
    variables = [[v.path, list(v.shape), str(v.dtype), v.trainable] for v in model.variables]
    layers = [type(layer).__name__ for layer in model._flatten_layers()]
    try:
        config = json.dumps(model.get_config(), default=str, sort_keys=True)
    except Exception:  # a subclassed model need not have one
        config = ""
    # Functions in a config print their address, which differs from process to process.
    config = re.sub(r"0x[0-9a-f]+", "0x", config)
    return hashlib.sha256(json.dumps([variables, layers, config]).encode()).hexdigest()[:16]


@contextmanager
def _opened(section: AcceleratorSection) -> Iterator[Accelerator]:
    """The device. Its lock is held by the searching process for all its trials."""
    with lock.lent(), accelerator.opened(section) as device:
        yield device


def _built(work: Work, pool: Any, device: Accelerator) -> None:
    if not work.model.built:
        import tensorflow as tf

        with device.strategy.scope():
            work.model(tf.nest.map_structure(lambda part: part[:1], pool[0]))


def _pool(source: Source, rows: int) -> Any:
    """The first examples as one batch of tensors, in the source's own structure; fewer where reading is slow."""
    import tensorflow as tf

    from shared.errors import InputError

    if source.count < 1:
        raise InputError("There are no training examples to try a batch of.")
    with tf.device("CPU:0"):
        if source.gather is not None:
            return tf.nest.map_structure(tf.convert_to_tensor, source.gather(tf.range(rows, dtype=tf.int64)))
        assert source.dataset is not None
        began = time.perf_counter()
        parts = []
        for part in source.dataset.take(rows).batch(min(rows, 8)):
            parts.append(part)
            if time.perf_counter() - began > _READING_SECONDS:
                break
        if parts:
            return tf.nest.map_structure(lambda *pieces: tf.concat(pieces, axis=0), *parts)
    raise InputError("The tf.data set of the training examples is empty.")


def _repeated(pool: Any, rows: int, count: int) -> Source:
    """``count`` examples that repeat the pool's, gathered from memory."""
    import tensorflow as tf

    def gather(positions: Any) -> Any:
        return tf.nest.map_structure(lambda part: tf.gather(part, positions % rows), pool)

    return Source(count=count, gather=gather)


def _step(stepper: Stepper, iterator: Any, steps: int) -> float:
    loss, weight = stepper.run(iterator, steps)
    return loss / weight if weight else 0.0


def _seconds(stepper: Stepper, iterator: Any, steps: int) -> float:
    started = time.perf_counter()
    stepper.run(iterator, steps)
    return (time.perf_counter() - started) / steps


def _blocks(stepper: Stepper, iterator: Any, steps: int, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds of a step in each of 3 to 7 calls, until ``seconds`` are spent; and the calls' losses."""
    _step(stepper, iterator, steps)
    times: list[float] = []
    losses: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or (len(times) < _BLOCKS and time.perf_counter() - began < seconds):
        started = time.perf_counter()
        losses.append(_step(stepper, iterator, steps))
        times.append((time.perf_counter() - started) / steps)
    return times, losses


def _input_bound(
    work: Work,
    in_memory: Source,
    reading: float,
    stepper: Stepper,
    plan: ExecutionPlan,
    per_call: int,
    step: float,
) -> tuple[float | None, str]:
    """Share of a step spent waiting for the pipeline as training will have it, and what to do about it.

    Args:
        reading: Seconds that reading one example took, with nothing in parallel.
    """
    from shared import input_pipeline

    source, size = work.source, plan.batch_size
    if source.gather is None:
        fits = source.count * input_pipeline.example_bytes(source) <= plan.cache_bytes
        if fits:  # it will be gathered from memory; so are the examples that were read
            source = replace(in_memory, count=max(source.count, size), augment=source.augment)
        elif reading * size * 4 > 2.0:
            return None, ""
        else:
            plan = replace(plan, cache_bytes=size * input_pipeline.example_bytes(source))
    batches = input_pipeline.training_batches(source, plan, seed=0, epoch=0).repeat()
    times, _ = _blocks(stepper, stepper.iterate(batches), per_call, _INPUT_SECONDS)
    real = statistics.median(times)
    if real - step <= step * spread(times):
        return 0.0, ""  # inside the noise
    share = float(input_pipeline.input_bound_share(real, step))
    in_ram, augmented = source.gather is not None, source.augment is not None
    return share, input_pipeline.advice(share, in_memory=in_ram, augmented=augmented)


def _peak_bytes(device: Accelerator) -> int:
    if device.device in ("gpu", "gpus"):
        import tensorflow as tf

        peaks = [
            tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in range(device.replicas)
        ]
        return int(max(peaks))
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage * (1 if sys.platform == "darwin" else 1024)
