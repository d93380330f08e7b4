"""Keras's callbacks in a loop that is not ``fit``: called at the same moments, kept over a resume.

Keras's own list of callbacks is driven by hand. Two things are added. What training has changed in
a callback (``wait`` of EarlyStopping, ``best`` of ModelCheckpoint) is data for a checkpoint, and is
put back after ``on_train_begin``, which would reset it. And what cannot work in this loop is told
before the first step, not after the first epoch.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from shared.errors import TrainingError
from shared.training.callback_state import TooLarge, decoded, encoded

log = logging.getLogger("casebook.training")

_SETS_THE_RATE = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
_RATE_REMEDY = (
    "Set train.schedule = constant and train.warmup_share = 0: the rate is a plain number then, which a "
    "callback may change."
)
_NOT_STATE = frozenset({"_model", "params", "_supports_tf_logs"})
_MISSING = object()


class Callbacks:
    """Callbacks of one training; with none, every call is free and the model is not compiled.

    Order of calls, as ``fit`` has it: ``begin``; for each epoch ``epoch_begin``, then ``step_begin``
    and ``step_end`` around every call into the graph, ``validation_begin`` and ``validation_end``,
    ``epoch_end``; at last ``end``. A training that is taken up in the midst of an epoch does not begin
    that epoch again: a LearningRateScheduler would count it twice.

    The weights that EarlyStopping keeps (``restore_best_weights``) go into no checkpoint, so it keeps
    none here: a warning says so, and the loop restores the best epoch by its own monitor.

    Args:
        callbacks: Instances, called in this order.
        model: Built; is compiled with ``optimizer`` and ``loss``, because callbacks look for them
            there (``model.optimizer``, ``model.save``). Its ``fit`` is never called.
        optimizer: Of the loop, loss scaling included; used as it is.
        loss: Of the loop.
        epochs: At most.
        steps: Of an epoch.

    Raises:
        TrainingError: A callback cannot work in this loop.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        loss: Callable[[Any, Any], Any],
        *,
        epochs: int,
        steps: int,
    ) -> None:
        self._callbacks = list(callbacks)
        self._model, self._optimizer = model, optimizer
        self._start: list[dict[str, Any]] = []
        self._too_large: set[str] = set()
        if not self._callbacks:
            return
        for callback in self._callbacks:
            _check(callback)
        with model.distribute_strategy.scope():
            # Without auto_scale_loss: it would put a second scaling around an optimizer without one.
            model.compile(optimizer=optimizer, loss=loss, auto_scale_loss=False, jit_compile=False)
        self._list = keras.callbacks.CallbackList(
            self._callbacks, add_history=False, model=model, epochs=epochs, steps=steps
        )
        # Where nobody listens, a step is not told: it would cost a thread's time each.
        self._hears_begin = self._any_overrides("on_train_batch_begin", "on_batch_begin")
        self._hears_end = self._any_overrides("on_train_batch_end", "on_batch_end")

    def begin(self, state: Mapping[str, Any] | None = None) -> None:
        """``on_train_begin``, and then what ``state`` of an earlier attempt says.

        Call it before a checkpoint's variables are assigned: what a callback does to model or optimizer
        when training begins is no part of a training that goes on. A CSVLogger appends, then.

        Raises:
            TrainingError: A callback sets the learning rate, which is a schedule.
        """
        if not self._callbacks:
            return
        self._check_rate()
        self._model.stop_training = False
        if state is not None:
            for callback in self._callbacks:
                if isinstance(callback, keras.callbacks.CSVLogger):
                    callback.append = True
        with _telling():
            self._list.on_train_begin()
        self._start = [self._plain(callback) for callback in self._callbacks]
        if state is not None:
            self._restore(state)

    def epoch_begin(self, epoch: int) -> None:
        """``epoch`` counts from 0, as Keras does."""
        if self._callbacks:
            with _telling():
                self._list.on_epoch_begin(epoch)

    def step_begin(self, step: int) -> None:
        """Before a call into the graph; ``step``: of its first step in the epoch, from 0."""
        if self._callbacks and self._hears_begin:
            with _telling():
                self._list.on_train_batch_begin(step)

    def step_end(self, step: int, logs: Mapping[str, float]) -> None:
        """After a call into the graph; ``step``: of its last step in the epoch, from 0."""
        if self._callbacks and self._hears_end:
            with _telling():
                self._list.on_train_batch_end(step, dict(logs))

    def validation_begin(self) -> None:
        if self._callbacks:
            with _telling():
                self._list.on_test_begin()

    def validation_end(self, logs: Mapping[str, float]) -> None:
        """``logs`` as ``evaluate`` names them: ``loss``, without ``val_``."""
        if self._callbacks:
            with _telling():
                self._list.on_test_end(dict(logs))

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """``logs`` as ``fit`` names them: ``loss``, ``val_loss``, ``learning_rate`` and so on."""
        if self._callbacks:
            with _telling():
                self._list.on_epoch_end(epoch, dict(logs))

    def end(self, logs: Mapping[str, float] | None = None) -> None:
        if self._callbacks:
            with _telling():
                self._list.on_train_end(None if logs is None else dict(logs))

    @property
    def stop(self) -> bool:
        """Whether a callback has asked for the end of training."""
        return bool(self._callbacks) and bool(self._model.stop_training)

    def state(self) -> dict[str, Any]:
        """What training has changed in the callbacks, as JSON-plain data; empty without callbacks.

        Of each its own attributes that are numbers, text, None, lists, dictionaries or small arrays
        of such, where they differ from those right after ``on_train_begin``. So a setting that
        is given anew (``patience``) holds in a training that goes on.
        """
        if not self._callbacks:
            return {}
        changed = []
        for callback, start in zip(self._callbacks, self._start, strict=True):
            now = self._plain(callback)
            different = {name: value for name, value in now.items() if start.get(name, _MISSING) != value}
            changed.append({"class": type(callback).__name__, "attributes": different})
        return {"callbacks": changed, "stop": self.stop}

    def _restore(self, state: Mapping[str, Any]) -> None:
        kept = list(state.get("callbacks", ()))
        names = [type(callback).__name__ for callback in self._callbacks]
        if [one["class"] for one in kept] != names:
            log.warning(
                "The callbacks were %s and are %s now: those at another place begin anew.",
                ", ".join(one["class"] for one in kept) or "none", ", ".join(names),
            )  # fmt: skip
        for callback, name, one in zip(self._callbacks, names, kept, strict=False):
            if one["class"] == name:
                for attribute, value in one["attributes"].items():
                    setattr(callback, attribute, decoded(value))
        self._model.stop_training = bool(state.get("stop", False))

    def _plain(self, callback: keras.callbacks.Callback) -> dict[str, Any]:
        found = {}
        for name, value in vars(callback).items():
            if name in _NOT_STATE or (name == "min_delta" and hasattr(callback, "monitor_op")):
                continue  # Keras turns min_delta's sign when it learns its direction: not twice, please
            try:
                found[name] = encoded(value)
            except TooLarge:
                self._tell_too_large(callback, name)
            except TypeError:
                continue  # a file, a function, a tensor: made anew by the callback itself
        return found

    def _tell_too_large(self, callback: keras.callbacks.Callback, attribute: str) -> None:
        name = f"{type(callback).__name__}.{attribute}"
        if name not in self._too_large:
            self._too_large.add(name)
            log.warning("%s is too large for a checkpoint: a resumed training begins without it.", name)

    def _check_rate(self) -> None:
        setters = [callback for callback in self._callbacks if isinstance(callback, _SETS_THE_RATE)]
        if not setters:
            return
        try:
            # To what it is: the very assignment that would fail after an epoch.
            self._optimizer.learning_rate = float(keras.ops.convert_to_numpy(self._optimizer.learning_rate))
        except TypeError as error:
            raise TrainingError(
                f"{type(setters[0]).__name__} changes the learning rate, which follows a schedule here.",
                _RATE_REMEDY,
            ) from error

    def _any_overrides(self, *names: str) -> bool:
        plain = keras.callbacks.Callback
        return any(
            name in vars(callback) or getattr(type(callback), name) is not getattr(plain, name)
            for callback in self._callbacks
            for name in names
        )


