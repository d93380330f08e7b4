"""A function in a child process, with limits and a verdict: steps of a run, trials of a search.

The process that calls never imports TensorFlow. Its children are forked from a server
(``shared/forkserver.py``) that has it loaded, so a child costs 0.3 s and gives all its
memory back, a hung one is killed at its deadline, and one that is killed for memory is a
verdict instead of the end of the flow.

>>> outcome = run(math.factorial, 20, timeout=60)
>>> outcome.verdict, outcome.value
(<Verdict.OK: 'ok'>, 2432902008176640000)

Function, arguments and result travel by cloudpickle: a function of ``__main__`` or a lambda
will do, and ``__main__`` is not imported again. The child has the parent's folder,
``sys.path`` and environment variables of the moment of the call. Progress and log records of the child
arrive at the listener and the loggers of the calling thread. What it prints is kept to its
tail and told on failure; ``CASEBOOK_DEBUG=1`` lets it through to stderr.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, TypeVar

import cloudpickle

from shared import progress
from shared.errors import CasebookError, WorkerError
from shared.forkserver import LENGTH, STATUS, kill

T = TypeVar("T")

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
"""How long the server may take to import :data:`PRELOAD` (about 4 s; far more from a cold network disk)."""

_TAIL_BYTES = 16_000
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
        peak_bytes: Largest resident memory of the child, with the libraries it shares (some
            300 MB); None where nobody could tell.
    """

    verdict: Verdict
    value: Any = None
    error: BaseException | None = None
    message: str = ""
    seconds: float = 0.0
    peak_bytes: int | None = None


