"""Watching a training: has it become better, should it stop, are its numbers still sound."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from shared.errors import TrainingError


@dataclass
class Monitor:
    """Early stopping on one number an epoch. Its fields are its whole state.

    Attributes:
        name: Of the number, for messages.
        mode: Whether smaller or larger is better.
        patience: Epochs without a better number before stopping; 0: never stop.
        best: The best number so far; None before the first finite one.
        best_epoch: Its epoch, from 1; 0 before.
        waited: Epochs since.
    """

    name: str
    mode: Literal["min", "max"] = "min"
    patience: int = 5
    best: float | None = None
    best_epoch: int = 0
    waited: int = 0

    def update(self, epoch: int, value: float) -> bool:
        """Takes the number of ``epoch`` (from 1); True where it is the best so far.

        A NaN (an AUROC of one class) is never better, and counts as waiting.
        """
        if math.isnan(value) or not self._better(value):
            self.waited += 1
            return False
        self.best, self.best_epoch, self.waited = value, epoch, 0
        return True

    def _better(self, value: float) -> bool:
        if self.best is None:
            return True
        return value < self.best if self.mode == "min" else value > self.best

    @property
    def stop(self) -> bool:
        return self.patience > 0 and self.waited >= self.patience

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def first_unsound(variables: Iterable[Any]) -> tuple[str, int, int] | None:
    """The first variable that holds NaN or Inf: (path, how many values, of how many), or None."""
    for variable in variables:
        values = np.asarray(variable.numpy())
        if values.dtype.kind not in "fV":
            continue
        bad = int((~np.isfinite(values.astype(np.float32))).sum())
        if bad:
            return variable.path, bad, values.size
    return None


def require_sound(loss: float, variables: Iterable[Any], where: str) -> None:
    """Stops a training whose loss or weights are NaN or Inf.

    Weights can be NaN while the loss reads well (tensorflow#24320), so both are looked at.

    Args:
        loss: Mean loss since the last look.
        variables: The model's.
        where: For the message, e.g. ``"phase head, epoch 3, step 12"``.

    Raises:
        TrainingError: Names the place and the first unsound variable.
    """
    fine = math.isfinite(loss)
    found = first_unsound(variables)
    if fine and found is None:
        return
    what = (
        f"the loss became {loss}"
        if not fine
        else f"the weights became unsound while the loss read {loss:.4g}"
    )
    which = (
        f"the first variable that holds NaN or Inf is {found[0]} ({found[1]} of {found[2]} values)"
        if found
        else "no variable holds NaN or Inf"
    )
    raise TrainingError(
        f"Training stopped in {where}: {what}; {which}.",
        "Lower the learning rate, look for NaN or extreme values in the data, or train in float32. "
        "The last good checkpoint is kept.",
    )
