"""Published members, loaded for prediction: whole batches at night, or one example at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shared.errors import CasebookError, InputError
from shared.runs import fastest
from shared.runs.fastest import Fastest
from shared.runs.registry import damaged

_MOST_SHAPES = 8
"""Shapes of an example that get a function of their own; each one holds a copy of the weights."""


class Predictor:
    """Published members, loaded for prediction; the outputs are their mean.

    Calling it with a batch costs no preparation and takes any batch size through one function.
    :meth:`one` answers a single example in about a millisecond, by a function made for its shape.
    Threads may call both at once.

    Args:
        saved_models: Folders of SavedModels with the signature ``serve``.
    """

    def __init__(self, saved_models: Sequence[Path]) -> None:
        import tensorflow as tf

        if not saved_models:
            raise CasebookError("A published model needs at least one member.")
        # Kept whole: a loaded model whose object is gone loses its variables.
        with undamaged(saved_models[0].parent.parent):
            self._models = [tf.saved_model.load(str(path)) for path in saved_models]
            (self._inputs,), _ = self._models[0].serve.concrete_functions[0].structured_input_signature
        self._specs = tf.nest.flatten(self._inputs)
        self._fast: dict[tuple[tuple[int, ...], ...], Fastest] = {}
        self._making = threading.Lock()

    @classmethod
    def load(cls, path: Path, *, warm: bool = False) -> Predictor:
        """The published model in folder ``path``, as ``Published.path`` names it.

        Args:
            warm: Make :meth:`one` ready now, in a second or a few, instead of at its first call.
                A model whose inputs have open sizes takes an example: :meth:`warm`.

        Raises:
            CasebookError: The folder holds no published model.
        """
        members = sorted(Path(path).glob("member-*/saved_model"), key=lambda p: int(p.parent.name[7:]))
        if not members:
            raise CasebookError(f"{path} holds no published model (no member-*/saved_model).")
        predictor = cls(members)
        if warm:
            predictor.warm()
        return predictor

    def __call__(self, x: Any) -> np.ndarray:
        """Mean output of the members for a batch.

        A batch of one goes the way of :meth:`one` where that has been made ready: so code for
        batches answers in real time, too.

        Args:
            x: array ``[B, ...]``, or a dict or list of them, as the model's inputs are.

        Returns:
            float32 ``[B, ...]``.

        Raises:
            InputError: Another shape or kind of numbers than the model takes; names both.
        """
        arrays = self._checked(x, batched=True)
        if self._fast and len(arrays[0]) == 1:
            fast = self._fast.get(_shapes(arrays))
            if fast is not None:
                return fast.run(arrays)
        return self._mean(arrays)

    def one(self, x: Any) -> np.ndarray:
        """Mean output of the members for a single example.

        The first example of a shape waits until its function is made (:meth:`warm`).

        Args:
            x: array without batch axis, or a dict or list of them, as the model's inputs are.

        Returns:
            float32, without batch axis.

        Raises:
            InputError: Another shape or kind of numbers than the model takes; names both.
        """
        arrays = self._checked(x, batched=False)
        fast = self._fast.get(_shapes(arrays)) or self._made(arrays)
        return self._mean(arrays)[0] if fast is None else fast.run(arrays)[0]

    def warm(self, example: Any = None) -> Fastest:
        """Makes :meth:`one` ready for an example's shape: ways are tried and the fastest is kept.

        Args:
            example: As :meth:`one` takes it; None: random numbers of the model's own shape.

        Returns:
            Which way was taken, and how long each takes.

        Raises:
            InputError: The model's inputs have open sizes and no example was given.
        """
        if example is None:
            if any(None in spec.shape.as_list()[1:] or not _is_number(spec) for spec in self._specs):
                raise InputError(
                    f"The model takes {self._expected(batched=False)}: what to be ready for is open.",
                    "Give an example: predictor.warm(example).",
                )
            arrays = self._drawn(0)
        else:
            arrays = self._checked(example, batched=False)
        made = self._fast.get(_shapes(arrays)) or self._made(arrays)
        if made is None:
            raise InputError(
                f"{_MOST_SHAPES} shapes of an example have a function already; each one more would hold another "
                "copy of the weights.",
                "Pad examples to fewer sizes; others are answered all the same, only slower.",
            )
        return made

    def _made(self, arrays: Sequence[np.ndarray]) -> Fastest | None:
        """The function for these arrays' shapes, made by the first thread that asks; None beyond the limit."""
        import tensorflow as tf

        shapes = _shapes(arrays)
        with self._making:
            if shapes in self._fast or len(self._fast) >= _MOST_SHAPES:
                return self._fast.get(shapes)

            def mean(*tensors: Any) -> Any:
                given = tf.nest.pack_sequence_as(self._inputs, tensors)
                said = [tf.cast(model.serve(given), tf.float64) for model in self._models]
                return tf.cast(tf.add_n(said) / len(said), tf.float32)

            drawn = (
                [self._drawn(seed, shapes) for seed in range(2)] if all(map(_is_number, self._specs)) else []
            )
            self._fast[shapes] = fastest.find(self._mean, mean, [arrays, *drawn])
            return self._fast[shapes]

    def _mean(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Through the members' own signatures, which take any batch size without being traced again."""
        import tensorflow as tf

        given = tf.nest.pack_sequence_as(self._inputs, [tf.constant(array) for array in arrays])
        said = np.stack([np.asarray(model.serve(given), np.float64) for model in self._models])
        return np.asarray(said.mean(axis=0), np.float32)

    def _drawn(self, seed: int, shapes: Sequence[Sequence[int]] | None = None) -> list[np.ndarray]:
        """Random inputs, flat, each ``[1, ...]``: numbers in 0..1, or whole ones of 0 and 1."""
        draw = np.random.default_rng(seed)
        shapes = shapes or [(1, *spec.shape.as_list()[1:]) for spec in self._specs]
        return [
            draw.random(shape).round(0 if spec.dtype.is_integer else 6).astype(spec.dtype.as_numpy_dtype)
            for spec, shape in zip(self._specs, shapes, strict=True)
        ]

    # --- what goes in ------------------------------------------------------------------------

    def _checked(self, x: Any, *, batched: bool) -> list[np.ndarray]:
        """The inputs, flat in the model's order, each with a batch axis and the model's kind of numbers."""
        given = _parts(x, self._inputs)
        if given is None:
            raise self._refused(x, batched=batched)
        arrays = []
        for part, spec in zip(given, self._specs, strict=True):
            array = _as_numbers(part, spec.dtype.as_numpy_dtype)
            if array is None:
                raise self._refused(x, batched=batched)
            if not batched:
                array = array[np.newaxis]
            sizes = spec.shape.as_list()
            if array.ndim != len(sizes) or any(
                size not in (None, found) for size, found in zip(sizes, array.shape, strict=True)
            ):
                raise self._refused(x, batched=batched)
            arrays.append(array)
        if len({len(array) for array in arrays}) > 1:
            raise self._refused(x, batched=batched)
        return arrays

    def _refused(self, x: Any, *, batched: bool) -> InputError:
        other = "predictor.one(x) takes one example" if batched else "predictor(x) takes a batch"
        return InputError(
            f"The model takes {self._expected(batched=batched)}; received {_told(x)}.",
            f"Give what it takes; {other}.",
        )

    def _expected(self, *, batched: bool) -> str:
        def told(spec: Any) -> str:
            axes = [
                "batch" if batched else "",
                *("any" if n is None else n for n in spec.shape.as_list()[1:]),
            ]
            return f"{spec.dtype.name} [{', '.join(str(axis) for axis in axes if axis != '')}]"

        if isinstance(self._inputs, Mapping):
            return "{" + ", ".join(f"{name!r}: {told(spec)}" for name, spec in self._inputs.items()) + "}"
        if isinstance(self._inputs, (list, tuple)):
            return "[" + ", ".join(told(spec) for spec in self._inputs) + "]"
        return told(self._inputs)


def _is_number(spec: Any) -> bool:
    return bool(spec.dtype.is_floating or spec.dtype.is_integer)


def _shapes(arrays: Sequence[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    return tuple(array.shape for array in arrays)


def _parts(x: Any, like: Any) -> list[Any] | None:
    """The inputs in the order in which TensorFlow flattens ``like``, or None where they are others."""
    if isinstance(like, Mapping):
        if not isinstance(x, Mapping) or set(x) != set(like):
            return None
        return [x[name] for name in sorted(like)]
    if isinstance(like, (list, tuple)):
        return list(x) if isinstance(x, (list, tuple)) and len(x) == len(like) else None
    return None if isinstance(x, Mapping) else [x]


def _as_numbers(part: Any, wanted: Any) -> np.ndarray | None:
    """``part`` as the model's kind of numbers, or None where that would change what they say.

    Plain lists are taken as the model's numbers. Of arrays a float may become another float and a
    whole number another; bytes of a picture don't become a picture in 0..1 by being called floats.
    """
    kind = np.dtype(wanted)
    try:
        if not hasattr(part, "dtype"):
            return np.asarray(part, kind)
        array = np.asarray(part)
    except (TypeError, ValueError, OverflowError):
        return None
    if array.dtype == kind:
        return array
    if array.dtype.kind != kind.kind or not np.can_cast(array.dtype, kind, casting="same_kind"):
        return None
    return array.astype(kind)


def _told(x: Any) -> str:
    """What was received, in a few words."""
    if isinstance(x, Mapping):
        return "{" + ", ".join(f"{name!r}: {_told(part)}" for name, part in list(x.items())[:8]) + "}"
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        name = getattr(x.dtype, "name", str(x.dtype))
        return f"{name} [{', '.join(str(size) for size in x.shape)}]"
    if isinstance(x, (list, tuple)):
        try:
            return _told(np.asarray(x))
        except ValueError:
            return f"a {type(x).__name__} of {len(x)} uneven parts"
    return type(x).__name__


@contextmanager
def undamaged(model: Path) -> Iterator[None]:
    """What cannot be loaded of a published model is told as what it is: a damaged file."""
    try:
        yield
    except CasebookError:
        raise
    except Exception as error:  # TensorFlow, protobuf, zipfile and Keras raise a dozen kinds
        raise damaged(model, error) from error
