"""From a source of examples to tuned batches: what is read once, what is drawn anew, in which order.

The stages, in the order in which data flows::

    deterministic examples -> cache, if its bytes fit -> order of the epoch -> augment -> batch -> prefetch

Random stages come after the cache: a shuffle or an augmentation before it would be frozen for
ever (tensorflow#47755). The order of an epoch is ``numpy``'s permutation from ``[seed, epoch]``
and each augmentation is seeded by (example, seed, epoch); so resuming is slicing the order, and
no iterator state is ever saved.

Batches are ``(x, y, weight)`` with weight float32 ``[B]``. A weight of 0 marks padding.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from shared.contract import Source
from shared.errors import InputError
from shared.plan import ExecutionPlan

MODERATE, HIGH = 0.05, 0.20
"""Input-bound shares from which it matters, and matters much: the TensorFlow profiler's own."""

_READ_BYTES = 64 << 20


def as_source(data: Any) -> Source:
    """A :class:`Source` as it is, or a tf.data set of single examples with its examples counted.

    Raises:
        InputError: Neither, or a set without end, or elements that are not ``(x, y[, weight])``.
    """
    if isinstance(data, Source):
        return data
    if not isinstance(data, tf.data.Dataset):
        raise InputError(
            f"Expected a tf.data set of single examples or a shared.Source, received {type(data).__name__}.",
            "Wrap arrays: tf.data.Dataset.from_tensor_slices((x, y)).",
        )
    spec = data.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise InputError(
            f"Expected examples (x, y) or (x, y, weight), received elements of {spec}.",
            "Map them to a tuple.",
        )
    count = int(data.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise InputError("The tf.data set has no end.", "Leave out repeat(); epochs are the loop's matter.")
    if count == tf.data.UNKNOWN_CARDINALITY:
        count = int(data.reduce(np.int64(0), lambda n, *_: n + 1))
    return Source(count, dataset=data)


def example_bytes(source: Source) -> int:
    """Bytes that one example takes in memory: x, y and weight together.

    Read off the element's shapes where they are known, else measured on the first example.
    """
    if source.dataset is not None:
        specs = tf.nest.flatten(source.dataset.element_spec)
        if all(spec.shape.is_fully_defined() for spec in specs):
            return sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)
    return sum(np.asarray(part).nbytes for part in tf.nest.flatten(first_example(source)))


def first_example(source: Source) -> Any:
    """The first example as it is, ``(x, y)`` or ``(x, y, weight)``, of numpy arrays.

    Raises:
        InputError: The source is empty.
    """
    if source.count < 1:
        raise InputError("There is no example to read: the source is empty.")
    if source.gather is not None:
        batch = source.gather(tf.constant([0], tf.int64))
        return tf.nest.map_structure(lambda part: np.asarray(part)[0], batch)
    assert source.dataset is not None
    for example in source.dataset.take(1):
        return tf.nest.map_structure(np.asarray, example)
    raise InputError(f"The source says that it has {source.count} examples, its tf.data set gave none.")


