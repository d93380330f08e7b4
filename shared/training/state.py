"""Where a phase of training stands: all that its next step depends on, and its way into a checkpoint.

Weights, seed generators and optimizer are the model's and the optimizer's variables; here is the
rest: the place in the data, the sums of the running epoch, early stopping, history, best weights.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shared.training import checkpoint
from shared.training.checkpoint import Checkpoint
from shared.training.monitor import Monitor

log = logging.getLogger("casebook.training")

Row = dict[str, Any]
"""One epoch: phase, epoch, loss, val_loss, val_<metric>, lr, seconds, samples_per_second, input_bound_share,
and what was sampled of host and device. A row with ``kind`` "step" is the running loss in between."""


@dataclass
class State:
    """See the module.

    Attributes:
        monitor: Early stopping.
        epoch: Finished epochs.
        step: Finished steps of the current one.
        loss, weight: Sums over the finished steps of the current epoch.
        seconds: Spent on them.
        skipped: Steps of the current epoch that loss scaling skipped.
        history: A row an epoch, and those of steps in between.
        best: Weights of the best epoch by variable path; None before there is one.
        halted: A callback has ended the training.
        callbacks: State of the person's Keras callbacks.
        notes: Sentences for the person, see ``PhaseResult``.
    """

    monitor: Monitor
    epoch: int = 0
    step: int = 0
    loss: float = 0.0
    weight: float = 0.0
    seconds: float = 0.0
    skipped: int = 0
    history: list[Row] = field(default_factory=list)
    best: dict[str, np.ndarray] | None = None
    halted: bool = False
    callbacks: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def mean_loss(self) -> float:
        return self.loss / self.weight if self.weight else 0.0

    @property
    def epochs(self) -> list[Row]:
        """The rows of finished epochs."""
        return [row for row in self.history if row.get("kind") != "step"]

    @property
    def last(self) -> Row | None:
        """The row of the last finished epoch."""
        return next((row for row in reversed(self.history) if row.get("kind") != "step"), None)

    def next_epoch(self) -> None:
        self.epoch += 1
        self.step, self.skipped = 0, 0
        self.loss, self.weight, self.seconds = 0.0, 0.0, 0.0

    def moment(self, model: Any, optimizer: Any, **fixed: Any) -> Checkpoint:
        """A copy of all of it, with model and optimizer.

        Args:
            fixed: What must not have changed at a resume (seed), or is worth a warning (batch, threads).
        """
        groups = {
            "model": checkpoint.values(model.variables),
            "optimizer": checkpoint.values(optimizer.variables),
        }
        if self.best is not None and not (self.step == 0 and self.monitor.best_epoch == self.epoch):
            groups["best"] = self.best  # otherwise the model itself is the best
        plain = {
            name: value for name, value in vars(self).items() if name not in ("monitor", "history", "best")
        }
        meta = {
            **plain,
            **fixed,
            "monitor": self.monitor.to_dict(),
            "history": [dict(r) for r in self.history],
        }
        return Checkpoint(groups, meta)

    @classmethod
    def at(cls, moment: Checkpoint, *, patience: int) -> State:
        """The state of a moment; the patience is today's."""
        meta = moment.meta
        plain = {name: meta[name] for name in cls.__dataclass_fields__ if name in meta}
        monitor = Monitor(**{**meta["monitor"], "patience": patience})
        state = cls(**{**plain, "monitor": monitor, "history": [dict(row) for row in meta["history"]]})
        if monitor.best is not None:
            state.best = dict(moment.groups.get("best", moment.groups["model"]))
        return state

    def moved_to(self, old: int, new: int, steps: int) -> State:
        """The same place in the data, where the batch was ``old`` and is ``new`` examples now."""
        return replace(self, step=min(steps, self.step * old // new))


def put_back(moment: Checkpoint, model: Any, optimizer: Any) -> None:
    """Sets model and optimizer to the moment's.

    Raises:
        CasebookError: They belong to another model.
    """
    checkpoint.assign(model.variables, moment.groups["model"], "The checkpoint")
    checkpoint.assign(optimizer.variables, moment.groups["optimizer"], "The checkpoint")
