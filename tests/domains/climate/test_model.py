"""The networks: layers that know the grid, the masked loss, exact windows, seams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domains.climate import baselines, domain
from domains.climate import grid as grids
from domains.climate.data import Prepared, numbered
from domains.climate.grid import Grid

from .conftest import ingested, maps, save, years

pytestmark = pytest.mark.slow

SMALL = {"width": 8, "depth": 2, "features": 4}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 years of 8 x 12 cells, with a lake that is always missing and one odd hole."""
    dataset = maps(times=years(1980, 24), longitude=np.arange(230.0, 242.0))
    dataset["tas"][:, 1:3, 1:3] = np.nan
    dataset["tas"][5, 6, 7] = np.nan
    place = tmp_path_factory.mktemp("lake")
    ingested(save(dataset, place / "a.nc"), place / "prepared")
    return place / "prepared"


def test_the_loss_has_finite_gradients_where_the_truth_is_missing() -> None:
    import tensorflow as tf

    from domains.climate.model import masked_squared_error

    area = np.array([[1.0, 3.0], [1.0, 1.0]])
    loss = masked_squared_error(area, 2.0)
    truth = tf.constant([[[1.0, np.nan], [2.0, 4.0]], [[np.nan, np.nan], [np.nan, np.nan]]])
    said = tf.Variable([[[3.0, 9.0], [2.0, 4.0]], [[1.0, 1.0], [1.0, 1.0]]])
    with tf.GradientTape() as tape:
        value = loss(truth, said)
        total = tf.reduce_sum(value)
    # (3 - 1)² / 2² over the three known cells of weight 1; an example without truth costs nothing.
    assert np.allclose(value, [1 / 3, 0.0])
    gradient = tape.gradient(total, said).numpy()
    assert np.isfinite(gradient).all()
    assert np.count_nonzero(gradient) == 1


def test_masking_after_squaring_would_not_do() -> None:
    # The kind of mistake that the filled target avoids: a finite loss with NaN gradients.
    import tensorflow as tf

    said, truth = tf.Variable([1.0, 2.0]), tf.constant([0.0, np.nan])
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(tf.where(tf.math.is_finite(truth), tf.square(said - truth), 0.0))
    assert np.isfinite(value)
    assert np.isnan(tape.gradient(value, said)).any()


def test_the_untrained_network_is_the_interpolation(prepared: Path) -> None:
    config = domain.Config.model_validate({"downscaling": SMALL})
    fold = domain.folds(prepared, config)[0]
    model = domain.phases(prepared, config, fold)[0].build(None)
    layer = model.get_layer("detail")
    layer.set_weights([np.zeros_like(w) for w in layer.get_weights()])
    data = Prepared.load(prepared)
    pairs, _ = baselines.pairs(data, config, fold.splits["test"])
    out = model(pairs.coarse).numpy()
    rival = domain.baselines(prepared, config, fold)["bilinear + offset, conserving"].values
    # The corner is far from the lake, where both are one formula.
    assert np.allclose(out[:, 4:, 8:], rival[:, 4:, 8:], atol=2e-3)
    assert np.isfinite(out).all()


def test_block_means_are_kept_whatever_the_weights(prepared: Path) -> None:
    import keras

    config = domain.Config.model_validate({"downscaling": SMALL})
    fold = domain.folds(prepared, config)[0]
    keras.utils.set_random_seed(1)
    model = domain.phases(prepared, config, fold)[0].build(None)
    for weight in model.trainable_weights:
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    data = Prepared.load(prepared)
    pairs, fine = baselines.pairs(data, config, fold.splits["train"])
    seen = np.isfinite(pairs.fine).any(axis=0)
    out = np.where(seen, model(pairs.coarse).numpy(), np.nan)
    whole = np.isfinite(pairs.fine).sum(axis=(1, 2)) == seen.sum()
    assert np.allclose(grids.coarsen(out, fine, 4)[whole], pairs.coarse[whole], atol=1e-3)


def test_a_saved_network_opens_equal(prepared: Path, tmp_path: Path) -> None:
    import keras

    for base in (
        {"downscaling": SMALL},
        {"task": "forecast", "forecast": {"history": "5 years", "width": 4}},
    ):
        config = domain.Config.model_validate(base)
        fold = domain.folds(prepared, config)[0]
        model = domain.phases(prepared, config, fold)[0].build(None)
        x, _ = domain.examples(prepared, config, fold, "test").gather(np.arange(2))  # type: ignore[misc]
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        assert np.array_equal(again(x), model(x))


