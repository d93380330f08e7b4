"""Where the network looked: Grad-CAM (Selvaraju et al., ICCV 2017) over films.

An overlay shows which regions raised a probability. It does not show that the reason is
medical: a side marker or a tube can light up, and that is what to look for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.xray import data
from domains.xray.config import XrayConfig
from domains.xray.decision import Decision
from domains.xray.figures import canvas
from domains.xray.model import assert_range
from shared.contract import Figure, FoldResult

if TYPE_CHECKING:
    import keras

_LABELS = 4
_SHOWN = 4
_FINE = 8


def grad_cam(model: keras.Model, films: np.ndarray, label: int) -> np.ndarray:
    """Heat maps float32 ``[n, size, size]`` in 0..1 of films ``[n, size, size, 1]`` for a label.

    Each map of a late layer is weighted by the mean gradient of the label's log-odds; what
    lowers them is cut off. The layer is the last one with maps of 8 x 8 or finer: small films leave the
    very last layer 4 x 4, which shows a quarter of a chest at a time. A film where nothing raises the
    log-odds gets zeros.
    """
    import keras
    import tensorflow as tf

    assert_range(films)
    body = next(layer for layer in model.layers if isinstance(layer, keras.Model))
    maps = _late_maps(body)
    pool, last = model.get_layer("pool"), model.get_layer("labels")
    rest = None if maps is body.output else keras.Model(maps, body.output)
    activation = keras.Model(body.input, maps)(tf.constant(films, tf.float32), training=False)
    with tf.GradientTape() as tape:
        tape.watch(activation)
        final = activation if rest is None else rest(activation, training=False)
        p = last(pool(final))[:, label]
        p = tf.clip_by_value(p, 1e-7, 1 - 1e-7)
        log_odds = tf.reduce_sum(tf.math.log(p) - tf.math.log1p(-p))
    gradient = tape.gradient(log_odds, activation)
    weight = tf.reduce_mean(gradient, axis=[1, 2], keepdims=True)
    heat = tf.nn.relu(tf.reduce_sum(tf.cast(weight * activation, tf.float32), axis=-1, keepdims=True))
    heat = tf.image.resize(heat, films.shape[1:3], method="bilinear")[..., 0].numpy()
    top = heat.max(axis=(1, 2), keepdims=True)
    return np.divide(heat, top, out=np.zeros_like(heat), where=top > 0)


def _late_maps(body: keras.Model) -> Any:
    """The output of the last block whose maps are 8 x 8 or finer; of the last layer where all are coarser."""
    outputs = [
        layer.output
        for layer in body.layers
        if layer.name.endswith(("_add", "_project_bn", "_conv", "_relu6")) and len(layer.output.shape) == 4
    ]
    fine = [output for output in outputs if (output.shape[1] or 0) >= _FINE]
    return fine[-1] if fine else body.output


def figures(
    model: keras.Model, prepared: Path, config: XrayConfig, result: FoldResult, out: Path
) -> list[Figure]:
    """Confident hits and misses of the test split with Grad-CAM, one figure a label (the first four)."""
    films = data.opened(prepared)
    test = result.fold.splits["test"]
    decision = Decision.chosen(result.validation, films.labels, config.read.sensitivity)
    said, truth = decision.probabilities(result.test.values), result.test.truth
    out.mkdir(parents=True, exist_ok=True)
    drawn = []
    for label, name in enumerate(films.labels[:_LABELS]):
        hits = _most(said[:, label], truth[:, label] == 1)
        alarms = _most(said[:, label], truth[:, label] == 0)
        misses = _most(-said[:, label], truth[:, label] == 1)
        panels = (
            [("hit", i) for i in hits]
            + [("false alarm", i) for i in alarms]
            + [("missed", i) for i in misses]
        )
        if not panels:
            continue
        pictures = np.stack([films.film(int(test[i])) for _, i in panels])
        heat = grad_cam(model, pictures[..., None], label)
        titles = [f"{kind}, {said[i, label]:.0%}" for kind, i in panels]
        path = out / f"grad-cam-{label}.png"
        _draw(pictures, heat, titles, path)
        drawn.append(
            Figure(
                path,
                f"{name}: its surest hits, surest false alarms and least suspected misses on test, with Grad-CAM. "
                "Colour marks what raised the probability, not what is ill.",
            )
        )
    return drawn


def _most(values: np.ndarray, where: np.ndarray) -> list[int]:
    chosen = np.flatnonzero(where)
    return [int(i) for i in chosen[np.argsort(-values[chosen], kind="stable")][:_SHOWN]]


def _draw(pictures: np.ndarray, heat: np.ndarray, titles: list[str], path: Path) -> None:
    figure, axes = canvas(_SHOWN, -(-len(titles) // _SHOWN), side=2.1)
    for axis in axes.ravel():
        axis.set_axis_off()
    for axis, picture, warmth, title in zip(axes.ravel(), pictures, heat, titles, strict=False):
        axis.imshow(picture, cmap="gray", vmin=0, vmax=1)
        axis.imshow(warmth, cmap="inferno", alpha=0.45 * warmth, vmin=0, vmax=1)
        axis.set_title(title, fontsize=8)
    figure.savefig(path)


def overlay(picture: np.ndarray, heat: np.ndarray, title: str, path: Path) -> None:
    """One film and beside it the same with its heat map, as a PNG without any text chunk but the software's."""
    figure, axes = canvas(2, side=3.2)
    for axis in axes[0]:
        axis.set_axis_off()
        axis.imshow(picture, cmap="gray", vmin=0, vmax=1)
    axes[0][1].imshow(heat, cmap="inferno", alpha=0.45 * heat, vmin=0, vmax=1)
    figure.suptitle(title, fontsize=8)
    figure.savefig(path)
