"""The learning rate over a phase: a warm-up, then constant or a half cosine; and how it follows the batch.

The schedule is a function of the share of the phase that is done. It is made from the number of
steps, and so must be made anew wherever the batch changes (transformers#25956 kept the old one).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from shared.errors import InputError

REFERENCE_BATCH = 32
"""Batch at which a phase states its learning rate."""


def factor(rule: str, batch_size: int, reference: int = REFERENCE_BATCH) -> float:
    """What the rate at the reference batch is multiplied with at ``batch_size``.

    ``linear`` follows Goyal et al. 2017 (SGD), ``square-root`` Malladi et al. 2022 (Adam).

    >>> factor("square-root", 128), factor("linear", 128), factor("none", 128)
    (2.0, 4.0, 1.0)
    """
    if rule == "none":
        return 1.0
    if rule == "linear":
        return batch_size / reference
    if rule in ("square-root", "auto"):
        return math.sqrt(batch_size / reference)
    raise InputError(
        f"There is no learning-rate rule {rule!r}.", "Take square-root, linear or none; auto is square-root."
    )


def warmup_steps(total: int, share: float) -> int:
    """Steps of warm-up: ``share`` of all, at least 1 where a share is asked for."""
    return min(max(1, round(total * share)), max(1, total - 1)) if share > 0 else 0


def rate(step: int, *, peak: float, total: int, warmup: int, kind: str = "cosine") -> float:
    """The learning rate of step ``step`` (from 0) of ``total``.

    Rises in equal parts to ``peak`` at the last step of the warm-up; ``cosine`` then falls to 1%
    of the peak, ``constant`` stays.

    >>> [rate(step, peak=1.0, total=10, warmup=4, kind="constant") for step in (0, 1, 3, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if kind == "constant":
        return peak
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


FLOOR = 0.01


def is_plain(shape: Mapping[str, Any]) -> bool:
    """Whether the rate never changes by itself; then it is a plain number, which Keras callbacks may set."""
    return shape["kind"] == "constant" and not shape["warmup"]


def schedule(*, peak: float, total: int, warmup: int, kind: str = "cosine") -> Any:
    """:func:`rate` as a Keras schedule, or a number where it is one, to give to an optimizer."""
    import keras
    import tensorflow as tf

    if is_plain({"kind": kind, "warmup": warmup}):
        return peak

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            step = tf.cast(step, tf.float32)
            if kind == "constant":
                after = tf.constant(peak, tf.float32)
            else:
                done = tf.clip_by_value((step - warmup) / max(1, total - warmup), 0.0, 1.0)
                after = peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + tf.cos(math.pi * done)))
            if not warmup:
                return after
            return tf.where(step < warmup, peak * (step + 1) / warmup, after)

        def get_config(self) -> dict[str, Any]:
            return {"peak": peak, "total": total, "warmup": warmup, "kind": kind}

    return Schedule()
