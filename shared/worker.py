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
its tail and told on failure; ``CASEBOOK_DEBUG=1`` lets it through to stderr. Processes that it
starts end with it, unless they leave its group as daemons do.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from shared import outcome, progress, tpu
from shared.children import Child, ask_to_end, next_to_end
from shared.errors import WorkerError
from shared.outcome import REMEDY, ChildTraceback, Outcome, Verdict, host_kills
from shared.parcel import environment, orders
from shared.server import Server, quoted

__all__ = [
    "Call",
    "ChildTraceback",
    "Outcome",
    "Verdict",
    "call",
    "first_failure",
    "run",
    "shut_down",
    "together",
    "value_of",
    "warm_up",
]

T = TypeVar("T")
_log = logging.getLogger("casebook.worker")

PRELOAD: tuple[str, ...] = (
    "numpy",
    "tensorflow",
    "keras",
    "shared.contract",
    "shared.input_pipeline",
    "shared.training.loop",
)
"""What the server imports before it forks. None of it may open a device; where there is a TPU, nothing."""

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


@dataclass(frozen=True)
class Call:
    """A function with what it is called with.

    Attributes:
        environment: Variables set in its child before it runs, over the parent's; None takes one away.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str | None] | None = None


def warm_up() -> None:
    """Starts the server, if there is none, and returns at once: it imports while others do their work."""
    _suitable_server(environment(None))


def run(
    function: Callable[..., Any],
    *args: Any,
    timeout: float | None = None,
    grace: float = 0.0,
    memory_bytes: int | None = None,
    environment: Mapping[str, str | None] | None = None,
    **kwargs: Any,
) -> Outcome:
    """Runs ``function(*args, **kwargs)`` in a child and says how it went; raises nothing the child raised.

    Args:
        timeout: Seconds after which the child is stopped, counted from its start; None: never. The
            verdict is then "timed out", whatever it still answers.
        grace: Seconds that the child gets to end by itself where it is stopped at its time-out, or
            the caller is interrupted while it waits (Ctrl-C, SystemExit of a SIGTERM handler, an
            error of a listener). It gets SIGTERM, which ends it unless the function has
            installed a handler; what it logs meanwhile still arrives; then it is killed. A second
            interruption kills at once. 0: killed at once.
        memory_bytes: Address space that the child may take over what it starts with, so that
            an allocation fails in it and not elsewhere (Linux; not for GPUs, whose drivers
            reserve far more than they use); None: no limit.
        environment: Variables set in the child before the function runs, over the parent's; None
            takes one away.

    Raises:
        WorkerError: The server that forks children could not be started.
        KeyboardInterrupt: Ctrl-C; the child has ended.
    """
    return _conduct(
        [Call(function, args, kwargs, environment)],
        timeout=timeout,
        grace=grace,
        linger=0.0,
        memory_bytes=memory_bytes,
    )[0]


def together(
    calls: Sequence[Call], *, timeout: float | None = None, grace: float = 0.0, linger: float = 20.0
) -> list[Outcome]:
    """Runs several functions at the same time, each in a child, and says how each went.

    They are taken to depend on each other, as the workers of one training do: when one does not
    end well, the others get ``linger`` seconds to notice, and are then killed.
    :func:`first_failure` tells which one failed first. Progress and log records of the first call
    arrive as those of :func:`run`; of the others warnings and errors only, behind their number.

    Args:
        timeout: Seconds after which all that still run are stopped; None: never.
        grace: As of :func:`run`, for all at once.
        linger: Seconds from the first failure to the killing of the others.

    Raises: as :func:`run`.
    """
    return _conduct(calls, timeout=timeout, grace=grace, linger=linger, memory_bytes=None)


def first_failure(outcomes: Sequence[Outcome]) -> int | None:
    """The place in ``outcomes`` of the first child that did not end well; None where all did."""
    failed = [place for place, outcome in enumerate(outcomes) if outcome.verdict is not Verdict.OK]
    return min(failed, key=lambda place: outcomes[place].order, default=None)


def call(
    function: Callable[..., T],
    *args: Any,
    timeout: float | None = None,
    grace: float = 0.0,
    memory_bytes: int | None = None,
    environment: Mapping[str, str | None] | None = None,
    **kwargs: Any,
) -> T:
    """Runs ``function(*args, **kwargs)`` in a child and returns its value, or raises what went wrong.

    Args: as :func:`run`.

    Raises:
        WorkerError: The child timed out, was killed, ran out of memory, or raised what cannot travel.
        Exception: What the function raised, with the child's traceback as its cause.
    """
    done = run(
        function,
        *args,
        timeout=timeout,
        grace=grace,
        memory_bytes=memory_bytes,
        environment=environment,
        **kwargs,
    )
    return value_of(done, getattr(function, "__name__", "The function"))  # type: ignore[no-any-return]


def value_of(done: Outcome, name: str) -> Any:
    """What the function ``name`` returned, or its error raised, as :func:`call` does."""
    if done.verdict is Verdict.OK:
        return done.value
    if done.error is not None and done.verdict is Verdict.BUG:
        raise done.error
    told = outcome.last_words(done.message)
    if told != done.message:
        raise WorkerError(
            f"{name} failed in its child process: {told}", "--debug shows where it came from."
        ) from ChildTraceback(done.message)
    raise WorkerError(
        f"{name} did not finish in its child process. {done.message}", REMEDY.get(done.verdict, "")
    ) from done.error


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
    # TensorFlow's wheel for TPUs takes the TPU's lock and starts its driver when it is imported
    # (tpu_api_dlsym_initializer.cc), neither of which survives a fork: each child imports it for itself.
    preload = () if tpu.announced() else PRELOAD
    key = (preload, tuple(variables.get(name) for name in _READ_AT_IMPORT))
    with _lock:
        if _current is not None and not (_current.alive() and _current.key == key):
            _current.retire()
            _retired.append(_current)
            _current = None
        for server in [server for server in _retired if not server.alive()]:
            _retired.remove(server)
            server.stop()
        if _current is None:
            _current = Server(key, preload, variables)
        return _current


def _after_fork() -> None:
    # The fork's parent owns the server; this process starts its own when it needs one.
    global _current, _lock
    _lock = threading.Lock()
    for server in (*_retired, *([_current] if _current is not None else [])):
        server.forget()
    _current = None
    _retired.clear()


atexit.register(shut_down)
os.register_at_fork(after_in_child=_after_fork)


# --- from the orders to the outcomes ----------------------------------------------------------


def _conduct(
    calls: Sequence[Call], *, timeout: float | None, grace: float, linger: float, memory_bytes: int | None
) -> list[Outcome]:
    parcels = [
        orders(call.function, call.args, call.kwargs, call.environment, memory_bytes) for call in calls
    ]
    kills_before = host_kills()
    outcomes: dict[Child, Outcome] = {}
    with contextlib.ExitStack() as ends:
        children = _started(calls, ends)
        started = time.monotonic()
        deadline = math.inf if timeout is None else started + timeout
        stop = deadline  # comes sooner where one has failed
        running = list(children)
        try:
            for child, parcel in zip(children, parcels, strict=True):
                child.order(parcel, timeout)
            while running and (ended := next_to_end(running, stop)) is not None:
                running.remove(ended)
                limited = memory_bytes is not None
                outcomes[ended] = outcome.of(ended, started, limited, host_kills() - kills_before)
                if outcomes[ended].verdict is not Verdict.OK:
                    stop = min(stop, time.monotonic() + linger)
        except BaseException:
            if grace > 0:
                _log.warning(_STOPPING, grace)
                ask_to_end(running, grace)
            raise
        seconds = time.monotonic() - started
        for child in running:
            child.print_stack()
        if grace > 0 and stop == deadline:
            ask_to_end(running, grace)
        for child in running:
            child.kill()
    in_order = sorted(outcomes, key=lambda child: child.ended_at)
    verdict, message = Verdict.TIMED_OUT, f"It was stopped at its limit of {timeout or 0:g} s."
    if stop < deadline:
        first = next(child for child in in_order if outcomes[child].verdict is not Verdict.OK)
        verdict = Verdict.KILLED
        message = (
            f"It was ended because worker {children.index(first)} had failed ({outcomes[first].verdict}) "
            f"and it did not end by itself within {linger:g} s."
        )
    for child in running:
        outcomes[child] = outcome.stopped(child, verdict, message, seconds)
    order_of = {child: place for place, child in enumerate([*in_order, *running])}
    return [replace(outcomes[child], order=order_of[child]) for child in children]


def _started(calls: Sequence[Call], ends: contextlib.ExitStack) -> list[Child]:
    """A child for each call, begun and without orders. ``ends`` will end them."""
    for _ in ("with the server there is", "with a new one"):
        children = [Child(_hear if place == 0 else _hear_of(place)) for place in range(len(calls))]
        for child, call in zip(children, calls, strict=True):
            ends.callback(child.end)
            try:
                child.ask(_suitable_server(environment(call.environment)))
            except OSError as error:
                raise WorkerError(
                    f"No child process could be started: {error.strerror}.",
                    "Raise the limits of open files and processes (ulimit -n, ulimit -u), or close some.",
                ) from error
        dead = [child for child in children if not child.begun(START_SECONDS)]
        if not dead:
            return children
        for child in children:
            child.end()
    raise WorkerError(
        "The server that starts child processes ended before it could start one."
        + quoted(dead[0].server.log()),
        '`python -c "import tensorflow, keras"` shows what is wrong with the installation.',
    )


def _hear(kind: str, value: Any) -> None:
    if kind == "progress":
        progress.emit(value.label, value.done, value.total, note=value.note, **value.numbers)
    elif kind == "log":
        logger = logging.getLogger(value["name"])
        if logger.isEnabledFor(value["levelno"]):
            logger.handle(logging.makeLogRecord(value))


def _hear_of(place: int) -> Callable[[str, Any], None]:
    """What is passed on of a child that others run beside: what somebody should know of."""

    def hear(kind: str, value: Any) -> None:
        if kind == "log" and value["levelno"] >= logging.WARNING:
            _hear(kind, {**value, "msg": f"worker {place}: {value['msg']}"})

    return hear
