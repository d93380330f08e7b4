"""The other side of ``shared/worker.py``: the server that forks, and the child that works.

The server is a process of one thread that has TensorFlow imported and does nothing but
fork: importing starts no device, so each child opens its own, with its own limits, in
0.3 s instead of 5. It never lists devices: a GPU opened before a fork is unusable after it.

It leads a session of its own, so a terminal's Ctrl-C reaches the parent only, which then
kills what it started. Nothing outlives the parent, by three independent means: the server
kills its children when the control socket ends, the kernel kills them when the server
dies (Linux), and each child's watchdog thread leaves when its own socket ends.

Not built on ``multiprocessing``'s fork server, because that one runs the parent's
``__main__`` again (a script without a guard would start itself), prints TensorFlow's noise
on the terminal, and keeps the environment of the moment it was started.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import importlib
import io
import linecache
import logging
import os
import pickle
import resource
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

from shared import progress

LENGTH = struct.Struct("!Q")
"""In front of every message: its length in bytes."""
STATUS = struct.Struct("!qqq")
"""What the server says of a child: (BEGUN, pid, 0), then (ENDED, exit status, peak RSS in KiB), or
instead of both (REFUSED, errno, 0)."""
BEGUN, ENDED, REFUSED = range(3)

_PR_SET_PDEATHSIG = 1
_M_ARENA_MAX = -8


def serve(control_fd: int, preload: Sequence[str]) -> None:
    """Forks a child for every request on the control socket, until that socket ends.

    A request is one byte with three file descriptors: the child's socket to the parent,
    the pipe on which the server reports :data:`STATUS`, and the pipe for stdout and stderr.
    The byte ``d`` without descriptors means: no more will come, leave when the last child has.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in preload:
        try:
            importlib.import_module(name)
        except Exception:
            # The child that needs it fails at its own import, with the right error.
            traceback.print_exc()
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)

    control = socket.socket(fileno=control_fd)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    children: dict[int, int] = {}
    open_to_requests = True
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        ahead = _conversions()
        while open_to_requests or children:
            ready = {key.fileobj for key, _ in selector.select(0 if ahead else None)}
            if ahead and not ready:
                ahead.pop()()
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                _reap(children)
            if control not in ready:
                continue
            try:
                order, fds, _, _ = socket.recv_fds(control, 1, 3)
            except ConnectionError:
                order, fds = b"", []
            if order == b"d":
                open_to_requests = False
            elif not order:
                for pid in children:
                    kill(pid)
                break
            elif len(fds) == 3:
                talk, status, output = fds
                try:
                    pid = os.fork()
                except OSError as error:
                    _report(status, REFUSED, error.errno or 0, 0)
                    for fd in fds:
                        os.close(fd)
                    continue
                if pid == 0:
                    selector.close()
                    for fd in (control_fd, wake_read, wake_write, status, *children.values()):
                        os.close(fd)
                    _work(talk, output)
                with contextlib.suppress(OSError):
                    os.setpgid(pid, pid)
                children[pid] = status
                _report(status, BEGUN, pid, 0)
                os.close(talk)
                os.close(output)
    _remove_generated()
    os._exit(0)


def _conversions() -> list[Callable[[], object]]:
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
        if callable(function) and not name.startswith("__") and name not in ("run", "iterate")
    ]
    # tf.function asks for those it wraps; what they call is converted without being asked for.
    wrapped = ("_many", "_together")
    return [functools.partial(convert, method, method.__name__ in wrapped) for method in reversed(methods)]


def _remove_generated(but: Iterable[str] = ()) -> None:
    """Removes the files that AutoGraph leaves to an ``atexit`` that these processes never reach."""
    for name in [name for name in sys.modules if name.startswith("__autograph_generated_file")]:
        file = getattr(sys.modules[name], "__file__", None)
        if file and name not in but:
            with contextlib.suppress(OSError):
                os.unlink(file)


def kill(pid: int) -> None:
    """Kills a child and all that it started in its group. Quiet where it is gone already."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # It has not yet become the leader of its group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _reap(children: dict[int, int]) -> None:
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        pipe = children.pop(pid, None)
        if pipe is not None:
            _report(pipe, ENDED, os.waitstatus_to_exitcode(status), usage.ru_maxrss)
            os.close(pipe)


def _report(pipe: int, *values: int) -> None:
    # A parent that has gone away needs no report.
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, STATUS.pack(*values))


def _work(talk: int, output: int) -> None:
    """The child: takes the orders, runs the function, tells the result, leaves. Never returns."""
    code = 1
    inherited = list(sys.modules)
    try:
        server = os.getppid()
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
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
            answer = _answer(orders)
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
            _remove_generated(but=inherited)
        os._exit(code)


class Talk:
    """A child's end of the socket to its parent. Threads may send at once."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()

    def read(self) -> bytes:
        """One message."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
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
        data = cloudpickle.dumps((kind, value))
        with self._lock:
            self._link.sendall(LENGTH.pack(len(data)))
            self._link.sendall(data)

    def leave_with(self) -> None:
        """Ends this process when the parent has gone; it says nothing after the orders."""
        with contextlib.suppress(OSError):
            self._link.recv(1)
        os._exit(1)


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


def _answer(orders: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the function; the answer holds only what pickles and needs no TensorFlow to unpickle."""
    started = time.perf_counter()
    answer: dict[str, Any] = {"value": None, "error": None, "traceback": "", "out_of_memory": False}
    try:
        function, args, kwargs = pickle.loads(orders["call"])  # noqa: S301  (our own parent's)
        answer["value"] = cloudpickle.dumps(function(*args, **kwargs))
    except BaseException as error:
        # Telling about it needs memory too.
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        answer["traceback"] = "".join(traceback.format_exception(error))
        answer["out_of_memory"] = is_out_of_memory(error)
        answer["error"] = _portable(error)
    answer["seconds"] = time.perf_counter() - started
    return answer


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
