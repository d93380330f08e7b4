"""What a person hands to ``fit``, looked at before the device is taken: functions, where functions are meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from shared import input_pipeline
from shared.contract import Source
from shared.errors import InputError


def check(
    model_fn: Any,
    data_fn: Any,
    *,
    loss: Any,
    epochs: Any,
    validation_fn: Any = None,
    metrics: Any = None,
    callbacks: Any = (),
) -> None:
    """Refuses what can only fail later, in the midst of a graph.

    Args:
        model_fn, data_fn, loss, epochs, validation_fn, metrics, callbacks: As of
            :func:`shared.training.fit`.

    Raises:
        InputError: Names the argument, what was expected and what was received.
    """
    if isinstance(model_fn, keras.Model) or not callable(model_fn):
        raise _expected("model_fn", "a function that returns a new Keras model", model_fn)
    for name, given in (("data_fn", data_fn), ("validation_fn", validation_fn)):
        if given is not None and not callable(given):
            raise _expected(name, "a function that returns a tf.data set", given)
    if not callable(loss):
        raise _expected(
            "loss", "a function of (y_true, y_pred)", loss, "keras.losses.mean_squared_error is one."
        )
    if isinstance(epochs, bool) or not isinstance(epochs, Integral) or epochs < 1:
        raise _expected("epochs", "a whole number of at least 1", epochs, "Give at least one epoch.")
    if not isinstance(callbacks, Sequence):
        raise _expected("callbacks", "a list of Keras callbacks", callbacks, "Put it into a list.")
    if not isinstance(metrics, Mapping | None):
        raise _expected("metrics", "a dictionary of name to factory", metrics, _METRICS)
    for name, make in (metrics or {}).items():
        if isinstance(make, keras.metrics.Metric) or not callable(make):
            raise _expected(f"metrics[{name!r}]", "a factory of a keras.metrics.Metric", make, _METRICS)


def model_of(model_fn: Callable[[], Any]) -> keras.Model:
    """What ``model_fn`` returns.

    Raises:
        InputError: It is no Keras model.
    """
    model = model_fn()
    if not isinstance(model, keras.Model):
        raise InputError(
            f"model_fn must return a Keras model, received {type(model).__name__}.",
            "Is there a `return` missing?" if model is None else "Return a keras.Model.",
        )
    return model


def try_on(model: keras.Model, source: Source) -> None:
    """Shows the model an example's shapes: what does not fit is told in Keras's words alone.

    In the midst of the training's graph the same error has a screen of AutoGraph's around it. Call it
    in the strategy's scope; a model that is not built yet may be built by it.

    Raises:
        InputError: The model does not take such examples, or gives several outputs.
    """
    x = input_pipeline.first_example(source)[0]
    try:
        said = model(tf.nest.map_structure(_symbol, x))
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        raise InputError(
            f"The model does not take the examples that data_fn gives: {_keras_words(error)}",
            "Give single examples, without a batch axis, of the shape and the names of its keras.Input.",
        ) from error
    if isinstance(said, Mapping | list | tuple):
        raise InputError(
            f"The model gives {len(said)} outputs; the loop trains one.",
            "Put what belongs together into one output, with keras.layers.Concatenate, or train one model each.",
        )
    if not isinstance(said, keras.KerasTensor):
        raise InputError(
            f"The model must give one tensor, received {type(said).__name__}.",
            "Is there a `return` missing in its call?",
        )


def folder(checkpoints: Path | str) -> Path:
    """The folder of checkpoints, made now: the first is written when an epoch is over.

    Raises:
        InputError: It cannot be made, or is a file.
    """
    path = Path(checkpoints)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder of checkpoints {path} cannot be made: {error.strerror}.", "Name another one."
        ) from error
    return path


def _symbol(part: Any) -> keras.KerasTensor:
    return keras.KerasTensor((1, *part.shape), tf.as_dtype(part.dtype).name)


def _keras_words(error: Exception) -> str:
    """Its sentence, without the frame around it: which layer was called with which arguments."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    text = re.sub(r"^Exception encountered when calling .*\n", "", text).split("\nArguments received by")[0]
    return " ".join(text.split())[:600]


_METRICS = 'As in metrics={"MAE": keras.metrics.MeanAbsoluteError}: the class, not an instance.'


def _expected(
    name: str,
    what: str,
    received: Any,
    remedy: str = "Pass the function itself, or put a `lambda:` before it.",
) -> InputError:
    shown = repr(received) if isinstance(received, str | int | float) else type(received).__name__
    return InputError(f"{name} must be {what}, received {shown}.", remedy)