def test_physical_values_stay_float32_under_mixed_precision(prepared: Path) -> None:
    import keras

    config = domain.Config.model_validate({"downscaling": SMALL})
    fold = domain.folds(prepared, config)[0]
    x, _ = domain.examples(prepared, config, fold, "test").gather(np.arange(2))  # type: ignore[misc]
    exact = domain.phases(prepared, config, fold)[0].build(None)
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        mixed = domain.phases(prepared, config, fold)[0].build(None)
    finally:
        keras.config.set_dtype_policy("float32")
    mixed.set_weights(exact.get_weights())
    assert mixed.get_layer("conv_0").compute_dtype == "bfloat16"
    assert mixed(x).dtype == "float32"
    # bfloat16 has a step of 2 K at 288 K: only anomalies may pass through it.
    assert np.abs(mixed(x) - exact(x)).max() < 0.05


@pytest.mark.parametrize("periodic", [True, False])
def test_a_periodic_grid_has_no_seam(periodic: bool) -> None:
    import keras

    from domains.climate.layers import GridPadding

    x = np.random.default_rng(0).normal(size=(1, 5, 8, 2)).astype(np.float32)
    convolve = keras.Sequential([GridPadding(1, periodic), keras.layers.Conv2D(3, 3)])
    rolled = np.roll(convolve(np.roll(x, 3, axis=2)), -3, axis=2)
    assert np.allclose(rolled, convolve(x), atol=1e-5) is periodic


def test_padding_mirrors_the_edge() -> None:
    from domains.climate.layers import GridPadding

    x = np.arange(6.0, dtype=np.float32).reshape(1, 2, 3, 1)
    assert GridPadding(1)(x)[0, :, :, 0].numpy().tolist() == [
        [0, 0, 1, 2, 2],
        [0, 0, 1, 2, 2],
        [3, 3, 4, 5, 5],
        [3, 3, 4, 5, 5],
    ]


def test_windows_are_gathered_as_counted(prepared: Path) -> None:
    config = domain.Config.model_validate(
        {"task": "forecast", "forecast": {"history": "5 years", "lead": "2 years"}}
    )
    data, fold = Prepared.load(prepared), domain.folds(prepared, config)[0]
    source = domain.examples(prepared, config, fold, "train")
    x, y = source.gather(np.array([3, 0]))  # type: ignore[misc]
    examples = numbered(data, config)
    for row, position in enumerate((3, 0)):
        target = examples.target[fold.splits["train"][position]]
        assert np.array_equal(y[row], data.fields[target], equal_nan=True)
        assert np.array_equal(x[row], data.fields[target - 6 : target - 1], equal_nan=True)


def test_interpolation_in_the_network_goes_round_the_globe() -> None:
    from domains.climate.layers import Refine

    fine = Grid(np.arange(8.0), np.arange(0.0, 360.0, 30.0), True)
    coarse = fine.coarse(4)
    rows, columns = grids.interpolation(coarse, fine)
    weights = grids.blocks(fine.area(), 4)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    refine = Refine(coarse.shape, 4, np.zeros(fine.shape), 1.0, 1.0, rows, columns, weights)
    x = np.random.default_rng(0).normal(size=(1, *coarse.shape, 1)).astype(np.float32)
    none = np.zeros((1, *coarse.shape, 16), np.float32)
    turned = refine([np.roll(x, 1, axis=2), none]).numpy()
    assert np.allclose(np.roll(refine([x, none]).numpy(), 4, axis=2), turned, atol=1e-5)


def test_an_epoch_of_training_helps(prepared: Path) -> None:
    """A few plain Keras steps lower the loss, so that gradients reach the weights."""
    import keras
    import tensorflow as tf

    for base in (
        {"downscaling": SMALL},
        {"task": "forecast", "forecast": {"history": "5 years", "width": 4}},
    ):
        config = domain.Config.model_validate(base)
        fold = domain.folds(prepared, config)[0]
        phase = domain.phases(prepared, config, fold)[0]
        keras.utils.set_random_seed(0)
        model = phase.build(None)
        source = domain.examples(prepared, config, fold, "train")
        x, y = source.gather(tf.range(source.count, dtype=tf.int64))  # type: ignore[misc]
        optimizer = keras.optimizers.Adam(1e-2)
        losses = []
        for _ in range(15):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(phase.loss(y, model(x)))
            optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
            losses.append(float(loss))
        assert np.isfinite(losses).all()
        assert losses[-1] < losses[0]
