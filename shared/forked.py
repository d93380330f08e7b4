"""What a forked child does: it takes its orders, becomes like its parent, runs the function, answers, leaves.

What goes back must unpickle without TensorFlow, so an error of TensorFlow's own goes as text.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import io
import linecache
import logging
import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle

from shared import progress
from shared.errors import WorkerError, is_disk_full
from shared.messages import HEAD, TALK, VALUE

_PR_SET_PDEATHSIG = 1
_M_ARENA_MAX = -8


def work(talk: int, output: int) -> None:
    """All that a child does; never returns.

    Args:
        talk: Descriptor of the socket to the parent.
        output: Descriptor of the pipe for stdout and stderr.
    """
    code = 1
    try:
        server = os.getppid()
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Whatever this machine's job scheduler or nohup had ignored or blocked: SIGTERM ends a child,
        # unless its function wants to save something first.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
        # A program that the function starts must hold no end of these.
        os.set_inheritable(talk, False)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        # Line by line, so that the last words before a crash are not lost in a buffer.
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), "utf-8", "replace", line_buffering=True)
            for fd in (1, 2)
        )
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        faulthandler.enable(sys.stderr)
        faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)
        parent = Talk(socket.socket(fileno=talk))
        orders = pickle.loads(parent.read())  # noqa: S301  (our own parent's)
        threading.Thread(target=parent.leave_with, name="casebook-watchdog", daemon=True).start()
        with _settled(orders, parent):
            answer, value = _answer(orders)
        if value is not None:
            parent.send_value(value)
        parent.send("answer", answer)
        code = 0
    except ConnectionError:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class Talk:
    """A child's end of the socket to its parent. Threads may send at once; a fork of the child is not heard."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def read(self) -> bytes:
        """One message."""
        length, _ = HEAD.unpack(self._exactly(HEAD.size))
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        buffer = io.BytesIO()
        while buffer.tell() < size:
            piece = self._link.recv(min(size - buffer.tell(), 1 << 20))
            if not piece:
                raise ConnectionError("the parent has gone")
            buffer.write(piece)
        return buffer.getvalue()

    def send(self, kind: str, value: Any) -> None:
        self._send(TALK, cloudpickle.dumps((kind, value)))

    def send_value(self, pickled: bytes) -> None:
        """What the function returned; the answer follows."""
        self._send(VALUE, pickled)

    def _send(self, what: int, data: bytes) -> None:
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._link.sendall(HEAD.pack(len(data), what))
            self._link.sendall(data)

    def leave_with(self) -> None:
        """Ends this process, and what it has started, when the parent has gone; it says nothing after the orders."""
        with contextlib.suppress(OSError):
            self._link.recv(1)
        os.killpg(0, signal.SIGKILL)


@contextlib.contextmanager
def _settled(orders: Mapping[str, Any], parent: Talk) -> Iterator[None]:
    """Makes this process as like the parent as it must be: folder, paths, variables, log levels."""
    os.environ.clear()
    os.environ.update(orders["environment"])
    time.tzset()
    tempfile.tempdir = None  # read TMPDIR anew
    with contextlib.suppress(OSError):
        os.chdir(orders["folder"])
    sys.path[:] = orders["path"]
    sys.argv[:] = orders["argv"]
    importlib.invalidate_caches()
    for name, lines in orders["sources"].items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    for name, level in orders["levels"].items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().addHandler(_ToParent(parent))
    if "numpy" in sys.modules:
        # Every child of one server would draw the same "random" numbers.
        sys.modules["numpy"].random.seed()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        # Where memory runs out, this process goes and not the flow that waits for it.
        file.write("500")
    if orders["memory_bytes"] is not None:
        limit_memory(orders["memory_bytes"])
    with progress.listening(lambda report: parent.send("progress", report)):
        yield


def limit_memory(extra: int) -> None:
    """Limits this process to ``extra`` bytes of address space over what it has now (Linux only)."""
    try:
        with open("/proc/self/statm") as file:
            current = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    with contextlib.suppress(AttributeError, OSError):
        # glibc reserves 64 MiB of address space for each of up to 8 arenas a core, used or not.
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, max(2, os.cpu_count() or 1))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = current + extra
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


class _ToParent(logging.Handler):
    def __init__(self, parent: Talk) -> None:
        super().__init__()
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        try:
            plain = {
                name: record.__dict__[name]
                for name in (
                    "name",
                    "levelno",
                    "levelname",
                    "pathname",
                    "lineno",
                    "funcName",
                    "created",
                    "msecs",
                )
            }
            plain["msg"] = self.format(record)
            self._parent.send("log", plain)
        except Exception:
            self.handleError(record)


def _answer(orders: Mapping[str, Any]) -> tuple[dict[str, Any], bytes | None]:
    """Runs the function; the answer holds only what pickles and needs no TensorFlow to unpickle.

    Returns:
        The answer, and what the function returned, pickled; None where it returned nothing that can travel.
    """
    started = time.perf_counter()
    answer: dict[str, Any] = {"error": None, "traceback": "", "out_of_memory": False}
    value = None
    try:
        function, args, kwargs = pickle.loads(orders["call"])  # noqa: S301  (our own parent's)
        value = _pickled(function(*args, **kwargs))
    except BaseException as error:
        # Telling about it needs memory too.
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        answer["traceback"] = "".join(traceback.format_exception(error))
        answer["out_of_memory"] = is_out_of_memory(error)
        answer["error"] = _portable(error)
    # The function has ended: asked to end now, the child still tells how.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answer["returned"] = value is not None
    answer["seconds"] = time.perf_counter() - started
    answer["at"] = time.monotonic()
    return answer, value


def _pickled(value: Any) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(value)
    except MemoryError:
        raise
    except Exception as error:
        raise WorkerError(
            f"What the function returned, {type(value).__name__}, cannot leave its child process: {error}",
            "Return plain data or numpy arrays, or write a file and return its path.",
        ) from error
    return data


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether this error, or one that it was raised from, says that memory ran out.

    By type, because inside ``fit`` the first line of ResourceExhaustedError is only "Graph
    execution error:". Text decides for those errors alone that TensorFlow raises for many reasons.
    """
    tensorflow = sys.modules.get("tensorflow")
    exhausted: tuple[type, ...] = (MemoryError,)
    vague: tuple[type, ...] = ()
    if tensorflow is not None and hasattr(tensorflow, "errors"):
        errors = tensorflow.errors
        exhausted += (errors.ResourceExhaustedError,)
        vague = (
            errors.InternalError,
            errors.UnknownError,
            errors.AbortedError,
            errors.FailedPreconditionError,
        )
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error).lower()
        if is_disk_full(error):
            return False
        if isinstance(error, exhausted):
            return True
        if isinstance(error, vague) and ("out of memory" in text or "out_of_memory" in text):
            return True
        if isinstance(error, RuntimeError) and "can't start new thread" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


def _portable(error: BaseException) -> bytes | None:
    """The error pickled, or None where it would not come out of the pickle, or drags TensorFlow along."""
    if not isinstance(error, Exception):
        return None
    if type(error).__module__.partition(".")[0] in ("tensorflow", "keras", "jax", "torch"):
        return None
    try:
        data: bytes = cloudpickle.dumps(error.with_traceback(None))
        pickle.loads(data)  # noqa: S301  (made in the line above)
    except Exception:
        return None
    return data
