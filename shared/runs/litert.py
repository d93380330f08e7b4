"""LiteRT (once TensorFlow Lite): small files for phones, browsers and boards, and their runtime.

Three kinds. ``litert-float16`` halves the weights and computes in float32. ``litert-dynamic``
keeps weights in 8 bits and quantises activations on the way, where an operation can.
``litert-int8`` has weights and activations in 8 bits, with ranges seen on examples of the train
split; inputs and outputs stay float32 (Jacob et al. 2018). The converter can take its process
with it (tensorflow#101050), so :func:`convert` belongs into a child.

A published file needs no more than the runtime, ``pip install ai-edge-litert``::

    from ai_edge_litert.interpreter import Interpreter
    run = Interpreter("model/member-0/int8.tflite").get_signature_runner("serving_default")
    print(run(window=x))  # inputs by name, float32; a dict of outputs by name
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shared import files
from shared.errors import CasebookError, InputError, did_you_mean
from shared.machine import machine
from shared.runs import saved_model
from shared.runs.forms import LITERT_FILES

if TYPE_CHECKING:
    import keras

CALIBRATION_EXAMPLES = 128
"""Train examples from which int8 learns the range of every activation."""

ONE_BY_ONE = "takes one example at a time"

_FRAME = r"\x1b\[\d*m|^Exception encountered when calling .*$"
"""What Keras puts around an error."""
_OPERATION = r"'tf\.\w+' op [^\n]*|TF Select ops: [^\n]*|Quantization not yet supported[^\n]*"
"""Where the converter names the operation that it cannot take."""


def convert(
    model: Callable[[], keras.Model],
    published: Path,
    kind: str,
    examples: Sequence[Any],
    out: Path,
    *,
    work: Path,
    has_loops: bool,
) -> str:
    """Writes a model as a LiteRT file.

    Recurrent layers are loops, which the converter takes at a fixed batch only: such a file takes
    one example at a time. In int8 their loop would crash the converter, so it is unrolled there.

    Args:
        model: Returns the Keras model; called only where its SavedModel won't do.
        published: The model's SavedModel, as :func:`shared.runs.saved_model.write` wrote it.
        kind: ``litert-float16``, ``litert-dynamic`` or ``litert-int8``.
        examples: Inputs ``[1, ...]`` for calibration; used by int8 only.
        out: File to write.
        work: Folder for SavedModels on the way, of this model alone; two kinds may share one.
        has_loops: As :func:`recurrent` says of the model.

    Returns:
        What a person who uses the file must know; may be empty.

    Raises:
        CasebookError: The model cannot be had in this form; says why.
    """
    problem = ""
    for attempt in _attempts(model, published, kind, has_loops):
        # Another batch helps where shapes were the trouble, and nowhere else.
        if problem and not re.search("shape|static", problem):
            break
        try:
            source, note = attempt(work)
            content = _converted(source, kind, examples)
        except Exception as error:  # the converter raises a dozen kinds
            problem = why(error)
            continue
        with files.atomic(out) as temporary:
            temporary.write_bytes(content)
        return note
    raise CasebookError(problem)


Attempt = Callable[[Path], tuple[Path, str]]
"""Given a folder of work, a SavedModel to convert and what to know of the result."""


def _attempts(
    model: Callable[[], keras.Model], published: Path, kind: str, has_loops: bool
) -> Iterator[Attempt]:
    def one_by_one(work: Path) -> tuple[Path, str]:
        if not (work / "one").exists():
            saved_model.write(model(), work / "one", batch=1)
        return work / "one", ONE_BY_ONE

    def without_loops(work: Path) -> tuple[Path, str]:
        saved_model.write(unrolled(model()), work / "unrolled")
        return work / "unrolled", "its recurrent layers are unrolled"

    if not has_loops:
        yield lambda work: (published, "")
        yield one_by_one
    elif kind == "litert-int8":
        yield without_loops
    else:
        yield one_by_one


def recurrent(model: keras.Model) -> bool:
    """Whether any layer of the model, however deep, is recurrent."""
    import keras

    return any(isinstance(layer, keras.layers.RNN) for layer in model._flatten_layers())


def unrolled(model: keras.Model) -> keras.Model:
    """The same model with its recurrent layers' steps one after the other instead of in a loop.

    Raises:
        CasebookError: The number of steps is open, or a layer cannot be cloned.
    """
    import keras

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        return type(layer).from_config(_with_unroll(layer.get_config()))

    try:
        copy = keras.models.clone_model(model, clone_function=clone)
        copy.set_weights(model.get_weights())
    except Exception as error:  # Keras raises ValueError, TypeError, NotImplementedError ...
        raise CasebookError(f"its recurrent layers cannot be unrolled: {why(error)}") from error
    return copy


def _with_unroll(config: Any) -> Any:
    """A layer's configuration with every ``unroll`` in it turned on, wrapped layers included."""
    if isinstance(config, Mapping):
        return {key: True if key == "unroll" else _with_unroll(value) for key, value in config.items()}
    return [_with_unroll(item) for item in config] if isinstance(config, list) else config


