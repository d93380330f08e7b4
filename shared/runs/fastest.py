"""The fastest way to run published members on one example: found by trying, not assumed.

Which it is depends on the network. XLA takes a recurrent layer's loop apart and wins by five
to ten; on a CPU it loses a deep convolutional network by as much. So each way runs a few
times, and the fastest one that says the same as the members' own signature is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TOLERANCE = 1e-5
"""Largest difference to the members' own signature, of their largest output (of 1, where that is smaller)."""

ROUNDS = 12
_ROUND_SECONDS = 1.0
_MOST_OPS = 5_000
"""XLA's compile time grows faster than the graph: an unrolled LSTM of 1,100 ops takes 7 s."""

Call = Callable[[Sequence[np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class Fastest:
    """A way to run the members on one shape of input.

    Attributes:
        run: Flat inputs, each ``[1, ...]``, to the members' mean, float32 ``[1, ...]``. Safe in threads.
        way: ``"as it is"``, ``"frozen"`` or ``"compiled"`` (frozen, by XLA).
        seconds: The quickest call of each way that was tried and says the same.
        refused: Ways that failed or said something else, each with the reason.
    """

    run: Call
    way: str
    seconds: Mapping[str, float]
    refused: Mapping[str, str]


def find(as_it_is: Call, mean: Callable[..., Any], examples: Sequence[Sequence[np.ndarray]]) -> Fastest:
    """Tries every way on ``examples`` and returns the fastest.

    Args:
        as_it_is: The members through their own signature, the reference.
        mean: The same as a function of flat tensors that can be traced; returns a float32 tensor.
        examples: Flat inputs of one shape, each array ``[1, ...]``; the first is timed.
    """
    wanted = [as_it_is(example) for example in examples]
    ways: dict[str, Call] = {"as it is": as_it_is}
    refused: dict[str, str] = {}
    try:
        frozen, operations = _frozen(mean, examples[0])
        ways["frozen"] = _direct(frozen)
        if operations <= _MOST_OPS:
            ways["compiled"] = _direct(_compiled(frozen, examples[0]))
        else:
            refused["compiled"] = f"its graph has {operations:,} operations"
    except Exception as error:  # what cannot be frozen raises a dozen kinds, and is answered as it is
        refused["frozen"] = _why(error)
    for way, run in list(ways.items()):
        reason = _differs(run, examples, wanted) if way != "as it is" else ""
        if reason:
            refused[way] = reason
            del ways[way]
    seconds = _clocked(ways, examples[0])
    best = min(seconds, key=lambda way: seconds[way])
    return Fastest(ways[best], best, seconds, refused)


def _frozen(mean: Callable[..., Any], example: Sequence[np.ndarray]) -> tuple[Any, int]:
    """``mean`` with its variables as constants, and the number of its operations.

    Constants can be folded and laid out ahead, and no call has to fetch hundreds of variables.
    """
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    shapes = [tf.TensorSpec(array.shape, tf.as_dtype(array.dtype)) for array in example]
    traced = tf.function(mean, autograph=False).get_concrete_function(*shapes)
    # Loops stay loops: XLA understands them, and does not understand what they are lowered to.
    frozen = convert_variables_to_constants_v2(traced, lower_control_flow=False)
    graph = frozen.graph.as_graph_def()
    count = len(graph.node) + sum(len(function.node_def) for function in graph.library.function)
    return frozen, count


def _compiled(frozen: Any, example: Sequence[np.ndarray]) -> Any:
    import tensorflow as tf

    shapes = [tf.TensorSpec(array.shape, tf.as_dtype(array.dtype)) for array in example]
    function = tf.function(lambda *tensors: frozen(*tensors)[0], jit_compile=True, autograph=False)
    return function.get_concrete_function(*shapes)


def _direct(traced: Any) -> Call:
    """A traced function of flat tensors as a :data:`Call`, without the binding of arguments where that can be had.

    Binding costs 50 us a call, as much as a small network. What TensorFlow keeps behind a traced
    function (``inference_fn``) takes flat tensors as they are; another version may not have it.
    """
    import tensorflow as tf

    inner = getattr(traced, "inference_fn", None)
    bare = getattr(inner, "call_flat", None) if not traced.captured_inputs else None

    def call(arrays: Sequence[np.ndarray]) -> np.ndarray:
        tensors = [tf.constant(array) for array in arrays]
        answer = traced(*tensors) if bare is None else bare(*tensors)
        said: np.ndarray = (answer[0] if isinstance(answer, (list, tuple)) else answer).numpy()
        return said

    return call


def _differs(run: Call, examples: Sequence[Sequence[np.ndarray]], wanted: Sequence[np.ndarray]) -> str:
    """Why a way cannot be taken; empty where it says the same."""
    for example, value in zip(examples, wanted, strict=True):
        try:
            said = run(example)
        except Exception as error:  # not every operation compiles, and that shows at the first call
            return _why(error)
        if said.shape != value.shape or not np.array_equal(np.isnan(said), np.isnan(value)):
            return "it says something else"
        known = ~np.isnan(value)
        if not known.any():
            continue
        size = max(1.0, float(np.abs(value[known]).max()))
        off = float(np.abs(said[known] - value[known]).max()) / size
        if not off <= TOLERANCE:
            return f"it is off by {off:.1g}"
    return ""


def _clocked(ways: Mapping[str, Call], example: Sequence[np.ndarray]) -> dict[str, float]:
    """The quickest call of each, in turns: what else the machine does hits all of them alike."""
    best = dict.fromkeys(ways, np.inf)
    end = time.perf_counter() + _ROUND_SECONDS
    for turn in range(ROUNDS):
        for way, run in ways.items():
            started = time.perf_counter()
            run(example)
            best[way] = min(best[way], time.perf_counter() - started)
        if turn > 0 and time.perf_counter() > end:
            break
    return best


def _why(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:160]}"