def _check(callback: keras.callbacks.Callback) -> None:
    if not isinstance(callback, keras.callbacks.Callback):
        raise TrainingError(
            f"Expected a keras.callbacks.Callback, received {callback!r}.",
            "Pass instances, not classes or functions; keras.callbacks.LambdaCallback takes functions.",
        )
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise TrainingError(
            "BackupAndRestore would load weights over those of this loop's own checkpoints.",
            "Leave it out: this loop resumes by itself, to the very step.",
        )
    if isinstance(callback, keras.callbacks.TensorBoard) and importlib.util.find_spec("tensorboard") is None:
        raise TrainingError(
            "keras.callbacks.TensorBoard needs the package tensorboard, which is not installed.",
            "`pip install tensorboard`; or set run.tensorboard = true, which writes its files without it.",
        )
    if isinstance(callback, keras.callbacks.EarlyStopping) and callback.restore_best_weights:
        log.warning(
            "EarlyStopping keeps no weights here: the loop itself ends with those of its best epoch, "
            "by the phase's monitor."
        )
        callback.restore_best_weights = False


@contextmanager
def _telling() -> Iterator[None]:
    """A callback that sets a rate that is a schedule: said with its remedy."""
    try:
        yield
    except TypeError as error:
        if "LearningRateSchedule" not in str(error):
            raise
        raise TrainingError(
            "A callback changes the learning rate, which follows a schedule here.", _RATE_REMEDY
        ) from error