class _ChildTraceback(Exception):
    """Shows the child's traceback above the parent's, as the cause of the error."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


def warm_up() -> None:
    """Starts the server, if there is none, and returns at once; it imports while others do their work."""
    _server(_environment(None))


def run(
    function: Callable[..., Any],
    *args: Any,
    timeout: float | None = None,
    memory_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> Outcome:
    """Runs ``function(*args, **kwargs)`` in a child and says how it went. Raises nothing the child raised.

    Args:
        timeout: Seconds after which the child is killed, counted from its start; None: never.
        memory_bytes: Address space that the child may take over what it starts with, so that
            an allocation fails in it and not elsewhere (Linux; not for GPUs, whose drivers
            reserve far more than they use); None: no limit.
        environment: Variables set in the child before the function runs, over the parent's.

    Raises:
        WorkerError: The server that forks children could not be started.
        KeyboardInterrupt: Ctrl-C; the child has been killed.
    """
    variables = _environment(environment)
    orders = {
        "call": cloudpickle.dumps((function, args, kwargs)),
        "environment": variables,
        "folder": _folder(),
        "path": list(sys.path),
        "argv": list(sys.argv),
        "levels": _log_levels(),
        "memory_bytes": memory_bytes,
    }
    for attempt in (1, 2):
        child = _Child(_server(variables))
        try:
            if not child.begun():
                if attempt == 2:
                    raise WorkerError(
                        "The server that starts child processes ended before it could start one."
                        + _quoted(child.server.log()),
                        "`python -c 'import tensorflow, keras'` shows what is wrong with the installation.",
                    )
                continue
            return child.outcome(cloudpickle.dumps(orders), timeout, memory_bytes)
        finally:
            child.end()
    raise AssertionError("unreachable")


def call(
    function: Callable[..., T],
    *args: Any,
    timeout: float | None = None,
    memory_bytes: int | None = None,
    environment: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> T:
    """Runs ``function(*args, **kwargs)`` in a child and returns its value, or raises what went wrong.

    Args: as :func:`run`.

    Raises:
        WorkerError: The child timed out, was killed or ran out of memory, or raised what cannot travel.
        Exception: What the function raised, with the child's traceback as its cause.
    """
    outcome = run(
        function, *args, timeout=timeout, memory_bytes=memory_bytes, environment=environment, **kwargs
    )
    if outcome.verdict is Verdict.OK:
        return outcome.value  # type: ignore[no-any-return]
    if outcome.error is not None and outcome.verdict is Verdict.BUG:
        raise outcome.error
    raise WorkerError(outcome.message, _REMEDY.get(outcome.verdict, "")) from outcome.error


_REMEDY = {
    Verdict.OUT_OF_MEMORY: "Use a smaller batch or model, or a machine with more memory.",
    Verdict.TIMED_OUT: "Give it more time, or less to do.",
    Verdict.KILLED: "Look for what killed it: another person, a job scheduler, or a crash in native code.",
}


def shut_down() -> None:
    """Ends the server and with it every child, in whatever thread it was waited for."""
    global _current
    with _lock:
        server, _current = _current, None
    if server is not None:
        server.stop()


# --- the server, as the parent sees it ---------------------------------------------------


class _Server:
    def __init__(self, key: object, variables: Mapping[str, str]) -> None:
        self.key = key
        self.owner = os.getpid()
        self.forked = False
        self._log = tempfile.TemporaryFile(prefix="casebook-server-")  # noqa: SIM115  (closed in stop)
        self._control, theirs = socket.socketpair()
        boot = (
            f"import sys; sys.path[:] = {list(sys.path)!r}; from shared.forkserver import serve; "
            f"serve({theirs.fileno()}, {PRELOAD!r})"
        )
        # A fixed hash seed gives every child of every server the same order of sets.
        variables = {"PYTHONHASHSEED": "0", **variables}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", boot],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=variables,
            )
        self._sending = threading.Lock()

    def alive(self) -> bool:
        return self.owner == os.getpid() and self._process.poll() is None

    def request(self, *fds: int) -> bool:
        """Asks for a child; False where the server has died."""
        try:
            with self._sending:
                socket.send_fds(self._control, [b"c"], list(fds))
        except OSError:
            return False
        return True

    def retire(self) -> None:
        """Lets the server leave when its last child has."""
        with contextlib.suppress(OSError), self._sending:
            self._control.send(b"d")

    def stop(self) -> None:
        if self.owner != os.getpid():
            return
        self._control.close()
        try:
            # While it imports it cannot hear, but then it has no children either.
            self._process.wait(timeout=1.0 if self.forked else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def log(self) -> str:
        return "" if self._log.closed else _tail_of(self._log)


_lock = threading.Lock()
_current: _Server | None = None
_retired: list[_Server] = []


def _server(variables: Mapping[str, str]) -> _Server:
    """A living server that suits ``variables``: the current one, or a new one in its place."""
    global _current
    key = (PRELOAD, tuple(variables.get(name) for name in _READ_AT_IMPORT))
    with _lock:
        if _current is not None and not (_current.alive() and _current.key == key):
            old, _current = _current, None
            if old.alive():
                old.retire()
                _retired.append(old)
            else:
                old.stop()
        for old in [server for server in _retired if not server.alive()]:
            _retired.remove(old)
            old.stop()
        if _current is None:
            _current = _Server(key, variables)
        return _current


def _at_exit() -> None:
    shut_down()
    while _retired:
        _retired.pop().stop()


def _after_fork() -> None:
    # The fork's parent owns the server; this process starts its own when it needs one.
    global _current, _lock
    _lock = threading.Lock()
    _current = None
    _retired.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)


# --- a child, as the parent sees it ------------------------------------------------------


@dataclass
class _Exit:
    code: int
    peak_bytes: int | None


class _Child:
    """One child from request to exit. All its work is done in the calling thread."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.pid: int | None = None
        self._exit: _Exit | None = None
        self._answer: dict[str, Any] | None = None
        self._incoming = bytearray()
        self._printed = bytearray()
        self._kills_before = _host_kills()
        self._talk, theirs = socket.socketpair()
        self._status, status = os.pipe()
        self._output, output = os.pipe()
        try:
            self._asked = server.request(theirs.fileno(), status, output)
        finally:
            theirs.close()
            os.close(status)
            os.close(output)
        os.set_blocking(self._output, False)

    def begun(self) -> bool:
        """Waits for the server to fork; False where it died instead."""
        if not self._asked:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ)
            if not selector.select(START_SECONDS):
                raise WorkerError(
                    f"TensorFlow could not be imported within {START_SECONDS:.0f} s."
                    + _quoted(self.server.log()),
                    "Look at the load of this machine and the speed of the disk that Python is installed on.",
                )
        self._read_status()
        return self.pid is not None

    def outcome(self, orders: bytes, timeout: float | None, memory_bytes: int | None) -> Outcome:
        started = time.monotonic()
        deadline = None if timeout is None else started + timeout
        with contextlib.suppress(ConnectionError, TimeoutError):  # the exit status says why
            self._talk.settimeout(timeout)
            self._talk.sendall(LENGTH.pack(len(orders)) + orders)
        self._talk.setblocking(False)
        in_time = self._listen(deadline)
        seconds = time.monotonic() - started
        if not in_time:
            self._ask_for_stack()
            self.end()
            return self._failed(Verdict.TIMED_OUT, f"It was stopped at its limit of {timeout:g} s.", seconds)
        self._wait_for_exit(5.0)
        if self._answer is None:
            verdict, message = _why(
                self._exit, self._tail(), memory_bytes, _host_kills() - self._kills_before
            )
            return self._failed(verdict, message, seconds)
        return self._delivered(self._answer)

    def _listen(self, deadline: float | None) -> bool:
        """Passes on what the child says until it has answered or ended; False at the deadline."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._talk, selectors.EVENT_READ, self._read_talk)
            selector.register(self._output, selectors.EVENT_READ, self._read_output)
            selector.register(self._status, selectors.EVENT_READ, self._read_status)
            while self._answer is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                for key, _ in selector.select(left):
                    if not key.data():
                        selector.unregister(key.fileobj)
                if self._exit is not None:
                    # What it said before it ended is still in the sockets.
                    while self._read_talk():
                        pass
                    break
        while self._read_output(once=False):
            pass
        return True

    def _read_talk(self) -> bool:
        """Takes what there is; False when nothing more will come, or (non-blocking) has come."""
        try:
            piece = self._talk.recv(1 << 20)
        except BlockingIOError:
            return self._exit is None
        except ConnectionError:
            return False
        if not piece:
            return False
        self._incoming += piece
        while len(self._incoming) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._incoming)
            if len(self._incoming) < LENGTH.size + length:
                break
            message = bytes(self._incoming[LENGTH.size : LENGTH.size + length])
            del self._incoming[: LENGTH.size + length]
            self._hear(*_load(message))
        return True

    def _hear(self, kind: str, value: Any) -> None:
        if kind == "progress":
            progress.emit(value.label, value.done, value.total, note=value.note, **value.numbers)
        elif kind == "log":
            logger = logging.getLogger(value["name"])
            if logger.isEnabledFor(value["levelno"]):
                logger.handle(logging.makeLogRecord(value))
        elif kind == "result":
            self._answer = value

    def _read_output(self, once: bool = True) -> bool:
        try:
            piece = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return once
        if not piece:
            return False
        self._printed += piece
        if len(self._printed) > 4 * _TAIL_BYTES:
            del self._printed[:-_TAIL_BYTES]
        if os.environ.get("CASEBOOK_DEBUG") == "1":
            sys.stderr.write(piece.decode("utf-8", "replace"))
        return True

    def _read_status(self) -> bool:
        data = os.read(self._status, STATUS.size)
        if len(data) < STATUS.size:
            if self._exit is None and self.pid is not None:
                self._exit = _Exit(-signal.SIGKILL, None)  # the server died, and took the child along
            return False
        kind, value, peak = STATUS.unpack(data)
        if kind == 0:
            self.pid = value
            self.server.forked = True
        else:
            self._exit = _Exit(value, peak * (1 if sys.platform == "darwin" else 1024))
        return True

    def _wait_for_exit(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            while self._exit is None and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    # A child with a full pipe of output cannot leave.
                    more = self._read_output() if key.fd == self._output else self._read_status()
                    if not more:
                        selector.unregister(key.fileobj)
                if not selector.get_map():
                    return

    def _ask_for_stack(self) -> None:
        """Lets the child's fault handler print where it hangs."""
        before = len(self._printed)
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)
            deadline = time.monotonic() + 0.5
            while time.monotonic() < deadline and len(self._printed) == before:
                time.sleep(0.05)
                while self._read_output(once=False):
                    pass

    def _delivered(self, answer: Mapping[str, Any]) -> Outcome:
        peak = self._exit.peak_bytes if self._exit else None
        if answer["value"] is not None:
            try:
                value = _load(answer["value"])
            except Exception as error:
                return Outcome(Verdict.BUG, None, error, str(error), answer["seconds"], peak)
            return Outcome(Verdict.OK, value, None, "", answer["seconds"], peak)
        error = None
        if answer["error"] is not None:
            with contextlib.suppress(Exception):
                error = _load(answer["error"])
        if error is not None:
            error.__cause__ = _ChildTraceback(answer["traceback"])
        if answer["out_of_memory"]:
            last = answer["traceback"].strip().splitlines()[-1][:300]
            message = f"It ran out of memory: {last}"
            return Outcome(Verdict.OUT_OF_MEMORY, None, error, message, answer["seconds"], peak)
        if isinstance(error, CasebookError):
            message = error.message
        else:
            message = answer["traceback"].strip() + _quoted(self._tail())
        return Outcome(Verdict.BUG, None, error, message, answer["seconds"], peak)

    def _failed(self, verdict: Verdict, message: str, seconds: float) -> Outcome:
        peak = self._exit.peak_bytes if self._exit else None
        return Outcome(verdict, None, None, message + _quoted(self._tail()), seconds, peak)

    def _tail(self) -> str:
        return bytes(self._printed[-_TAIL_BYTES:]).decode("utf-8", "replace").strip()

    def end(self) -> None:
        """Kills the child if it lives, waits for it, and closes everything. May be called twice."""
        if self.pid is not None and self._exit is None:
            kill(self.pid)
            self._wait_for_exit(5.0)
        self._talk.close()
        for fd in (self._status, self._output):
            if fd >= 0:
                os.close(fd)
        self._status = self._output = -1


