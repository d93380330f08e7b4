"""The network: real weights, one scaling, BatchNormalization at rest, a loss no NaN can poison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from domains.xray import data, domain
from domains.xray.config import XrayConfig
from shared.errors import CasebookError, InputError

SMALL = {
    "film": {"size": 64},
    "synthetic": {"films": 40, "size": 64},
    "model": {"backbone": "tiny", "weights": "none", "unfreeze": 2},
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared")
    domain.ingest("synthetic", XrayConfig.model_validate(SMALL), out)
    return out


@pytest.fixture(scope="module")
def lite0():
    from domains.xray import backbone

    return backbone.build("lite0", "imagenet", 224)


@pytest.mark.slow
def test_lite0_recognises_photographs(lite0):
    """The palace and the daisy that scikit-learn ships: ImageNet's classes 698 and 985."""
    import keras
    from PIL import Image
    from sklearn.datasets import load_sample_images

    from domains.xray import weights

    top = weights.read_legacy_torch(weights.lite0_checkpoint())
    network = keras.Model(lite0.get_layer("film_channels").output, lite0.output)
    for picture, expected in zip(load_sample_images().images, (698, 985), strict=True):
        height, width = picture.shape[:2]
        left = (width - height) // 2
        square = Image.fromarray(picture[:, left : left + height]).resize(
            (224, 224), Image.Resampling.BICUBIC
        )
        x = (np.asarray(square, "float32")[None] - 127) / 128
        features = np.asarray(network(x, training=False)).mean(axis=(1, 2))
        assert int(np.argmax(features @ top["_fc.weight"].T + top["_fc.bias"])) == expected


@pytest.mark.slow
def test_lite0_carries_batch_normalisation_at_rest_and_only_the_last_blocks_open(lite0):
    import keras

    from domains.xray import backbone

    assert len(backbone.blocks(lite0)) == 17
    backbone.freeze(lite0, 2)
    open_layers = {variable.path.split("/")[0] for variable in lite0.trainable_variables}
    assert open_layers == {"block7a_expand", "block7a_depth", "block7a_project", "top_conv"}
    norms = [layer for layer in lite0.layers if isinstance(layer, keras.layers.BatchNormalization)]
    before = [np.asarray(value) for layer in norms for value in layer.weights]
    film = np.random.default_rng(0).random((2, 224, 224, 1), "float32")
    assert np.array_equal(lite0(film, training=True), lite0(film, training=False))
    after = [np.asarray(value) for layer in norms for value in layer.weights]
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_films_scaled_twice_or_never_are_refused_when_the_model_is_built():
    import keras

    from domains.xray import backbone

    def network(scale, offset):
        film = keras.Input((32, 32, 1), name="film")
        x = keras.layers.Rescaling(scale, offset)(film)
        return keras.Model(film, keras.layers.Conv2D(2, 3, name="top_conv")(x))

    backbone.assert_one_scaling(network(255 / 128, -127 / 128), 32)
    with pytest.raises(CasebookError, match="reaches the first convolution"):
        backbone.assert_one_scaling(network(1 / 255, 0), 32)
    with pytest.raises(CasebookError, match="reaches the first convolution"):
        backbone.assert_one_scaling(network(255, 0), 32)


def test_films_in_another_range_are_refused_at_predict():
    from domains.xray.model import assert_range

    film = np.random.default_rng(0).random((2, 8, 8, 1))
    assert_range(film)
    assert_range(np.zeros_like(film))
    for wrong in (film * 255, film - 0.5, film / 255):
        with pytest.raises(InputError, match=r"takes films in 0\.\.1"):
            assert_range(wrong)


def test_keras_backbones_by_name_and_what_is_offered_offline(monkeypatch):
    import keras

    from domains.xray import backbone

    def offline(**_):
        raise Exception("URL fetch failure on https://weights: None -- no network")

    monkeypatch.setattr(keras.applications, "EfficientNetB0", offline)
    with pytest.raises(InputError) as caught:
        backbone.build("EfficientNetB0", "imagenet", 64)
    assert "lite0" in caught.value.remedy
    assert "model.weights" in caught.value.remedy
    with pytest.raises(InputError, match="no backbone 'EfficientNetB77'"):
        backbone.build("EfficientNetB77", "imagenet", 64)
    with pytest.raises(InputError, match="no file of weights"):
        backbone.build("tiny", "/missing.weights.h5", 64)


@pytest.mark.slow
def test_a_keras_efficientnet_builds_without_weights():
    from domains.xray import backbone

    model = backbone.build("EfficientNetB0", "none", 64)
    assert model.output_shape == (None, 2, 2, 1280)
    backbone.freeze(model, 1)
    assert {variable.path.split("/")[0] for variable in model.trainable_variables} == {"top_conv"}


