"""The network in two phases: a head on frozen features, then the last blocks unfrozen.

The features of the frozen backbone are computed once and kept beside the prepared films, so the
first phase costs seconds. BatchNormalization stays in inference mode in both phases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.xray import backbone, data
from domains.xray.augmentation import augment
from domains.xray.config import XrayConfig
from shared import files, fingerprint, progress
from shared.contract import Fold, Phase, Source, Split
from shared.errors import InputError

if TYPE_CHECKING:
    import keras

_BATCH = 32
_LARGEST_WEIGHT = 20.0


def phases(prepared: Path, config: XrayConfig, fold: Fold) -> list[Phase]:
    """Head on frozen features, then fine-tuning. What they know of the data is the train split's."""
    films = data.opened(prepared)
    truth = films.truth[fold.splits["train"]]
    prevalence = prevalences(truth)
    weights = (
        positive_weights(truth) if config.model.positive_weight == "balanced" else np.ones(truth.shape[1])
    )
    # A weighted loss moves the balance point; the head starts there, so that the first step is small.
    odds = weights * prevalence / (1 - prevalence)
    loss = masked_loss(weights)
    m = config.model
    return [
        Phase(
            "head on frozen features",
            build=lambda previous: head(feature_width(m.backbone, config.film.size), np.log(odds), m.dropout),
            loss=loss,
            epochs=m.head_epochs,
            learning_rate=m.head_rate,
            source=lambda split: feature_source(prepared, config, fold, split),
        ),
        Phase(
            "last blocks unfrozen",
            build=lambda previous: whole(config, np.log(odds), previous),
            loss=loss,
            epochs=m.tune_epochs,
            learning_rate=m.tune_rate,
            refines=True,
        ),
    ]


def head(width: int, bias: np.ndarray, dropout: float) -> keras.Model:
    """From features ``[B, width]`` to probabilities ``[B, labels]``, float32 whatever the policy."""
    import keras

    features = keras.Input((width,), name="features")
    return keras.Model(features, _head_layers(features, bias, dropout), name="head")


def whole(config: XrayConfig, bias: np.ndarray, previous: keras.Model | None) -> keras.Model:
    """From films ``[B, size, size, 1]`` in 0..1 to probabilities ``[B, labels]``.

    Args:
        previous: The trained head, whose weights are taken over; None starts a new one.
    """
    import keras

    size = config.film.size
    body = backbone.build(config.model.backbone, config.model.weights, size)
    backbone.freeze(body, config.model.unfreeze)
    film = keras.Input((size, size, 1), name="film_in")
    # training=False: BatchNormalization and the backbone's own dropout stay in inference mode.
    maps = body(film, training=False)
    pooled = keras.layers.GlobalAveragePooling2D(name="pool", dtype="float32")(maps)
    model = keras.Model(film, _head_layers(pooled, bias, config.model.dropout), name="xray")
    if previous is not None:
        model.get_layer("labels").set_weights(previous.get_layer("labels").get_weights())
    return model


def _head_layers(features: Any, bias: np.ndarray, dropout: float) -> Any:
    import keras
    from keras import layers

    x = layers.Dropout(dropout, name="dropout", dtype="float32")(features)
    start = keras.initializers.Constant([float(value) for value in bias])
    return layers.Dense(
        len(bias), activation="sigmoid", bias_initializer=start, name="labels", dtype="float32"
    )(x)


def prevalences(truth: np.ndarray) -> np.ndarray:
    """Share of yes among the known of each label, float64 ``[labels]``; one half of a film is added to each side."""
    return (np.nansum(truth == 1, axis=0) + 0.5) / (np.sum(~np.isnan(truth), axis=0) + 1.0)


def positive_weights(truth: np.ndarray) -> np.ndarray:
    """Weight of a yes of each label, so that yes and no weigh the same: float64 ``[labels]`` in 1/20..20."""
    share = prevalences(truth)
    return np.clip((1 - share) / share, 1 / _LARGEST_WEIGHT, _LARGEST_WEIGHT)


