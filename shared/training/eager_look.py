"""One forward and backward pass outside the graph, looked at layer by layer: where do numbers cease to be finite?"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from shared.training.step import without_padding


@dataclass
class Call:
    """One call of a layer, or of an operation of ``keras.ops`` inside a functional model.

    Attributes:
        names: From the model's down to its own.
        inputs, outputs: Its floating-point tensors.
    """

    operation: Any
    names: tuple[str, ...]
    inputs: list[Any]
    outputs: list[Any]

    @property
    def name(self) -> str:
        kind = "layer" if isinstance(self.operation, keras.layers.Layer) else "operation"
        kind = "model" if isinstance(self.operation, keras.Model) else kind
        path = "/".join(self.names[1:]) or self.names[0]
        return f"{kind} '{path}' ({type(self.operation).__name__})"

    def holds(self, other: Call) -> bool:
        return len(other.names) > len(self.names) and other.names[: len(self.names)] == self.names


def look(stepper: Any, x: Any, y: Any, weight: Any, total: Any, *, gradients: bool = True) -> str | None:
    """The first thing that is not finite in a training step over these examples, in words; None if nothing.

    In the order in which it happens: a layer's output, a penalty, the loss, a gradient. The model's moving
    statistics and random state go on as in a step; nothing else changes.

    Args:
        stepper: A :class:`shared.training.step.Stepper`.
        x, y, weight: Examples of one replica; their own numbers are sound.
        total: Sum of the weights of the global batch.
        gradients: Whether gradients are looked at.
    """
    calls: list[Call] = []
    y = without_padding(y, weight)
    with tf.GradientTape(persistent=True) as tape:
        with _recorded(calls):
            prediction = stepper.model(x, training=True)
        found = _in_layers(calls)
        if found:
            return found
        losses = stepper.example_losses(y, prediction)
        objective = tf.math.divide_no_nan(tf.reduce_sum(tf.where(weight > 0, losses * weight, 0.0)), total)
        for penalty in stepper.model.losses:
            objective += tf.cast(tf.reduce_sum(penalty), tf.float32)
        scaled = stepper.optimizer.scale_loss(objective)
    found = _in_loss(stepper.model, prediction, losses, weight, objective)
    if found or not gradients:
        return found
    return _in_gradients(tape, scaled, stepper.model, calls, prediction)


def unsound(tensors: Sequence[Any]) -> tuple[int, int]:
    """How many values are NaN or Inf, of how many."""
    bad = sum(int(tf.math.count_nonzero(~tf.math.is_finite(tensor))) for tensor in tensors)
    return bad, sum(int(tf.size(tensor)) for tensor in tensors)


@contextmanager
def _recorded(calls: list[Call]) -> Iterator[None]:
    """Records every call of a layer in this thread, the inner before the outer."""
    thread, names = threading.get_ident(), list[str]()

    def recording(plain: Callable[..., Any], layers: bool) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(operation: Any, *args: Any, **kwargs: Any) -> Any:
            # A layer's call goes on to the operation's: once is enough.
            if threading.get_ident() != thread or isinstance(operation, keras.layers.Layer) != layers:
                return plain(operation, *args, **kwargs)
            names.append(operation.name)
            path = tuple(names)
            try:
                outputs = plain(operation, *args, **kwargs)
            finally:
                names.pop()
            calls.append(Call(operation, path, _floats((args, kwargs)), _floats(outputs)))
            return outputs

        return call

    plain_layer, plain_operation = keras.layers.Layer.__call__, keras.Operation.__call__
    keras.layers.Layer.__call__ = recording(plain_layer, True)
    keras.Operation.__call__ = recording(plain_operation, False)
    try:
        yield
    finally:
        keras.layers.Layer.__call__ = plain_layer
        keras.Operation.__call__ = plain_operation


def _floats(structure: Any) -> list[Any]:
    """Tensors with values: those inside a layer's own tf.function have none yet."""
    return [
        leaf
        for leaf in tf.nest.flatten(structure, expand_composites=True)
        if tf.is_tensor(leaf) and leaf.dtype.is_floating and hasattr(leaf, "numpy")
    ]


def _in_layers(calls: list[Call]) -> str | None:
    for position, call in enumerate(calls):
        bad, size = unsound(call.outputs)
        if not bad or unsound(call.inputs)[0]:
            continue
        words = f"{call.name} is the first whose output is not finite ({bad} of {size} values), while its input is"
        if call.inputs:
            words += f" (largest magnitude {_largest(call.inputs):.3g}"
            weights = [
                tf.convert_to_tensor(v.value) for v in getattr(call.operation, "trainable_variables", [])
            ]
            words += f", of its weights {_largest(weights):.3g})" if weights else ")"
        if getattr(call.operation, "compute_dtype", "") == "float16":
            words += "; it computes in float16, which ends at 65504"
        # Then what is inside it is sound: it is its own code between its layers.
        inner = next((c for c in calls[:position] if call.holds(c) and unsound(c.inputs)[0]), None)
        if inner:
            words += f"; inside it, {inner.name} is the first that is given such values"
        return words
    return None


