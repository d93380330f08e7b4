"""A function in a child process, with limits and a verdict: steps of a run, trials of a search.

The process that calls never imports TensorFlow. Its children are forked from a server
(``shared/forkserver.py``) that has it loaded, so a child costs 0.3 s and gives all its
memory back, a hung one is killed at its deadline, and one that is killed for memory is a
verdict instead of the end of the flow.

>>> import math
>>> outcome = run(math.factorial, 20, timeout=60)
>>> outcome.verdict.value, outcome.value
('ok', 2432902008176640000)

Function, arguments and result travel by cloudpickle: a function of ``__main__`` or a lambda
will do, and ``__main__`` is not imported again. The child has the folder, ``sys.path`` and
environment variables that the parent has at the moment of the call. Progress and log records of the
child arrive at the listener and the loggers of the calling thread. What it prints is kept to
its tail and told on failure; ``CASEBOOK_DEBUG=1`` lets it through to stderr.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from shared import progress
from shared.children import Child, Exit, Server, dump, load, quoted
from shared.errors import CasebookError, WorkerError
from shared.machine import memory

T = TypeVar("T")
_log = logging.getLogger(__name__)

PRELOAD: tuple[str, ...] = (
    "numpy",
    "tensorflow",
    "keras",
    "shared.contract",
    "shared.input_pipeline",
    "shared.training.loop",
)
"""What the server imports before it forks. None of it may open a device."""

START_SECONDS = 180.0
"""How long the server may take to import :data:`PRELOAD` (about 4 s; far more from a slow disk)."""

_STOPPING = "Stopping: the work has up to %g s to save its state. A second interruption ends it at once."

_READ_AT_IMPORT = (
    "KERAS_BACKEND",
    "KERAS_HOME",
    "LD_LIBRARY_PATH",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_USE_LEGACY_KERAS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)
"""Variables that libraries read once, at import: a server that was started under others will not do."""


class Verdict(StrEnum):
    """How a child ended."""

    OK = "ok"
    OUT_OF_MEMORY = "out of memory"
    TIMED_OUT = "timed out"
    KILLED = "killed"
    BUG = "bug"


_REMEDY = {
    Verdict.OUT_OF_MEMORY: "Use a smaller batch or model, or a machine with more memory.",
    Verdict.TIMED_OUT: "Give it more time, or less to do.",
    Verdict.KILLED: "Look for what ended it: a person, a job scheduler, or a crash in native code.",
}


@dataclass(frozen=True)
class Outcome:
    """What became of a function in a child.

    Attributes:
        verdict: ``BUG`` is any error of the function that is not about memory.
        value: What the function returned, where the verdict is ok.
        error: What it raised, with the child's traceback as its cause; None where it raised
            nothing, or something that cannot travel (then ``message`` tells it).
        message: For a person: what happened, and the end of what the child printed.
        seconds: Wall time in the child, without the server's start.
        peak_bytes: Largest resident memory of the child, the libraries it shares with the
            server (some 300 MB) included; None where nobody could tell.
    """

    verdict: Verdict
    value: Any = None
    error: BaseException | None = None
    message: str = ""
    seconds: float = 0.0
    peak_bytes: int | None = None


class ChildTraceback(Exception):
    """The cause of an error that came from a child: shows the child's traceback above the parent's."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


def warm_up() -> None:
    """Starts the server, if there is none, and returns at once: it imports while others do their work."""
    _suitable_server(_environment(None))


