"""Magnitude pruning with fine-tuning: a model most of whose weights are zero, and small when compressed.

The smallest weights of every kernel are set to zero, in steps that grow smaller as the share
approaches its goal (the cubic schedule of Zhu & Gupta 2017, "To prune, or not to prune"), and the
others are trained on, by the loop, loss and data of the last phase. Kernels keep their shape
and dtype: a pruned model runs no faster, and takes as much memory. What it is worth is its
*compressed* size, on a disk or on its way to a device.

Biases, normalisation, depthwise kernels and tiny tensors stay dense, as there: they are few
weights, each of which matters. What the last phase does not train is not pruned either, since
nothing could make up for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.config import TrainSection
from shared.contract import Phase, Source
from shared.errors import CasebookError
from shared.plan import ExecutionPlan

if TYPE_CHECKING:
    import keras

SMALLEST = 256
"""Weights of the smallest tensor that is pruned."""
RATE = 0.3
"""Fine-tuning's learning rate, as a share of the phase's."""
_DENSE = ("bias", "gamma", "beta", "moving_mean", "moving_variance")


def levels(share: float, epochs: int) -> list[float]:
    """Share of zeros in each epoch of fine-tuning; the last ones are at the goal.

    Half of the epochs (rounded down) lead up to it by ``share * (1 - (1 - t)^3)``.

    Source: Zhu & Gupta 2017, equation 1, with a pruning step an epoch.

    >>> [round(level, 3) for level in levels(0.8, 4)], levels(0.8, 1)
    ([0.563, 0.77, 0.8, 0.8], [0.8])
    """
    ramp = epochs // 2
    up = [share * (1 - (1 - step / (ramp + 1)) ** 3) for step in range(1, ramp + 1)]
    return up + [share] * (epochs - ramp)


class Masks:
    """Which weights of a model are held at zero.

    A mask is applied as the variable's ``constraint``, which Keras's optimizers call after every
    update; so any loop that steps by a Keras optimizer keeps them.

    Args:
        model: Its trainable kernels of at least :data:`SMALLEST` weights get masks, all open at
            first. Call within the strategy's scope.

    Raises:
        CasebookError: It has no such kernel.
    """

    def __init__(self, model: keras.Model) -> None:
        import tensorflow as tf

        self.kernels = [variable for variable in model.trainable_variables if prunable(variable)]
        if not self.kernels:
            raise CasebookError(
                f"it has no trainable kernel of at least {SMALLEST} weights that could be pruned"
            )
        self._masks = []
        for kernel in self.kernels:
            mask = tf.Variable(tf.ones(kernel.shape, kernel.dtype), trainable=False)
            kernel.constraint = lambda value, mask=mask: value * mask
            self._masks.append(mask)

    def close(self, share: float) -> None:
        """Closes the masks over the ``share`` of each kernel's weights that are smallest.

        The weights themselves become zero with the next update, or by :meth:`apply`. Weights
        that are zero already are the smallest, so what is closed stays closed as the share grows.
        """
        for kernel, mask in zip(self.kernels, self._masks, strict=True):
            size = np.abs(kernel.numpy()).ravel()
            closed = round(share * size.size)
            open_ = np.ones(size.size, np.float32)
            # By rank, not by a threshold: equal weights would all fall on one side of it.
            open_[np.argsort(size, kind="stable")[:closed]] = 0.0
            mask.assign(open_.reshape(kernel.shape))

    def apply(self) -> None:
        """Sets the weights under closed masks to zero."""
        for kernel, mask in zip(self.kernels, self._masks, strict=True):
            kernel.assign(kernel.numpy() * mask.numpy())

    def release(self) -> None:
        """Takes the masks off the model, which keeps its zeros."""
        for kernel in self.kernels:
            kernel.constraint = None


def prunable(variable: Any) -> bool:
    """Whether a trainable variable is a kernel worth pruning: large, and no vector of biases or scales."""
    if len(variable.shape) < 2 or variable.name in _DENSE or not str(variable.dtype).startswith("float"):
        return False
    if len(variable.shape) == 4 and variable.shape[-1] == 1 and min(variable.shape[:2]) > 1:
        return False  # a depthwise kernel [h, w, channels, 1]
    return bool(np.prod(variable.shape) >= SMALLEST)


def zeros(model: Any) -> tuple[int, int]:
    """How many of a model's weights are zero, and how many there are, normalisation's state included."""
    values = [np.asarray(variable.numpy()) for variable in model.weights]
    return sum(int((value == 0).sum()) for value in values), sum(value.size for value in values)


def fine_tune(
    strategy: Any,
    model: keras.Model,
    phase: Phase,
    train: Source,
    validation: Source | None,
    plan: ExecutionPlan,
    section: TrainSection,
    *,
    share: float,
    epochs: int,
    seed: int,
    label: str = "",
) -> dict[str, Any]:
    """Prunes ``model`` while it trains on, as :func:`levels` says; it ends with its best fully pruned weights.

    Args:
        phase: The last one; its loss, monitor and metrics are kept.
        share: Of each prunable kernel's weights that become zero.
        epochs: Of fine-tuning, those that lead up to the share included.

    Returns:
        ``zeros`` and ``weights`` (how many of how many), ``history`` (rows of both stages).

    Raises:
        CasebookError: Nothing can be pruned.
        TrainingError: As :func:`shared.training.loop.train_phase`.
    """
    from shared.training import checkpoint
    from shared.training.loop import train_phase

    with strategy.scope():
        masks = Masks(model)
    plan_of_levels = levels(share, epochs)
    ramp = [level for level in plan_of_levels if level < share]
    rate = (section.learning_rate or phase.learning_rate) * RATE
    settings = section.model_copy(update={"patience": 0, "learning_rate": rate, "check_precision": False})
    common: dict[str, Any] = {"plan": plan, "seed": seed, "label": label or f"pruning · {phase.name}"}
    history: list[Any] = []
    try:
        if ramp:
            masks.close(ramp[0])
            masks.apply()
            last: dict[str, np.ndarray] = {}

            def next_level(rows: Sequence[Any]) -> None:
                # The loop goes back to its best epoch, which is one with fewer zeros.
                last.update(checkpoint.values(model.variables))
                if len(rows) < len(ramp):
                    masks.close(ramp[len(rows)])

            result = train_phase(
                strategy, model, replace(phase, refines=False), train, validation,
                section=settings.model_copy(update={"epochs": len(ramp)}), on_epoch=next_level, **common,
            )  # fmt: skip
            history += result.history
            checkpoint.assign(model.variables, last, "the last epoch")
        masks.close(share)
        masks.apply()
        result = train_phase(
            strategy, model, replace(phase, refines=True), train, validation,
            section=settings.model_copy(update={"epochs": epochs - len(ramp)}), **common,
        )  # fmt: skip
        history += result.history
        masks.apply()
    finally:
        masks.release()
    found, count = zeros(model)
    return {"zeros": found, "weights": count, "history": history}
