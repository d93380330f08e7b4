"""Is a model trained in 16 bits still the model of float32: its first steps beside those of a float32 twin.

Sixteen bits fail in ways that no NaN betrays: an offset whose signal is rounded away, a small
constant that becomes zero, a sum that stops growing. What such a failure does is to take the
training down another path. So both take the same few steps, from the same weights, on the same
batches with the same random masks, and the paths of their losses are compared.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from shared.training.twin import float32_twin, in_sixteen

__all__ = ["PathCheck", "compare", "float32_twin"]

CONTROLS = 2
LEAST, TIMES = 0.02, 20.0
"""A gap up to TIMES the larger control's, and up to LEAST in any case, is rounding's.

By experiment on a CPU, since no fixed tolerance is right for all models. In 265 checks of sound ones (MLP, tanh
MLP of nine layers, CNN with batch normalisation, LSTM, attention, EfficientNetB0; bfloat16 and float16; rates 1e-4
to 0.1; fresh and trained; eight steps of Adam, some thirty) the gap lay between 3e-05 and 0.51, most where the
rate was too high, and 0.17 already for EfficientNetB0 on pictures of 32 pixels at 1e-3. Its ratio to the control's
gap was at most 11 at rates up to 1e-2. One check was flagged: an LSTM in bfloat16 at rate 0.1, batch 8 (gap 0.06,
ratio 39): the control rounds the weights once, an LSTM its state in every step of time.