def run(
    function: Callable[..., Any],
    *args: Any,
    timeout: float | None = None,
    grace: float = 0.0,
    memory_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> Outcome:
    """Runs ``function(*args, **kwargs)`` in a child and says how it went; raises nothing the child raised.

    Args:
        timeout: Seconds after which the child is stopped, counted from its start; None: never.
        grace: Seconds that the child gets to end by itself where it is stopped at its time-out, or
            the caller is interrupted while it waits (Ctrl-C, SystemExit of a SIGTERM handler, an
            error of a listener). It gets SIGTERM, which ends it unless the function has
            installed a handler; what it logs meanwhile still arrives; then it is killed. A second
            interruption kills at once. 0: killed at once.
        memory_bytes: Address space that the child may take over what it starts with, so that
            an allocation fails in it and not elsewhere (Linux; not for GPUs, whose drivers
            reserve far more than they use); None: no limit.
        environment: Variables set in the child before the function runs, over the parent's.

    Raises:
        WorkerError: The server that forks children could not be started.
        KeyboardInterrupt: Ctrl-C; the child has ended.
    """
    variables = _environment(environment)
    packed, sources = dump((function, args, kwargs))
    orders = pickle.dumps(
        {
            "call": packed,
            "sources": sources,
            "environment": variables,
            "folder": _folder(),
            "path": list(sys.path),
            "argv": list(sys.argv),
            "levels": _log_levels(),
            "memory_bytes": memory_bytes,
        }
    )
    for attempt in ("first", "second"):
        kills_before = _host_kills()
        child = Child(_suitable_server(variables), _hear)
        try:
            if child.begun(START_SECONDS):
                started = time.monotonic()
                child.order(orders, timeout)
                try:
                    in_time = child.listen(None if timeout is None else started + timeout)
                except BaseException:
                    if grace > 0:
                        _log.warning(_STOPPING, grace)
                        child.ask_to_end(grace)
                    raise
                seconds = time.monotonic() - started
                if not in_time:
                    child.print_stack()
                    if grace > 0:
                        child.ask_to_end(grace)
                    child.end()
                    message = f"It was stopped at its limit of {timeout:g} s."
                    return _failed(child, Verdict.TIMED_OUT, message, seconds)
                if child.answer is not None:
                    return _delivered(child, child.answer)
                limited = memory_bytes is not None
                verdict, message = _why(child.exit, child.printed(), limited, _host_kills() - kills_before)
                return _failed(child, verdict, message, seconds)
            if attempt == "second":
                raise WorkerError(
                    "The server that starts child processes ended before it could start one."
                    + quoted(child.server.log()),
                    '`python -c "import tensorflow, keras"` shows what is wrong with the installation.',
                )
        finally:
            child.end()
    raise AssertionError("unreachable")


def call(
    function: Callable[..., T],
    *args: Any,
    timeout: float | None = None,
    grace: float = 0.0,
    memory_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> T:
    """Runs ``function(*args, **kwargs)`` in a child and returns its value, or raises what went wrong.

    Args: as :func:`run`.

    Raises:
        WorkerError: The child timed out, was killed, ran out of memory, or raised what cannot travel.
        Exception: What the function raised, with the child's traceback as its cause.
    """
    outcome = run(
        function,
        *args,
        timeout=timeout,
        grace=grace,
        memory_bytes=memory_bytes,
        environment=environment,
        **kwargs,
    )
    return value_of(outcome, getattr(function, "__name__", "The function"))  # type: ignore[no-any-return]


def value_of(outcome: Outcome, name: str) -> Any:
    """What the function ``name`` returned, or its error raised, as :func:`call` does."""
    if outcome.verdict is Verdict.OK:
        return outcome.value
    if outcome.error is not None and outcome.verdict is Verdict.BUG:
        raise outcome.error
    raise WorkerError(
        f"{name} did not finish in its child process. {outcome.message}", _REMEDY.get(outcome.verdict, "")
    ) from outcome.error


def shut_down() -> None:
    """Ends the server and with it every child, whatever thread waits for it."""
    global _current
    with _lock:
        servers = [*_retired, *([_current] if _current is not None else [])]
        _current = None
        _retired.clear()
    for server in servers:
        server.stop()


# --- the server: one, replaced where it has died or does not suit ---------------------------

_lock = threading.Lock()
_current: Server | None = None
_retired: list[Server] = []


def _suitable_server(variables: Mapping[str, str]) -> Server:
    global _current
    key = (PRELOAD, tuple(variables.get(name) for name in _READ_AT_IMPORT))
    with _lock:
        if _current is not None and not (_current.alive() and _current.key == key):
            _current.retire()
            _retired.append(_current)
            _current = None
        for server in [server for server in _retired if not server.alive()]:
            _retired.remove(server)
            server.stop()
        if _current is None:
            _current = Server(key, PRELOAD, variables)
        return _current


def _after_fork() -> None:
    # The fork's parent owns the server; this process starts its own when it needs one.
    global _current, _lock
    _lock = threading.Lock()
    _current = None
    _retired.clear()


atexit.register(shut_down)
os.register_at_fork(after_in_child=_after_fork)


# --- what a child says, and what its end means -----------------------------------------------


def _hear(kind: str, value: Any) -> None:
    if kind == "progress":
        progress.emit(value.label, value.done, value.total, note=value.note, **value.numbers)
    elif kind == "log":
        logger = logging.getLogger(value["name"])
        if logger.isEnabledFor(value["levelno"]):
            logger.handle(logging.makeLogRecord(value))


def _delivered(child: Child, answer: Mapping[str, Any]) -> Outcome:
    peak = child.exit.peak_bytes if child.exit else None
    seconds = answer["seconds"]
    if answer["value"] is not None:
        try:
            value = load(answer["value"])
        except Exception as trouble:
            return Outcome(Verdict.BUG, None, trouble, str(trouble), seconds, peak)
        return Outcome(Verdict.OK, value, None, "", seconds, peak)
    error: BaseException | None = None
    if answer["error"] is not None:
        with contextlib.suppress(Exception):
            error = load(answer["error"])
    if error is not None:
        error.__cause__ = ChildTraceback(answer["traceback"])
    if answer["out_of_memory"]:
        lines = answer["traceback"].strip().splitlines()
        telling = next((line for line in lines if "OOM" in line or "allocate" in line), lines[-1])
        message = f"It ran out of memory: {telling.strip()[:300]}"
        return Outcome(Verdict.OUT_OF_MEMORY, None, error, message, seconds, peak)
    if isinstance(error, CasebookError):
        message = error.message
    else:
        message = answer["traceback"].strip() + quoted(child.printed())
    return Outcome(Verdict.BUG, None, error, message, seconds, peak)


def _failed(child: Child, verdict: Verdict, message: str, seconds: float) -> Outcome:
    peak = child.exit.peak_bytes if child.exit else None
    return Outcome(verdict, None, None, message + quoted(child.printed()), seconds, peak)


def _why(exit: Exit | None, printed: str, limited: bool, host_kills: int) -> tuple[Verdict, str]:
    """The verdict on a child that left without an answer, and a sentence for a person.

    Args:
        printed: The end of what it printed.
        limited: It ran under a memory limit.
        host_kills: Processes that the kernel killed for memory meanwhile.
    """
    if exit is None:
        return Verdict.KILLED, "It could not be heard any more."
    words = printed.lower()
    short = any(
        text in words
        for text in ("bad_alloc", "out of memory", "cannot allocate memory", "resource_exhausted")
    )
    # Under a limit, starting a thread may be what fails first.
    threads = ("resource temporarily unavailable", "pthread_create() failed")
    short = short or (limited and any(text in words for text in threads))
    if exit.code >= 0:
        if short:
            return Verdict.OUT_OF_MEMORY, "It ran out of memory."
        return Verdict.BUG, f"It left with exit code {exit.code} before it could answer."
    name = signal.Signals(-exit.code).name
    if short:
        return Verdict.OUT_OF_MEMORY, f"It ran out of memory and was ended by {name}."
    if -exit.code == signal.SIGKILL:
        if host_kills > 0:
            return Verdict.OUT_OF_MEMORY, "The operating system killed it (SIGKILL): memory ran out."
        if exit.peak_bytes is not None and exit.peak_bytes > memory()[0] / 4:
            return Verdict.OUT_OF_MEMORY, "It was killed (SIGKILL): most probably memory ran out."
    return Verdict.KILLED, f"It was ended by {name}."


def _host_kills() -> int:
    """How often this machine's kernel has killed a process for memory; 0 where it doesn't say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


# --- what of this process a child gets -------------------------------------------------------


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    variables = {**os.environ, **(extra or {})}
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