def masked_loss(weights: np.ndarray) -> Callable[[Any, Any], Any]:
    """Cross-entropy over the known labels of each film, ``[B]``; a yes weighs ``weights`` ``[labels]``.

    Unknown labels (NaN) count for nothing: the target is filled before anything is computed of it,
    since masking a NaN afterwards leaves its gradient NaN. Every known label counts
    once, however many its film has: the sum is divided by the number of labels, known or not.
    """
    import tensorflow as tf

    weight = tf.constant(np.asarray(weights), tf.float32)

    def loss(y_true: Any, y_pred: Any) -> Any:
        y_true, p = tf.cast(y_true, tf.float32), tf.cast(y_pred, tf.float32)
        known = tf.logical_not(tf.math.is_nan(y_true))
        truth = tf.where(known, y_true, 0.0)
        p = tf.clip_by_value(p, 1e-7, 1 - 1e-7)
        each = -(weight * truth * tf.math.log(p) + (1.0 - truth) * tf.math.log1p(-p))
        return tf.reduce_mean(tf.where(known, each, 0.0), axis=-1)

    return loss


@cache
def feature_width(name: str, size: int) -> int:
    """Number of features that the backbone ``name`` gives."""
    return int(backbone.build(name, "none", size).output_shape[-1])


def feature_source(prepared: Path, config: XrayConfig, fold: Fold, split: Split) -> Source:
    """Frozen features float32 ``[width]`` with labels, of a split.

    In train each film comes again in ``model.copies`` changed copies, film by film after the
    originals: a head that knew untouched films only would be thrown by the first augmented batch of
    the second phase.
    """
    import tensorflow as tf

    films = data.opened(prepared)
    numbers = np.asarray(fold.splits[split], "int64")
    copies = config.model.copies if split == "train" and config.model.augment else 0
    values = [features(films, config)[numbers]]
    values += [features(films, config, numbers, copy) for copy in range(1, copies + 1)]
    truth = np.tile(films.truth[numbers], (copies + 1, 1))
    dataset = tf.data.Dataset.from_tensor_slices((np.concatenate(values), truth))
    return Source(len(truth), dataset=dataset)


def features(
    films: data.Prepared, config: XrayConfig, numbers: np.ndarray | None = None, copy: int = 0
) -> np.ndarray:
    """Frozen features of films, float32 ``[m, width]``; computed once and kept beside the films.

    Always in float32 and in batches of one size, so that they are the same under every plan.

    Args:
        numbers: Examples, int64 ``[m]``; all where None.
        copy: 0 for the film itself, else the seed of its random change.
    """
    m = config.model
    chosen = np.arange(len(films.rows)) if numbers is None else numbers
    key = fingerprint.of(films.fingerprint, m.backbone, _weights_key(m.weights), films.size, chosen, copy)
    kept = films.folder / "features" / f"{key}.npy"
    if kept.is_file():
        return np.asarray(np.load(kept, mmap_mode="r"))
    values = _compute(films, config, chosen, copy)
    with files.atomic(kept) as temporary:
        np.save(temporary, values)
    return values


def _weights_key(weights: str) -> str:
    path = Path(weights)
    return fingerprint.of_file(path) if weights not in ("imagenet", "none") and path.is_file() else weights


def _compute(films: data.Prepared, config: XrayConfig, numbers: np.ndarray, copy: int) -> np.ndarray:
    import tensorflow as tf

    with backbone.float32():
        body = backbone.build(config.model.backbone, config.model.weights, films.size)
    run = tf.function(lambda x: tf.reduce_mean(body(x, training=False), axis=[1, 2]))
    change = tf.function(lambda film, number: augment(film, tf.stack([number, copy])))
    found = np.empty((len(numbers), int(body.output_shape[-1])), "float32")
    batch = np.zeros((_BATCH, films.size, films.size, 1), "float32")
    label = f"features of the frozen backbone, copy {copy}" if copy else "features of the frozen backbone"
    for start in range(0, len(numbers), _BATCH):
        chosen = numbers[start : start + _BATCH]
        for place, number in enumerate(chosen):
            film = films.film(int(number))[..., np.newaxis]
            batch[place] = change(film, np.int32(number)).numpy() if copy else film
        assert_range(batch)
        found[start : start + len(chosen)] = run(batch).numpy()[: len(chosen)]
        progress.emit(label, start + len(chosen), len(numbers))
    return found


def assert_range(batch: np.ndarray) -> None:
    """Checks that films are in 0..1 as the model takes them.

    Raises:
        InputError: They are in another range, as bytes or as scaled twice; gives it.
    """
    low, high = float(np.min(batch)), float(np.max(batch))
    if not (low >= -1e-3 and high <= 1.001):
        raise InputError(
            f"The model takes films in 0..1, received {low:.4g} to {high:.4g}.",
            "Scale pixels once: by their bit depth, and not at all by the model's own range.",
        )
    if 0 < high <= 1 / 128:
        raise InputError(
            f"The model takes films in 0..1, received {low:.4g} to {high:.4g}: scaled twice?",
            "Scale pixels once, by their bit depth.",
        )