def cached(source: Source, plan: ExecutionPlan) -> Source:
    """The source with its examples in memory, where they fit into ``plan.cache_bytes``.

    One tensor a component instead of ``Dataset.cache``: then an epoch's order is a gather, exact
    and resumable, instead of a shuffle through a buffer. A source that gathers, that does not
    fit, or that holds text is returned as it is.

    Raises:
        InputError: The tf.data set has another number of examples than ``count``, or they differ in shape.
    """
    if source.dataset is None:
        return source
    if source.count < 1 or any(
        spec.dtype == tf.string for spec in tf.nest.flatten(source.dataset.element_spec)
    ):
        return source
    size = example_bytes(source)
    if source.count * size > plan.cache_bytes:
        return source
    tensors = _in_memory(source, max(1, min(1024, _READ_BYTES // max(size, 1))))

    def gather(positions: Any) -> Any:
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, positions), tensors)

    return replace(source, dataset=None, gather=gather)


def _in_memory(source: Source, read: int) -> Any:
    assert source.dataset is not None
    arrays: list[np.ndarray] = []
    done = 0
    try:
        for batch in source.dataset.batch(read).prefetch(1):
            parts = [part.numpy() for part in tf.nest.flatten(batch)]
            arrays = arrays or [np.empty((source.count, *part.shape[1:]), part.dtype) for part in parts]
            rows = len(parts[0])
            if done + rows <= source.count:
                for array, part in zip(arrays, parts, strict=True):
                    array[done : done + rows] = part
            done += rows
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        raise InputError(
            f"The examples of the source differ in shape, and so make no batch: {error}",
            "Resize or pad them in the deterministic part of the source.",
        ) from error
    if done != source.count:
        raise InputError(f"The source says that it has {source.count} examples, its tf.data set gave {done}.")
    with tf.device("CPU:0"):
        tensors = []
        while arrays:  # one by one, so that never more than one component is held twice
            tensors.append(tf.constant(arrays.pop(0)))
    return tf.nest.pack_sequence_as(source.dataset.element_spec, tensors)


def training_batch_size(count: int, plan: ExecutionPlan) -> int:
    """The global batch in training: the plan's, or less where there are fewer examples than that.

    Always a multiple of replicas times micro-batches, so that every replica gets equal shares.
    """
    unit = plan.replicas * plan.accumulation
    if plan.batch_size % unit:
        raise InputError(
            f"A batch of {plan.batch_size} cannot be shared equally by {plan.replicas} replicas "
            f"x {plan.accumulation} micro-batches.",
            f"Take a multiple of {unit}.",
        )
    return min(plan.batch_size, max(unit, count // unit * unit))


def steps_per_epoch(count: int, plan: ExecutionPlan) -> int:
    """Whole batches in an epoch; at least one, however few examples there are."""
    return max(1, count // training_batch_size(count, plan))


def order_of_epoch(count: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which an epoch visits its examples: int64 ``[count]``, from (seed, epoch) alone."""
    return np.random.default_rng([seed, epoch]).permutation(count)


ALL = (0, 1)
"""The part of each batch that a process takes which trains alone: part 0 of 1."""


def training_batches(
    source: Source,
    plan: ExecutionPlan,
    *,
    seed: int,
    epoch: int,
    skip_steps: int = 0,
    part: tuple[int, int] = ALL,
) -> tf.data.Dataset:
    """The batches of one epoch, ``(x, y, weight)``, all of one size.

    The remainder that does not fill a batch is dropped; it differs from epoch to epoch. Fewer
    examples than replicas are padded with repeats of weight 0.

    Args:
        epoch: Counted from 0.
        skip_steps: Steps of this epoch already done; the rest is what they would have left.
        part: Which part of each batch is wanted, of how many equal ones: several workers make one
            global batch together.
    """
    size = training_batch_size(source.count, plan)
    steps = steps_per_epoch(source.count, plan)
    mine = size // part[1]
    calls = plan.parallel_calls or tf.data.AUTOTUNE
    augment = _augment_from(source, seed, epoch)
    if source.gather is not None:
        order = np.resize(order_of_epoch(source.count, seed, epoch), steps * size)
        real = (np.arange(len(order)) < source.count).astype(np.float32)
        chosen = tf.data.Dataset.from_tensor_slices(
            tuple(_part(values[skip_steps * size :], size, part) for values in (order, real))
        )
        if source.augment is None:
            batches = chosen.batch(mine, drop_remainder=True).map(
                lambda positions, real: _weighted(source.gather(positions), real),  # type: ignore[misc]
                num_parallel_calls=calls,
            )
        else:
            examples = chosen.map(
                lambda position, real: augment(position, _one(source, position), real),
                num_parallel_calls=calls,
            )
            batches = examples.batch(mine, drop_remainder=True)
    else:
        assert source.dataset is not None
        # Too large for memory: a buffer's worth is shuffled, in an order that is again a function
        # of (seed, epoch) only. Skipping comes before augmentation, which is the dear part.
        stream = source.dataset.enumerate().shuffle(
            _buffer(source, plan, size),
            seed=_mixed(seed, epoch),
            reshuffle_each_iteration=False,
        )
        stream = stream.repeat().take(steps * size).enumerate().skip(skip_steps * size)
        if part != ALL:
            stream = stream.filter(lambda place, item: place % size // mine == part[0])
        batches = stream.map(
            lambda place, item: augment(item[0], item[1], tf.cast(place < source.count, tf.float32)),
            num_parallel_calls=calls,
        ).batch(mine, drop_remainder=True)
    return batches.prefetch(plan.prefetch).with_options(_options(plan))


def evaluation_batches(
    source: Source, plan: ExecutionPlan, *, part: tuple[int, int] = ALL
) -> tf.data.Dataset:
    """Every example once, in order, in batches of one size: ``(x, y, weight)``.

    The last batch is filled with repeats of the last example at weight 0, so that no example is
    lost and no replica gets an empty share. They are of the size of a micro-batch: where the whole
    batch does not fit in training, it need not fit here.

    Args:
        part: As in :func:`training_batches`.
    """
    size = min(plan.batch_size // plan.accumulation, -(-source.count // plan.replicas) * plan.replicas)
    calls = plan.parallel_calls or tf.data.AUTOTUNE
    if source.gather is not None:
        positions = _part(np.arange(-(-source.count // size) * size), size, part)
        real = (positions < source.count).astype(np.float32)
        chosen = tf.data.Dataset.from_tensor_slices((np.minimum(positions, source.count - 1), real))
        batches = chosen.batch(size // part[1], drop_remainder=True).map(
            lambda positions, real: _weighted(source.gather(positions), real),  # type: ignore[misc]
            num_parallel_calls=calls,
        )
    else:
        assert source.dataset is not None
        batches = source.dataset.batch(size).map(
            lambda *batch: tf.nest.map_structure(
                lambda whole: _part_of(whole, size, part), _padded(batch, size)
            ),
            num_parallel_calls=calls,
        )
    return batches.prefetch(plan.prefetch).with_options(_options(plan))


def input_bound_share(real_step: float, cached_step: float) -> float:
    """Share of a step spent waiting for input, 0..1.

    Args:
        real_step: Seconds of a step fed by the pipeline.
        cached_step: Seconds of the same step fed with one batch over and over.

    >>> input_bound_share(0.10, 0.08)
    0.2
    """
    if real_step <= 0:
        return 0.0
    return round(min(1.0, max(0.0, (real_step - cached_step) / real_step)), 4)


def advice(share: float, *, in_memory: bool, augmented: bool, epoch_seconds: float | None = None) -> str:
    """What a person can do about the time spent waiting for input; empty where it is little.

    Args:
        share: As :func:`input_bound_share` gives it.
        in_memory: The examples were cached, or gathered from memory.
        augmented: The source has a random part.
        epoch_seconds: How long an epoch's training takes; of a short one little can be lost.
    """
    if share < MODERATE:
        return ""
    how_much = "A high" if share >= HIGH else "A moderate"
    remedies = []
    if not in_memory:
        remedies.append(
            "run where more memory is free, so that the examples fit into it, or make them smaller"
        )
    if augmented:
        remedies.append("make the augmentation cheaper, or run it inside the model")
    remedies.append("give the input pipeline more CPU cores")
    little = ""
    if epoch_seconds is not None and epoch_seconds < 1:
        little = f" An epoch takes {epoch_seconds:.2g} s, much of it the pipeline's start: little is lost."
    return f"{how_much} share of the time ({share:.0%}) is spent waiting for input: {'; '.join(remedies)}.{little}"


def _one(source: Source, position: Any) -> Any:
    assert source.gather is not None
    return tf.nest.map_structure(lambda part: part[0], source.gather(position[tf.newaxis]))


def _augment_from(source: Source, seed: int, epoch: int) -> Any:
    """A function of (position, example, real) that returns the augmented, weighted example."""
    second = _mixed(seed, epoch)

    def augment(position: Any, example: Any, real: Any) -> Any:
        x, y, weight = _weighted(example, real)
        if source.augment is not None:
            x = source.augment(x, tf.stack([tf.cast(position, tf.int32), tf.constant(second, tf.int32)]))
        return x, y, weight

    return augment


def _mixed(seed: int, epoch: int) -> int:
    """One int32 for (seed, epoch): unequal pairs give unequal numbers, near enough."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0] >> 1)


def _weighted(batch: Any, real: Any) -> Any:
    """``(x, y)`` or ``(x, y, weight)`` to ``(x, y, weight * real)``."""
    if len(batch) == 2:
        return batch[0], batch[1], real
    x, y, weight = batch
    return x, y, tf.cast(weight, tf.float32) * real


def _padded(batch: Any, size: int) -> Any:
    rows = tf.shape(tf.nest.flatten(batch)[0])[0]
    places = tf.range(size)

    def fill(part: Any) -> Any:
        return tf.ensure_shape(tf.gather(part, tf.minimum(places, rows - 1)), [size, *part.shape[1:]])

    return _weighted(tf.nest.map_structure(fill, batch), tf.cast(places < rows, tf.float32))


def _buffer(source: Source, plan: ExecutionPlan, size: int) -> int:
    """Examples in the shuffle buffer of a stream: a quarter of the cache's bytes.

    It is filled before the first step of every epoch, so the larger the slower the start.
    """
    fits = plan.cache_bytes // 4 // max(1, example_bytes(source))
    return int(min(source.count, max(fits, 4 * size)))


def one_batch(source: Source, plan: ExecutionPlan, *, part: tuple[int, int] = ALL) -> tf.data.Dataset:
    """One training batch over and over, from memory: what a step costs without its input.

    Without shuffling and augmentation, which would read a stream's whole buffer for it.
    """
    size = training_batch_size(source.count, plan)
    whole = replace(plan, batch_size=size, accumulation=1)
    return evaluation_batches(source, whole, part=part).take(1).cache().repeat()


def _part(values: np.ndarray, size: int, part: tuple[int, int]) -> np.ndarray:
    """Of every stretch of ``size`` values the part that one of several workers takes."""
    index, count = part
    return values.reshape(-1, count, size // count)[:, index].reshape(-1)


def _part_of(batch: Any, size: int, part: tuple[int, int]) -> Any:
    index, count = part
    return batch[index * size // count : (index + 1) * size // count]


def _options(plan: ExecutionPlan) -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    # AUTOTUNE's own budgets are half the machine's RAM and all its cores, whoever else runs there.
    options.autotune.ram_budget = plan.ram_budget_bytes
    options.autotune.cpu_budget = plan.parallel_calls or len(os.sched_getaffinity(0))
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