def test_a_missing_label_counts_for_nothing_and_poisons_nothing():
    import tensorflow as tf

    from domains.xray.model import masked_loss

    loss = masked_loss(np.array([3.0, 1.0]))
    truth = tf.constant([[1.0, 0.0], [np.nan, 1.0], [np.nan, np.nan]])
    said = tf.Variable([[0.8, 0.4], [0.3, 0.5], [0.9, 0.9]])
    with tf.GradientTape() as tape:
        each = loss(truth, said)
        total = tf.reduce_mean(each)
    by_hand = [(-3 * np.log(0.8) - np.log(0.6)) / 2, -np.log(0.5) / 2, 0.0]
    assert each.numpy() == pytest.approx(by_hand, rel=1e-5)
    gradient = tape.gradient(total, said).numpy()
    assert np.isfinite(gradient).all()
    assert (gradient[np.isnan(truth)] == 0).all()


def test_sure_and_wrong_outputs_lose_finitely():
    from domains.xray.model import masked_loss

    loss = masked_loss(np.ones(1))
    assert np.isfinite(loss(np.array([[1.0], [0.0]], "float32"), np.array([[0.0], [1.0]], "float32"))).all()


def test_weights_make_yes_and_no_weigh_the_same():
    from domains.xray.model import positive_weights, prevalences

    truth = np.array([[1, np.nan], [0, np.nan], [0, 0], [0, 0]], "float64")
    assert prevalences(truth) == pytest.approx([1.5 / 5, 0.5 / 3])
    assert positive_weights(truth) == pytest.approx([7 / 3, 5])
    assert positive_weights(np.zeros((10_000, 1)))[0] == 20


def test_features_are_computed_once_and_are_what_the_second_phase_starts_from(prepared, monkeypatch):
    import keras

    from domains.xray import model

    config = XrayConfig.model_validate(SMALL)
    films = data.opened(prepared)
    first = model.features(films, config)
    monkeypatch.setattr(model, "_compute", None)
    assert np.array_equal(model.features(films, config), first)

    fold = domain.folds(prepared, config)[0]
    head_phase, tune_phase = domain.phases(prepared, config, fold)
    keras.config.set_dtype_policy("float32")
    head = head_phase.build(None)
    whole = tune_phase.build(head)
    pixels = np.stack([films.film(example) for example in range(8)])[..., None]
    assert np.asarray(whole(pixels)) == pytest.approx(np.asarray(head(first[:8])), abs=1e-5)


def test_outputs_are_float32_under_a_mixed_policy(prepared):
    import keras

    from shared import mixed_precision

    config = XrayConfig.model_validate(SMALL)
    fold = domain.folds(prepared, config)[0]
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        for phase in domain.phases(prepared, config, fold):
            mixed_precision.check_float32_head(phase.build(None))
    finally:
        keras.config.set_dtype_policy(before)


def test_augmentation_is_small_seeded_and_never_a_mirror_image():
    import tensorflow as tf

    from domains.xray.augmentation import augment

    picture = np.full((64, 64, 1), 0.2, "float32")
    picture[12:18, 42:48] = 0.9  # one mark, above and to the right of the middle
    film = tf.constant(picture)
    same = [augment(film, tf.constant([5, 9])).numpy() for _ in range(2)]
    assert np.array_equal(*same)
    assert not np.array_equal(same[0], augment(film, tf.constant([5, 10])).numpy())
    for seed in range(60):
        changed = augment(film, tf.constant([seed, 1])).numpy()
        assert changed.shape == film.shape
        assert 0 <= changed.min() <= changed.max() <= 1
        row, column = (np.mean(where) for where in np.nonzero(changed[..., 0] > 0.95 * changed.max()))
        assert abs(row - 14.5) < 9, seed
        assert abs(column - 44.5) < 9, seed


def test_the_source_leaves_random_changes_to_the_stage_after_the_cache(prepared):
    config = XrayConfig.model_validate(SMALL)
    fold = domain.folds(prepared, config)[0]
    source = domain.examples(prepared, config, fold, "train")
    readings = [next(source.dataset.as_numpy_iterator())[0] for _ in range(2)]
    assert np.array_equal(*readings)
    assert source.augment is not None
    without = XrayConfig.model_validate({**SMALL, "model": {**SMALL["model"], "augment": False}})
    assert domain.examples(prepared, without, fold, "train").augment is None


def test_a_fold_without_both_answers_is_refused(prepared, monkeypatch):
    films = data.opened(prepared)
    monkeypatch.setattr(data, "opened", lambda _: replace(films, truth=np.zeros_like(films.truth)))
    with pytest.raises(InputError, match="both a yes and a no"):
        data.folds(prepared, XrayConfig.model_validate(SMALL))