Planted trouble gave NaN (1e-8 beside a deviation of 0, sums and squares above 65504), or gaps of 0.03 to 0.16 and
ratios of 26 to 800: an offset of 1000 on a signal of 1 and kelvins before batch normalisation in bfloat16,
positions up to 20000 in a sine, probabilities or logarithms in 16 bits. Half a digit lost (an offset of 100 in
bfloat16: a gap of 0.01 to 0.03) is at the edge."""


@dataclass(frozen=True)
class PathCheck:
    """Two paths of the loss, in 16 bits and in float32.

    Attributes:
        mixed, full: Mean loss of each step's batch.
        gap: Root mean square of their difference, in units of that of ``full``; infinite where only
            ``mixed`` is not finite.
        diverged: Whether that is more than rounding explains.
        sentence: The verdict in plain words.
        explained: The gap that rounding explains, see :func:`compare`.
    """

    mixed: tuple[float, ...]
    full: tuple[float, ...]
    gap: float
    diverged: bool
    sentence: str
    explained: float = 0.0


def compare(stepper: Any, twin_stepper: Any, batches: tf.data.Dataset, steps: int = 8) -> PathCheck:
    """Takes the same steps in 16 bits and in float32, and judges whether the losses went the same way.

    How far rounding alone may part them depends on the model, on how low its loss is and on the
    rate: so it is measured. The twin goes twice more, from weights that are off by as much as 16 bits
    round them (a relative error uniform up to the unit roundoff), and so shows what becomes of errors
    of that size. :data:`TIMES` as much, and :data:`LEAST` in any case, is explained by rounding.

    Args:
        stepper, twin_stepper: Of the model and of its :func:`float32_twin`, made for this check: neither
            has stepped yet, since random masks are made equal while the steps are traced, and the
            training's own graph shall not have that. Both models are trained; restore them after.
        batches: Global batches ``(x, y, weight)``, the same whenever it is read.
        steps: Updates to compare. A step that loss scaling skips is skipped by the twin too and
            doesn't count, as long as there are not more skipped than ``steps``.

    Returns:
        ``diverged`` where ``mixed`` has a loss that is not finite and ``full`` has none, where loss
        scaling skipped every step, or where ``gap`` is larger than explained.
    """
    with _same_draws():
        mixed, updated = _path(stepper, batches, steps)
        variables = [*twin_stepper.model.variables, *twin_stepper.optimizer.variables]
        start = [variable.numpy() for variable in variables]
        full, _ = _path(twin_stepper, batches, steps, updated)
        controls = []
        for seed in range(CONTROLS):
            _restore(variables, start)
            _disturb(twin_stepper.model.trainable_variables, _roundoff(stepper.model), seed)
            controls.append(_path(twin_stepper, batches, steps, updated)[0])
    return _judged(mixed, full, controls, sum(updated))


def _path(
    stepper: Any, batches: tf.data.Dataset, steps: int, given: Sequence[bool] | None = None
) -> tuple[list[float], list[bool]]:
    """Losses, and which steps were updates; ``given`` says which shall be."""
    losses: list[float] = []
    updated: list[bool] = []
    iterator = stepper.iterate(batches)
    while sum(updated) < steps and len(losses) < 2 * steps if given is None else len(losses) < len(given):
        before = _updates(stepper)
        try:
            sums = _step(stepper, iterator, given is None or given[len(losses)])
        except tf.errors.OutOfRangeError:
            break
        losses.append(sums[0] / sums[1] if sums[1] else 0.0)
        updated.append(_updates(stepper) > before)
        if not math.isfinite(losses[-1]):
            break
    return losses, updated


def _updates(stepper: Any) -> int:
    return int(stepper.optimizer.iterations.numpy())


def _step(stepper: Any, iterator: Any, update: bool) -> tuple[float, float]:
    """One step; without its update, only random state and moving statistics go on."""
    if update:
        return stepper.run(iterator, 1)
    moved = [*stepper.model.trainable_variables, *stepper.optimizer.variables]
    before = [variable.numpy() for variable in moved]
    sums = stepper.run(iterator, 1)
    _restore(moved, before)
    return sums


def _restore(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _roundoff(model: keras.Model) -> float:
    return 2.0**-8 if "bfloat16" in in_sixteen(model).values() else 2.0**-11


def _disturb(variables: Iterable[Any], size: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for variable in variables:
        value = variable.numpy()
        variable.assign(value * (1 + rng.uniform(-size, size, value.shape)).astype(value.dtype))


def _judged(mixed: list[float], full: list[float], controls: list[list[float]], taken: int) -> PathCheck:
    def check(gap: float, diverged: bool, sentence: str, explained: float = 0.0) -> PathCheck:
        return PathCheck(tuple(mixed), tuple(full), gap, diverged, sentence, explained)

    number = len(mixed)
    if not number:
        return check(0.0, False, "There was no batch to compare precisions on.")
    if not math.isfinite(full[-1]):
        return check(
            0.0, False, f"In float32 too the loss became {full[-1]} in step {len(full)}: precision isn't why."
        )
    if not math.isfinite(mixed[-1]):
        words = f"In 16 bits the loss became {mixed[-1]} in step {number}; in float32 it was {full[-1]:.4g} there."
        return check(math.inf, True, words)
    gap = _distance(mixed, full)
    explained = max(LEAST, TIMES * max(_distance(control, full) for control in controls))
    if not taken:
        words = (
            f"In 16 bits the gradients overflowed in each of {number} steps, though the loss was scaled down."
        )
        return check(gap, True, words, explained)
    shown = (
        f"after {number} steps it is {mixed[-1]:.4g} in 16 bits and {full[-1]:.4g} in float32, "
        f"a gap of {gap:.1%} over the path, where rounding explains {explained:.1%}"
    )
    if gap > explained:
        return check(gap, True, f"The loss takes another path than in float32: {shown}.", explained)
    return check(gap, False, f"The loss takes the path of float32: {shown}.", explained)


def _distance(path: Sequence[float], full: Sequence[float]) -> float:
    """Relative root mean square; a path that broke off is infinitely far."""
    if len(path) != len(full) or not np.isfinite(path).all():
        return math.inf
    difference = float(np.sqrt(np.mean(np.subtract(path, full) ** 2)))
    size = float(np.sqrt(np.mean(np.square(full))))
    return difference / size if size else difference and math.inf


@contextmanager
def _same_draws() -> Iterator[None]:
    """Random numbers that are drawn in 16 bits meanwhile are drawn in float32 and rounded.

    The bits of a generator become other numbers in other dtypes, so the twin's dropout masks would
    be others; that alone parts the paths by some 10%. Keras draws by these functions.
    """

    def rounded(draw: Any) -> Any:
        @functools.wraps(draw)
        def drawn(*args: Any, dtype: Any = tf.float32, **kwargs: Any) -> Any:
            if dtype not in _SIXTEEN:
                return draw(*args, dtype=dtype, **kwargs)
            exact = {k: tf.cast(v, tf.float32) if _is_half(v) else v for k, v in kwargs.items()}
            return tf.cast(draw(*args, dtype=tf.float32, **exact), dtype)

        return drawn

    def dropped(x: Any, *args: Any, **kwargs: Any) -> Any:
        if x.dtype not in _SIXTEEN:
            return dropout(x, *args, **kwargs)
        return tf.cast(dropout(tf.cast(x, tf.float32), *args, **kwargs), x.dtype)

    dropout = tf.nn.experimental.stateless_dropout
    names = ("stateless_normal", "stateless_uniform", "stateless_truncated_normal")
    plain = {name: getattr(tf.random, name) for name in names}
    tf.nn.experimental.stateless_dropout = dropped
    for name, draw in plain.items():
        setattr(tf.random, name, rounded(draw))
    try:
        yield
    finally:
        tf.nn.experimental.stateless_dropout = dropout
        for name, draw in plain.items():
            setattr(tf.random, name, draw)


_SIXTEEN = ("float16", "bfloat16", tf.float16, tf.bfloat16)


def _is_half(value: Any) -> bool:
    return getattr(value, "dtype", None) in (tf.float16, tf.bfloat16)
