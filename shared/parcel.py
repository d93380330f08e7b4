"""What travels between a process and its children: functions and arguments one way, values the other.

Functions go by cloudpickle, so that a lambda or one of ``__main__`` will do. What comes back is
unpickled in a process that has no TensorFlow, and must not bring it in.
"""

from __future__ import annotations

import io
import linecache
import logging
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from types import CodeType
from typing import IO, Any

import cloudpickle

from shared.errors import WorkerError


def orders(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    extra: Mapping[str, str | None] | None,
    memory_bytes: int | None,
) -> bytes:
    """All that a child is told: what to run, and where its parent lives at this moment."""
    packed, sources = dump((function, args, dict(kwargs)))
    return pickle.dumps(
        {
            "call": packed,
            "sources": sources,
            "environment": environment(extra),
            "folder": _folder(),
            "path": list(sys.path),
            "argv": list(sys.argv),
            "levels": _log_levels(),
            "memory_bytes": memory_bytes,
        }
    )


def environment(extra: Mapping[str, str | None] | None) -> dict[str, str]:
    """This process's variables with ``extra`` over them; None in it takes one away."""
    over = {**os.environ, **(extra or {})}
    variables = {name: value for name, value in over.items() if value is not None}
    # TensorFlow's warnings go to the kept tail, not to the terminal, and one of them says that
    # memory ran out where oneDNN then dies by SIGSEGV. So they are never turned off.
    if variables.get("TF_CPP_MIN_LOG_LEVEL", "") not in ("0", "1"):
        variables["TF_CPP_MIN_LOG_LEVEL"] = "1"
    return variables


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody has removed it
        return "/"


def _log_levels() -> dict[str, int]:
    """Levels set on loggers here, so that a child sends no record that nobody wants."""
    named = {
        name: logger.level
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
    }
    return {"": logging.root.level, **named}


def dump(value: Any) -> tuple[bytes, dict[str, list[str]]]:
    """``value`` pickled for a child, and the source lines of what it defines that lie in no file.

    Cloudpickle hides the file that a function was defined in. It is kept here: tracebacks show the
    person's own lines, and AutoGraph, which reads the source, still turns their ``if`` into graph.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(value)
    unfiled = {
        name: linecache.getlines(name)
        for name in pickler.files
        if name in linecache.cache and not os.path.exists(name)  # a notebook's cell
    }
    return buffer.getvalue(), unfiled


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: IO[bytes]) -> None:
        self.files: set[str] = set()
        # Before the base's __init__, which reads it once.
        self.dispatch_table = ChainMap({CodeType: self._code}, cloudpickle.Pickler.dispatch_table)
        super().__init__(file)

    def _code(self, code: CodeType) -> Any:
        make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
        self.files.add(code.co_filename)
        return make, tuple(code.co_filename if a == "<dynamic-code>" else a for a in arguments)


class _Unpickler(pickle.Unpickler):
    """Refuses to import TensorFlow into a process that has got on without it."""

    def find_class(self, module: str, name: str) -> Any:
        root = module.partition(".")[0]
        if root in ("tensorflow", "keras") and root not in sys.modules:
            raise WorkerError(
                f"A function in a child process returned an object of {root} ({module}.{name}).",
                "Return plain data or numpy arrays.",
            )
        return super().find_class(module, name)


def load(data: bytes | memoryview) -> Any:
    """What a child has pickled. An array in it is copied once.

    Raises:
        WorkerError: It would import TensorFlow here.
    """
    return _Unpickler(_Reader(data)).load()  # type: ignore[arg-type]


class _Reader:
    """The file that an unpickler wants, over bytes that are in memory already.

    ``io.BytesIO`` would copy a value of half a gigabyte once more, and its ``read`` again.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._left = memoryview(data)

    def read(self, size: int) -> bytes:
        piece, self._left = self._left[:size], self._left[size:]
        return bytes(piece)

    def readinto(self, into: Any) -> int:
        size = min(len(into), len(self._left))
        into[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def readline(self) -> bytes:
        line = io.BytesIO(self._left).readline()  # only old protocols ask for one
        self._left = self._left[len(line) :]
        return line
