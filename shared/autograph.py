"""AutoGraph in the fork server and its children: its code stays in memory, that of the training step is made ahead.

AutoGraph turns a function's source into graph code, and writes that to a file to import it from.
It counts on ``atexit`` to remove the file, and on nobody to remove what Python caches of it; these
processes never come to their ``atexit``, and some are killed. Thousands of files were left that way.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import linecache
import os
import sys
import types
from collections.abc import Callable
from typing import Any

_PREFIX = "__autograph_generated_file"


def keep_in_memory() -> None:
    """From now on this process and its forks load generated code without a file.

    Nothing is done where TensorFlow is not loaded, or its insides have changed.
    """
    loader: Any = sys.modules.get("tensorflow.python.autograph.pyct.loader")
    if loader is None or list(inspect.signature(loader.load_source).parameters) != [
        "source",
        "delete_on_exit",
    ]:
        return
    numbers = itertools.count()

    def load_source(source: str, delete_on_exit: bool) -> tuple[types.ModuleType, str]:
        name = f"{_PREFIX}_{os.getpid()}_{next(numbers)}"
        file = f"<{name}>"
        # Where ``inspect`` and tracebacks find the lines.
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        module = types.ModuleType(name)
        module.__file__ = file
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
        sys.modules[name] = module
        return module, file

    loader.load_source = load_source


def conversions() -> list[Callable[[], object]]:
    """What the server does while nobody asks for a child: AutoGraph's work on the training step.

    Turning the step's source into graph code takes a second of CPU in every child, more than all
    else in a trial of a small model; it is a matter of text, opens no device, and its results
    are kept in a cache that children inherit. Where TensorFlow's insides have changed nothing is done.
    """
    step = sys.modules.get("shared.training.step")
    if step is None:
        return []
    try:
        from tensorflow.python.autograph.core.converter import ConversionOptions, ProgramContext
        from tensorflow.python.autograph.impl import api
    except ImportError:
        return []

    def convert(function: Any, asked_for: bool) -> None:
        options = ConversionOptions(recursive=True, user_requested=asked_for, optional_features=())
        with contextlib.suppress(Exception):
            api._convert_actual(function, ProgramContext(options=options))

    methods = [
        function
        for kind in vars(step).values()
        if isinstance(kind, type) and kind.__module__ == "shared.training.step"
        for name, function in vars(kind).items()
        if callable(function) and not name.startswith("__") and name not in ("run", "take", "iterate")
    ]
    # tf.function asks for those it wraps; what they call is converted without being asked for.
    wrapped = ("_many", "_together")
    return [functools.partial(convert, method, method.__name__ in wrapped) for method in reversed(methods)]