def _largest(tensors: Sequence[Any]) -> float:
    sizes = [float(tf.reduce_max(tf.abs(tensor))) for tensor in tensors if int(tf.size(tensor))]
    return max(sizes, default=math.nan)


def _in_loss(model: keras.Model, prediction: Any, losses: Any, weight: Any, objective: Any) -> str | None:
    wrong = ~tf.math.is_finite(losses) & (weight > 0)
    bad = int(tf.math.count_nonzero(wrong))
    if bad:
        outputs = _floats(prediction)
        first = int(tf.argmax(tf.cast(wrong, tf.int32)))
        low = min(float(tf.reduce_min(output)) for output in outputs)
        high = max(float(tf.reduce_max(output)) for output in outputs)
        return (
            f"the loss is not finite for {bad} of {int(tf.size(losses))} examples (the first is example {first}, "
            f"counted from 0), while the model's output is (between {low:.4g} and {high:.4g})"
        )
    if unsound([objective])[0]:
        for layer in reversed(model._flatten_layers()):
            if unsound([tf.convert_to_tensor(penalty) for penalty in layer.losses])[0]:
                return f"the penalty of layer '{layer.name}' ({type(layer).__name__}) is not finite"
        return "the sum of the weighted losses is not finite, while each of them is"
    return None


def _in_gradients(
    tape: Any, scaled: Any, model: keras.Model, calls: list[Call], prediction: Any
) -> str | None:
    variables = list(model.trainable_variables)
    tensors = [tensor for call in calls for tensor in (*call.outputs, *call.inputs)]
    found = tape.gradient(scaled, [*variables, *tensors, prediction])
    wrong = [
        (variable, *counts)
        for variable, gradient in zip(variables, found, strict=False)
        if gradient is not None and (counts := unsound([_dense(gradient)]))[0]
    ]
    if not wrong:
        return _in_norm(variables, found)
    # The backward pass runs from the loss: of those that it spoilt, it came to the last one first.
    variable, bad, size = wrong[-1]
    words = f"the gradient of '{variable.path}' is not finite ({bad} of {size} values)"
    if len(wrong) > 1:
        words += f", and so are {len(wrong) - 1} more"
    words += ", while all layers' outputs and the loss are finite"
    if found[-1] is not None and unsound([_dense(found[-1])])[0]:
        return words + "; it comes from the loss function's own derivative"
    known = {id(t): g for t, g in zip(tensors, found[len(variables) :], strict=False)}
    source = next((call for call in _innermost_last(calls) if _spoils(tape, call, known)), None)
    return words + (f"; it comes from the derivative of {source.name}" if source else "")


def _in_norm(variables: list[Any], gradients: list[Any]) -> str | None:
    reached = [(v, _dense(g)) for v, g in zip(variables, gradients, strict=False) if g is not None]
    if not unsound([tf.linalg.global_norm([gradient for _, gradient in reached])])[0]:
        return None
    largest, path = max((_largest([gradient]), variable.path) for variable, gradient in reached)
    return (
        f"the norm of the gradients overflows float32, while each of them is finite (the largest, {largest:.3g}, "
        f"is of '{path}')"
    )


def _innermost_last(calls: list[Call]) -> list[Call]:
    """From the loss back; those with layers inside them after those without."""
    back = calls[::-1]
    composite = [bool(getattr(call.operation, "_layers", None)) for call in back]
    return [
        call for of in (False, True) for call, is_one in zip(back, composite, strict=True) if is_one is of
    ]


def _spoils(tape: Any, call: Call, known: dict[int, Any]) -> bool:
    """Finite gradients come in at its outputs, others leave at its inputs or its weights."""
    pairs = [(t, known[id(t)]) for t in call.outputs if known[id(t)] is not None]
    if not pairs or unsound([_dense(gradient) for _, gradient in pairs])[0]:
        return False
    targets, incoming = zip(*pairs, strict=True)
    sources = [*call.inputs, *getattr(call.operation, "trainable_variables", [])]
    leaving = tape.gradient(list(targets), sources, output_gradients=list(incoming))
    return unsound([_dense(gradient) for gradient in leaving if gradient is not None])[0] > 0


def _dense(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