def _converted(source: Path, kind: str, examples: Sequence[Any]) -> bytes:
    import tensorflow as tf

    signature = saved_model.SIGNATURE
    converter = tf.lite.TFLiteConverter.from_saved_model(str(source), signature_keys=[signature])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "litert-float16":
        converter.target_spec.supported_types = [tf.float16]
    elif kind == "litert-int8":
        names = saved_model.input_names(source)
        converter.representative_dataset = lambda: ((signature, named(x, names)) for x in examples)
        # Nothing else: an operation without an int8 kernel is an error, not a float32 island.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    return bytes(converter.convert())


def named(x: Any, names: Sequence[str]) -> dict[str, Any]:
    """A model's inputs by the names that its signature has for them.

    >>> named({"a": 1, "b": 2}, ["a", "b"]), named(3, ["window"]), named([4, 5], ["input_0", "input_1"])
    ({'a': 1, 'b': 2}, {'window': 3}, {'input_0': 4, 'input_1': 5})
    """
    if isinstance(x, Mapping):
        return dict(x)
    parts = list(x) if isinstance(x, (list, tuple)) else [x]
    ordered = sorted(names, key=lambda name: (len(name), name))  # input_10 after input_9
    return dict(zip(ordered, parts, strict=True))


def why(error: BaseException) -> str:
    """The one line of a converter's error that tells a person something.

    >>> why(ValueError("<unknown>:0: error: loc(fused): 'tf.Foo' op is not supported\\n and so on"))
    "'tf.Foo' op is not supported"
    """
    text = error.message if isinstance(error, CasebookError) else str(error)
    text = re.sub(_FRAME, "", text, flags=re.MULTILINE)
    operation = re.search(_OPERATION, text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = operation.group(0) if operation else (lines or [type(error).__name__])[0]
    return told.strip()[:200]


class LiteRT:
    """LiteRT files of all members, loaded; the outputs are their mean. Safe in threads, one at a time.

    >>> # LiteRT.load("runs/stocks/<run>/model", "litert-int8")(windows)

    Args:
        paths: One file a member.
        threads: That an inference may use; default: all cores of this process.
    """

    def __init__(self, paths: Sequence[Path], threads: int | None = None) -> None:
        from ai_edge_litert.interpreter import Interpreter

        if not paths:
            raise CasebookError("A published model needs at least one member.")
        threads = threads or machine().cores
        self._interpreters = [Interpreter(model_path=str(path), num_threads=threads) for path in paths]
        self._runners = [one.get_signature_runner(saved_model.SIGNATURE) for one in self._interpreters]
        self._inputs = self._runners[0].get_input_details()
        self._one_by_one = any(detail["shape_signature"][0] == 1 for detail in self._inputs.values())
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: str | Path, form: str = "litert-float16") -> LiteRT:
        """The small form ``form`` of the published model in folder ``path``.

        Raises:
            CasebookError: The folder holds no such form: it was left out, or never made.
            InputError: There is no form of that name.
        """
        if form not in LITERT_FILES:
            raise InputError(f"There is no form {form!r} of LiteRT.", did_you_mean(form, LITERT_FILES))
        found = sorted(
            Path(path).glob(f"member-*/{LITERT_FILES[form]}"), key=lambda p: int(p.parent.name[7:])
        )
        if not found:
            raise CasebookError(
                f"{path} holds no {form} form (no member-*/{LITERT_FILES[form]}).",
                "The report's table of forms says why one was left out.",
            )
        return cls(found)

    def __call__(self, x: Any) -> np.ndarray:
        """Mean output of the members for a batch.

        Args:
            x: array ``[B, ...]``, or a dict or list of them, as the model's inputs are.

        Returns:
            float32 ``[B, ...]``.
        """
        given = {
            name: np.asarray(part, self._inputs[name]["dtype"])
            for name, part in named(x, list(self._inputs)).items()
        }
        with self._lock:
            said = np.stack([self._member(runner, given) for runner in self._runners])
        return np.asarray(said.mean(axis=0, dtype=np.float64), np.float32)

    def _member(self, runner: Any, given: Mapping[str, np.ndarray]) -> np.ndarray:
        count = len(next(iter(given.values())))
        if not self._one_by_one:
            return self._only(runner(**given))
        rows = ({name: part[row : row + 1] for name, part in given.items()} for row in range(count))
        return np.concatenate([self._only(runner(**row)) for row in rows])

    @staticmethod
    def _only(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        (value,) = outputs.values()
        return np.array(value)  # a copy: the interpreter writes over its own
