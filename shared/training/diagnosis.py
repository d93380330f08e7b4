"""NaN or Inf was seen: where does it come from?

A loop looks at its numbers now and then, and afterwards every weight may be NaN. So the steps since
the last good moment are taken again, one by one, up to the first after which something isn't finite;
then that step's batch is looked at outside the graph: input, layers, loss, gradients, update.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from shared.training import crew
from shared.training.eager_look import look, unsound
from shared.training.monitor import first_unsound
from shared.training.replica_seeds import as_replica

log = logging.getLogger("casebook.training")


def diagnose(
    stepper: Any,
    restore: Callable[[], None],
    batches: Callable[[], tf.data.Dataset],
    steps: int,
    *,
    seconds: float = 60.0,
) -> str:
    """Names the step and the first thing in it that is not finite, in a sentence or two.

    Model and optimizer are restored when it returns, however it ends.

    Args:
        stepper: A :class:`shared.training.step.Stepper`.
        restore: Puts model and optimizer back to the last good moment.
        batches: The global batches ``(x, y, weight)`` since then, in order.
        steps: How many were taken.
        seconds: Limit, looked at between steps; half of it is for finding the step.
    """
    try:
        return _Replay(stepper, restore, batches, steps, time.monotonic(), seconds).find()
    except Exception as error:  # the one who asks is about to report an error: this must not hide it
        log.debug("Diagnosis failed.", exc_info=True)
        return f"Where it comes from could not be found: {type(error).__name__}: {str(error).strip()}"
    finally:
        restore()


@dataclass
class _Replay:
    stepper: Any
    restore: Callable[[], None]
    batches: Callable[[], tf.data.Dataset]
    steps: int
    started: float
    seconds: float
    loss: float = field(default=0.0, init=False)
    changed: str = field(default="", init=False)
    none_found: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.crew = crew.of(self.stepper.strategy)

    def find(self) -> str:
        self.restore()
        already = first_unsound(self.variables())
        if already:
            path, bad, size = already
            return f"The last good moment itself holds NaN or Inf in '{path}' ({bad} of {size} values)."
        step = self.first_unsound_step()
        if step is None:
            return self.none_found
        found = self.look_at(step)
        return f"In step {step} since the last checkpoint, {found}."

    def variables(self) -> list[Any]:
        return [*self.stepper.model.variables, *self.stepper.optimizer.variables]

    def first_unsound_step(self) -> int | None:
        """Takes the steps one by one; from 1."""
        iterator = self.stepper.iterate(self.batches())
        for step in range(1, self.steps + 1):
            try:
                taken = self.stepper.take(iterator, 1)
            except tf.errors.OutOfRangeError:
                self.none_found = (
                    f"The batches ended after {step - 1} of {self.steps} steps, all of them sound."
                )
                return None
            self.loss = taken.loss / taken.weight if taken.weight else taken.loss
            self.changed = self.what_became_unsound()
            # Gradients that overflow when they are scaled only lower the scale.
            if not math.isfinite(taken.loss) or self.changed or (taken.unsound and self.loss_scale() is None):
                return step
            if self.late() and step < self.steps:
                self.none_found = (
                    f"Where it comes from was not found: in {self.seconds:.0f} s, {step} of {self.steps} steps since "
                    "the last checkpoint were taken again, and all were sound."
                )
                return None
        self.none_found = (
            f"All {self.steps} steps since the last checkpoint were taken again, and this time all were sound: "
            "look for something random in the data or the model that is not seeded, or for failing hardware."
        )
        return None

    def late(self) -> bool:
        """Half of the time is over, by the chief's clock: a worker that stops alone leaves the others waiting."""
        return bool(self.crew.agree(time.monotonic() - self.started > self.seconds / 2))

    def what_became_unsound(self) -> str:
        model, optimizer = self.stepper.model, self.stepper.optimizer
        scale = self.loss_scale()
        if scale is not None and scale <= 1:
            return f"the loss scale has fallen to {scale:g}: gradients stay unsound at any scale"
        found = first_unsound(_only_unsound(self.variables()))
        if found is None:
            return ""
        path, bad, size = found
        trainable = {variable.path for variable in model.trainable_variables}
        if path in trainable:
            what = f"weight '{path}'"
        elif path in {variable.path for variable in model.variables}:
            what = f"statistic '{path}'{_owner(model, path)}"
        else:
            what = f"optimizer's '{path}' ({type(optimizer).__name__})"
        return f"the update made the {what} unsound ({bad} of {size} values)"

    def loss_scale(self) -> float | None:
        scale = getattr(self.stepper.optimizer, "dynamic_scale", None)
        return None if scale is None else float(scale.numpy())

    def look_at(self, step: int) -> str:
        """What is wrong in this step, in words that follow "In step 3, "."""
        self.restore()
        iterator = self.stepper.iterate(self.batches())
        if step > 1:
            self.stepper.run(iterator, step - 1)
        shares = self.shares(next(iterator))
        found = self.first_of_all(self.in_shares(shares))
        if not found:
            found = (
                f"{self.changed}, while input, layers, loss and gradients are finite"
                if self.changed
                else f"the loss is {self.loss:g} and the gradients are not finite in the compiled step, while outside "
                "the graph all is: there XLA, the sum over replicas or other random numbers make the difference"
            )
        empty = [str(index) for index, share in enumerate(shares) if len(share[2]) == 0]
        if empty:
            found += f"; of this batch, replica {' and '.join(empty)} had no example"
        return found

    def in_shares(self, shares: list[Any]) -> str:
        """What is wrong in this process's part of the batch; empty where nothing is."""
        try:
            found = _unsound_input(shares) or self.in_a_pass(shares) or ""
        except Exception as error:  # too little memory for a pass outside the graph, say
            log.debug("A closer look failed.", exc_info=True)
            found = f"{self.changed or 'loss or gradients became unsound'}; a closer look failed ({error})"
        return found + (f"; so on worker {self.crew.index}" if found and self.crew.size > 1 else "")

    def first_of_all(self, found: str) -> str:
        """What the first worker found that found something: the cause may lie in one worker's part alone."""
        return next((words for words in self.crew.all_say(found) if words), "")

    def shares(self, batch: Any) -> list[Any]:
        """``(x, y, weight)`` of each replica of this process."""
        local = self.stepper.strategy.experimental_local_results
        leaves = [local(leaf) for leaf in keras.tree.flatten(batch)]
        return [
            keras.tree.pack_sequence_as(batch, [leaf[r] for leaf in leaves]) for r in range(len(leaves[0]))
        ]

    def in_a_pass(self, shares: list[Any]) -> str | None:
        total = tf.reduce_sum(tf.concat([weight for _, _, weight in shares], axis=0))
        model = self.stepper.model
        if any(getattr(layer, "synchronized", False) for layer in model._flatten_layers()):
            # Its statistics are those of the global batch, so only together the shares are as in the step.
            shares = [keras.tree.map_structure(lambda *parts: tf.concat(parts, axis=0), *shares)]
        scale = self.loss_scale()
        state = [variable.numpy() for variable in model.non_trainable_variables]
        for replica, share in enumerate(shares):
            for variable, value in zip(model.non_trainable_variables, state, strict=True):
                variable.assign(value)
            with as_replica(self.crew.index * self.crew.replicas + replica):
                for number, (x, y, weight) in enumerate(self.micro_batches(share)):
                    # An overflow in scaled gradients only lowers the scale.
                    found = look(self.stepper, x, y, weight, total, gradients=scale is None or scale <= 2)
                    if found:
                        return found + self.place(len(shares), replica, number)
        return None

    def micro_batches(self, share: Any) -> Iterator[Any]:
        parts = self.stepper.accumulation
        size = len(share[2]) // parts
        for index in range(parts):
            yield keras.tree.map_structure(
                lambda t, i=index: t[i * size : (i + 1) * size] if parts > 1 else t, share
            )

    def place(self, shares: int, replica: int, number: int) -> str:
        words = f"; so on replica {replica}" if shares > 1 else ""
        return words + (f"; so in micro-batch {number}" if self.stepper.accumulation > 1 else "")