def _why(exit: _Exit | None, tail: str, memory_bytes: int | None, host_kills: int) -> tuple[Verdict, str]:
    """The verdict on a child that ended without an answer."""
    if exit is None:
        return Verdict.KILLED, "It ended without an answer."
    words = tail.lower()
    short = any(text in words for text in ("bad_alloc", "out of memory", "cannot allocate memory"))
    # Under a limit, starting a thread is what may fail first.
    short = short or (memory_bytes is not None and "resource temporarily unavailable" in words)
    if exit.code >= 0:
        if short:
            return Verdict.OUT_OF_MEMORY, "It ran out of memory."
        return Verdict.BUG, f"It left with exit code {exit.code} before it could answer."
    name = signal.Signals(-exit.code).name
    if short:
        return Verdict.OUT_OF_MEMORY, f"It ran out of memory and ended by {name}."
    if -exit.code == signal.SIGKILL:
        small = exit.peak_bytes is not None and exit.peak_bytes < _total_memory() / 4
        if host_kills > 0:
            return Verdict.OUT_OF_MEMORY, "The operating system killed it (SIGKILL): memory ran out."
        if not small:
            return Verdict.OUT_OF_MEMORY, "It was killed (SIGKILL): most probably memory ran out."
    return Verdict.KILLED, f"It was ended by {name}."


def _host_kills() -> int:
    """How often this machine's kernel has killed a process for memory; 0 where it doesn't say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _total_memory() -> int:
    """Memory of this machine, or of the container, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(file).read_text()))
    return total


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


def _load(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, **(extra or {})}


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


def _quoted(tail: str, lines: int = 30) -> str:
    kept = [line for line in tail.splitlines() if not line.startswith("Extension modules:")][-lines:]
    return "\nThe last it printed:\n" + "\n".join(f"    {line}" for line in kept) if kept else ""


def _tail_of(file: IO[bytes]) -> str:
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    return file.read().decode("utf-8", "replace").strip()
