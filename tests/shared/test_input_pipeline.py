"""The order, the cache, the remainder and the padding of batches, by values worked out by hand."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import tensorflow as tf

from shared import input_pipeline
from shared.contract import Source
from shared.errors import InputError
from shared.input_pipeline import (
    advice,
    as_source,
    cached,
    evaluation_batches,
    example_bytes,
    first_example,
    input_bound_share,
    order_of_epoch,
    steps_per_epoch,
    training_batch_size,
    training_batches,
)
from shared.plan import ExecutionPlan


def numbers(count: int, **kwargs) -> Source:
    """Examples whose x says which they are and whose y is ten times that."""
    x = np.arange(count, dtype=np.float32)
    return Source(count, dataset=tf.data.Dataset.from_tensor_slices((x[:, None], 10 * x)), **kwargs)


def plan(batch: int, **kwargs) -> ExecutionPlan:
    return ExecutionPlan(batch_size=batch, **kwargs)


def read(batches) -> tuple[list[list[float]], list[list[float]]]:
    xs, weights = [], []
    for x, y, weight in batches:
        np.testing.assert_allclose(np.asarray(y), 10 * np.asarray(x)[..., 0])
        xs.append(np.asarray(x)[..., 0].tolist())
        weights.append(np.asarray(weight).tolist())
    return xs, weights


def test_an_epoch_is_numpys_permutation_with_the_remainder_dropped():
    order = np.random.default_rng([3, 1]).permutation(10)
    xs, weights = read(training_batches(cached(numbers(10), plan(4)), plan(4), seed=3, epoch=1))
    assert xs == [order[:4].tolist(), order[4:8].tolist()]
    assert weights == [[1.0] * 4] * 2


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("augment", [None, lambda x, seed: x + 0.0 * tf.random.stateless_normal([1], seed)])
def test_the_workers_parts_make_up_the_global_batch(in_memory, workers, augment):
    """In training, in evaluation with its padding, and after a resume in the midst of an epoch."""
    how = plan(6, replicas=workers, cache_bytes=1 << 20 if in_memory else 5)
    source = cached(numbers(20, augment=augment), how)

    def joined(make) -> tuple[list[list[float]], list[list[float]]]:
        parts = [read(make((index, workers))) for index in range(workers)]
        return tuple(
            [list(chain(*pieces)) for pieces in zip(*(part[which] for part in parts), strict=True)]
            for which in (0, 1)
        )

    for make in (
        lambda part: training_batches(source, how, seed=0, epoch=1, part=part),
        lambda part: training_batches(source, how, seed=0, epoch=1, skip_steps=2, part=part),
        lambda part: evaluation_batches(source, how, part=part),
    ):
        assert joined(make) == read(make(input_pipeline.ALL))


@pytest.mark.parametrize("in_memory", [True, False])
def test_skipping_leaves_what_the_skipped_steps_would_have_left(in_memory):
    how = plan(4, cache_bytes=1 << 20 if in_memory else 5)
    source = cached(numbers(20), how)
    assert (source.gather is not None) == in_memory
    whole, _ = read(training_batches(source, how, seed=0, epoch=0))
    rest, _ = read(training_batches(source, how, seed=0, epoch=0, skip_steps=3))
    assert len(whole) == 5
    assert rest == whole[3:]


@pytest.mark.parametrize("cache_bytes", [1 << 20, 60])
def test_order_depends_on_seed_and_epoch_and_on_nothing_else(cache_bytes):
    how = plan(4, cache_bytes=cache_bytes)
    source = cached(numbers(24), how)

    def epoch(seed: int, number: int) -> list[list[float]]:
        return read(training_batches(source, how, seed=seed, epoch=number))[0]

    assert epoch(0, 0) == epoch(0, 0)
    assert epoch(0, 0) != epoch(0, 1)
    assert epoch(0, 0) != epoch(1, 0)
    assert sorted(np.concatenate(epoch(0, 0))) == list(range(24))


def test_augmentation_is_drawn_anew_each_epoch_and_the_same_when_repeated():
    def shift(x, seed):
        return x + tf.random.stateless_uniform([1], seed)

    how = plan(2)
    for source in (cached(numbers(6, augment=shift), how), numbers(6, augment=shift)):

        def noise(epoch: int, source: Source = source, skip: int = 0) -> dict[int, float]:
            batches = training_batches(source, how, seed=0, epoch=epoch, skip_steps=skip)
            values = np.concatenate([np.asarray(x)[:, 0] for x, _, _ in batches])
            return {int(value): float(value % 1) for value in values}

        first = noise(0)
        assert len(set(first.values())) == 6
        assert first == noise(0)
        assert noise(0, skip=1).items() <= first.items()
        assert not set(first.values()) & set(noise(1).values())


@pytest.mark.parametrize(
    ("count", "batch", "replicas", "size", "steps"),
    [(10, 4, 2, 4, 2), (3, 8, 1, 3, 1), (7, 8, 2, 6, 1), (1, 8, 2, 2, 1), (8, 8, 2, 8, 1), (0, 4, 1, 1, 1)],
)
def test_batch_size_where_examples_are_few(count, batch, replicas, size, steps):
    how = plan(batch, replicas=replicas)
    assert training_batch_size(count, how) == size
    assert steps_per_epoch(count, how) == steps


@pytest.mark.parametrize("in_memory", [True, False])
def test_fewer_examples_than_replicas_are_padded_at_weight_zero(in_memory):
    how = plan(4, replicas=4)
    source = cached(numbers(3), how) if in_memory else numbers(3)
    xs, weights = read(training_batches(source, how, seed=0, epoch=0))
    assert weights == [[1.0, 1.0, 1.0, 0.0]]
    assert sorted(xs[0][:3]) == [0, 1, 2]


def test_a_batch_that_replicas_cannot_share_is_refused():
    with pytest.raises(InputError, match="multiple of 4"):
        training_batch_size(100, plan(6, replicas=2, accumulation=2))


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(("count", "expected"), [(5, [[0, 1], [2, 3], [4, 4]]), (4, [[0, 1], [2, 3]])])
def test_evaluation_sees_each_example_once_in_order(in_memory, count, expected):
    source = cached(numbers(count), plan(2)) if in_memory else numbers(count)
    xs, weights = read(evaluation_batches(source, plan(2)))
    assert xs == expected
    assert np.sum(weights) == count
    assert weights[-1] == ([1.0, 0.0] if count == 5 else [1.0, 1.0])


def test_evaluation_of_few_examples_pads_to_the_replicas_only():
    xs, weights = read(evaluation_batches(numbers(3), plan(64, replicas=2)))
    assert xs == [[0, 1, 2, 2]]
    assert weights == [[1, 1, 1, 0]]


def test_given_weights_are_kept_and_padding_wins():
    x = np.arange(3, dtype=np.float32)
    source = Source(3, dataset=tf.data.Dataset.from_tensor_slices((x[:, None], 10 * x, x + 5)))
    for each in (source, cached(source, plan(2))):
        _, weights = read(evaluation_batches(each, plan(2)))
        assert weights == [[5, 6], [7, 0]]


def test_cache_only_where_the_bytes_fit():
    source = numbers(100)
    assert example_bytes(source) == 8
    assert cached(source, plan(4, cache_bytes=800)).gather is not None
    assert cached(source, plan(4, cache_bytes=799)) is source


def test_cache_reads_the_source_once():
    read_rows = []

    def rows():
        read_rows.append(1)
        yield from ((np.float32([i]), np.float32(10 * i)) for i in range(4))

    spec = (tf.TensorSpec([1], tf.float32), tf.TensorSpec([], tf.float32))
    source = Source(4, dataset=tf.data.Dataset.from_generator(rows, output_signature=spec))
    kept = cached(source, plan(2))
    for epoch in range(3):
        read(training_batches(kept, plan(2), seed=0, epoch=epoch))
    assert len(read_rows) == 1


def test_inputs_may_be_a_dictionary():
    data = tf.data.Dataset.from_tensor_slices(({"a": np.ones([5, 2]), "b": np.zeros([5])}, np.ones([5])))
    source = Source(5, dataset=data)
    for each in (source, cached(source, plan(2))):
        for batches in (
            evaluation_batches(each, plan(2)),
            training_batches(each, plan(2), seed=0, epoch=0),
        ):
            x, _, _ = next(iter(batches))
            assert x["a"].shape == (2, 2)
            assert x["b"].shape == (2,)


def test_a_wrong_count_is_refused():
    source = Source(7, dataset=numbers(5).dataset)
    with pytest.raises(InputError, match=r"7 examples, its tf.data set gave 5"):
        cached(source, plan(2))


def test_examples_of_unequal_shape_are_refused():
    spec = (tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32))
    data = tf.data.Dataset.from_generator(
        lambda: ((np.ones(n, np.float32), np.float32(0)) for n in (1, 2)), output_signature=spec
    )
    with pytest.raises(InputError, match="differ in shape"):
        cached(Source(2, dataset=data), plan(2))


def test_bytes_and_first_example_of_a_source_that_gathers():
    source = cached(numbers(3), plan(2))
    assert example_bytes(source) == 8
    x, y = first_example(source)
    assert (x.tolist(), float(y)) == ([0.0], 0.0)
    with pytest.raises(InputError, match="empty"):
        first_example(Source(0, gather=source.gather))


def test_a_bare_data_set_is_counted():
    data = numbers(7).dataset
    assert as_source(data).count == 7
    assert as_source(data.filter(lambda x, y: y < 30)).count == 3
    with pytest.raises(InputError, match="no end"):
        as_source(data.repeat())
    with pytest.raises(InputError, match="received list"):
        as_source([1, 2])
    with pytest.raises(InputError, match=r"\(x, y\)"):
        as_source(data.map(lambda x, y: x))


def test_budgets_reach_tensorflow():
    options = training_batches(
        numbers(4), plan(2, ram_budget_bytes=12345678, parallel_calls=3), seed=0, epoch=0
    ).options()
    assert options.autotune.ram_budget == 12345678
    assert options.autotune.cpu_budget == 3
    assert options.deterministic


@pytest.mark.parametrize(
    ("real", "fed", "share"), [(0.10, 0.08, 0.2), (0.10, 0.10, 0.0), (0.10, 0.12, 0.0), (0.0, 0.1, 0.0)]
)
def test_input_bound_share(real, fed, share):
    assert input_bound_share(real, fed) == pytest.approx(share)


def test_advice_only_where_it_is_needed():
    assert advice(0.04, in_memory=False, augmented=False) == ""
    assert "moderate" in advice(0.05, in_memory=False, augmented=False)
    high = advice(0.4, in_memory=False, augmented=True)
    assert "high" in high
    assert "40%" in high
    assert "memory" in high
    assert "augmentation" in high
    assert "memory" not in advice(0.4, in_memory=True, augmented=True)
    assert advice(0.4, in_memory=True, augmented=True, epoch_seconds=0.02).endswith("little is lost.")


def test_augmentation_seeds_fit_int32():
    assert 0 <= input_pipeline._mixed(2**40, 3) < 2**31


def test_order_of_epoch_is_numpys():
    np.testing.assert_array_equal(order_of_epoch(6, 4, 2), np.random.default_rng([4, 2]).permutation(6))


@pytest.mark.parametrize(("count", "size"), [(10, 4), (3, 3)])
def test_one_batch_over_and_over_has_the_shape_of_training(count, size):
    source = cached(numbers(count), plan(4))
    fixed = input_pipeline.one_batch(source, plan(4))
    real = training_batches(source, plan(4), seed=0, epoch=0)
    assert fixed.element_spec == real.element_spec
    first, second = (np.asarray(x) for x, _, _ in fixed.take(2))
    np.testing.assert_array_equal(first, second)
    assert len(first) == size