def _only_unsound(variables: list[Any]) -> Iterator[Any]:
    """Only the variables that are unsound, found on the device, without copying the others."""
    for variable in variables:
        value = tf.convert_to_tensor(variable.value)
        if value.dtype.is_floating and unsound([value])[0]:
            yield variable


def _owner(model: keras.Model, path: str) -> str:
    owners = [layer for layer in model._flatten_layers() if path in {v.path for v in layer.variables}]
    return f" of layer '{owners[-1].name}' ({type(owners[-1]).__name__})" if owners else ""


def _unsound_input(shares: list[Any]) -> str | None:
    """The first component of the batch that is not finite; a y whose weight is 0 doesn't count."""
    batch = [keras.tree.map_structure(np.asarray, share) for share in shares]
    whole = keras.tree.map_structure(lambda *parts: np.concatenate(parts), *batch)
    weight = whole[2]
    for path, values in keras.tree.flatten_with_path(whole):
        if values.dtype.kind not in "fV":
            continue
        wrong = ~np.isfinite(values.astype(np.float32) if values.dtype.kind == "V" else values)
        if path[0] == 1:
            wrong[weight == 0] = False
        if not wrong.any():
            continue
        name = ("x", "y", "weight")[path[0]] + "".join(f"[{key!r}]" for key in path[1:])
        example, *index = (int(i) for i in np.argwhere(wrong)[0])
        inside = f" at {index}" if index else ""
        return (
            f"the input itself is unsound: {name} has {int(wrong.sum())} of {wrong.size} values that are NaN or Inf, "
            f"the first in example {example} of the batch{inside} (counted from 0)"
        )
    return None
