"""The parent's handles on the fork server and on one child: sockets, pipes and process ids.

``shared/worker.py`` decides what to run and what its end means; ``shared/forkserver.py`` and
``shared/forked.py`` are what runs on the other side. All of a child's life is watched from the thread that asked for
it, in one loop over three streams: what it says, what it prints, and what the server says of it.
"""

from __future__ import annotations

import contextlib
import io
import linecache
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
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import IO, Any

import cloudpickle

from shared.errors import WorkerError
from shared.forked import LENGTH
from shared.forkserver import BEGUN, REFUSED, STATUS, kill

_TAIL_BYTES = 16_000


class Server:
    """A running fork server. Its children die with it, and it with this object's process."""

    def __init__(self, key: object, preload: tuple[str, ...], variables: Mapping[str, str]) -> None:
        self.key = key
        self.owner = os.getpid()
        self.forked = False
        self._broken = False
        self._log = tempfile.TemporaryFile(prefix="casebook-server-")  # noqa: SIM115  (closed in stop)
        self._control, theirs = socket.socketpair()
        self._sending = threading.Lock()
        boot = (
            f"import sys; sys.path[:] = {list(sys.path)!r}; from shared.forkserver import serve; "
            f"serve({theirs.fileno()}, {preload!r})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", boot],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                # A fixed hash seed gives the children of every server the same order of sets.
                env={"PYTHONHASHSEED": "0", **variables},
            )

    def alive(self) -> bool:
        return self.owner == os.getpid() and not self._broken and self._process.poll() is None

    def request(self, *fds: int) -> bool:
        """Asks for a child; False where the server has died."""
        try:
            with self._sending:
                socket.send_fds(self._control, [b"c"], list(fds))
        except OSError:
            return False
        return True

    def found_dead(self) -> None:
        """Notes that it hung up: its process may still be about to leave."""
        self._broken = True

    def retire(self) -> None:
        """Lets the server leave when its last child has."""
        with contextlib.suppress(OSError), self._sending:
            self._control.send(b"d")

    def stop(self) -> None:
        """Ends the server and all its children."""
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
        """The end of what the server printed."""
        return "" if self._log.closed else _tail_of(self._log)


@dataclass(frozen=True)
class Exit:
    """How a child left: its exit status (negative: a signal) and largest resident memory."""

    code: int
    peak_bytes: int | None


class Child:
    """One child from request to exit.

    Attributes:
        pid: Known once :meth:`begun` has returned True.
        exit: Set when the child has left.
        answer: What it answered, see ``forkserver``; None where it left without.
    """

    def __init__(self, server: Server, hear: Callable[[str, Any], None]) -> None:
        """Asks ``server`` for a child; ``hear(kind, value)`` gets what it says before its answer."""
        self.server = server
        self.pid: int | None = None
        self.exit: Exit | None = None
        self.answer: dict[str, Any] | None = None
        self._hear = hear
        self._incoming: list[bytes | memoryview] = []
        self._reports: list[bytes] = []
        self._printed = bytearray()
        self._talk, theirs = socket.socketpair()
        self._status, status = os.pipe()
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        try:
            self._asked = server.request(theirs.fileno(), status, output)
        finally:
            theirs.close()
            os.close(status)
            os.close(output)

    def begun(self, seconds: float) -> bool:
        """Waits for the server to fork; False where it died instead.

        Raises:
            WorkerError: Nothing happened for ``seconds``, or the system has no room for a process.
        """
        if not self._asked:
            self.server.found_dead()
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ)
            if not selector.select(seconds):
                raise WorkerError(
                    f"TensorFlow could not be imported within {seconds:.0f} s.{quoted(self.server.log())}",
                    "Look at the load of this machine and the speed of the disk that Python is installed on.",
                )
        self._read_status()
        if self.pid is None:
            self.server.found_dead()
        return self.pid is not None

    def order(self, orders: bytes, timeout: float | None) -> None:
        """Sends the orders. Where that fails the child has left, and its exit says why."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            self._talk.settimeout(timeout)
            self._talk.sendall(LENGTH.pack(len(orders)) + orders)
        self._talk.setblocking(False)

    def listen(self, deadline: float | None) -> bool:
        """Passes on what the child says until it has answered or left; False at the deadline.

        Args:
            deadline: By ``time.monotonic()``; None: none.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._talk, selectors.EVENT_READ, self._read_talk)
            selector.register(self._output, selectors.EVENT_READ, self._read_output)
            selector.register(self._status, selectors.EVENT_READ, self._read_status)
            while self.answer is None and self.exit is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                for key, _ in selector.select(left):
                    if not key.data():
                        selector.unregister(key.fileobj)
        self._wait_for_exit(5.0)
        # What it said and printed before it left is still in the streams.
        while self.answer is None and self._read_talk(again=False):
            pass
        while self._read_output(again=False):
            pass
        return True

    def ask_to_end(self, grace: float) -> bool:
        """Sends SIGTERM and goes on listening for up to ``grace`` seconds; False where it then still runs."""
        hear = self._hear

        def hear_on(kind: str, value: Any) -> None:
            # Whoever listens may be what has failed, and that is no reason to take the time away.
            with contextlib.suppress(Exception):
                hear(kind, value)

        self._hear = hear_on
        self._signal(signal.SIGTERM)
        return self.listen(time.monotonic() + grace)

    def _signal(self, number: int) -> None:
        if self.pid is not None and self.exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def print_stack(self) -> None:
        """Lets the child's fault handler print where it hangs."""
        before = len(self._printed)
        if self.pid is None:
            return
        self._signal(signal.SIGUSR1)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and len(self._printed) == before:
            time.sleep(0.05)
            while self._read_output(again=False):
                pass

    def printed(self) -> str:
        """The end of what the child printed."""
        return bytes(self._printed[-_TAIL_BYTES:]).decode("utf-8", "replace").strip()

    def end(self) -> None:
        """Kills the child if it lives, waits for it, and closes everything. May be called twice."""
        if self._status < 0:
            return
        if self.pid is not None and self.exit is None:
            kill(self.pid)
            self._wait_for_exit(5.0)
        self._talk.close()
        os.close(self._status)
        os.close(self._output)
        self._status = self._output = -1

    def _read_talk(self, again: bool = True) -> bool:
        """Takes what has come; False when the stream has ended, or (not ``again``) is empty."""
        try:
            # One call into C: a Ctrl-C falls before or after it, and takes no bytes out of the stream.
            self._incoming.extend(map(self._talk.recv, (1 << 20,)))
        except BlockingIOError:
            return again
        except ConnectionError:
            return False
        if not self._incoming[-1]:
            return False
        while (message := self._first_message()) is not None:
            try:
                kind, value = load(message)
                if kind == "answer":
                    self.answer = value
                else:
                    self._hear(kind, value)
            finally:
                # Also where the listener raises: what was half heard must not be read as a length.
                self._incoming[0] = self._incoming[0][LENGTH.size + len(message) :]
        return True

    def _first_message(self) -> memoryview | None:
        """The first message, where it is here in full."""
        size = sum(map(len, self._incoming))
        if size < LENGTH.size:
            return None
        if len(self._incoming[0]) < LENGTH.size:
            self._incoming[:] = [b"".join(self._incoming)]
        (length,) = LENGTH.unpack_from(self._incoming[0])
        if size < LENGTH.size + length:
            return None
        if len(self._incoming) > 1:
            self._incoming[:] = [b"".join(self._incoming)]
        self._incoming[0] = memoryview(self._incoming[0])
        return self._incoming[0][LENGTH.size : LENGTH.size + length]

    def _read_output(self, again: bool = True) -> bool:
        try:
            piece = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return again
        if not piece:
            return False
        self._printed += piece
        if len(self._printed) > 4 * _TAIL_BYTES:
            del self._printed[:-_TAIL_BYTES]
        if os.environ.get("CASEBOOK_DEBUG") == "1":
            sys.stderr.write(piece.decode("utf-8", "replace"))
        return True

    def _read_status(self) -> bool:
        self._reports.extend(map(os.read, (self._status,), (STATUS.size,)))  # in one call, as above
        data = self._reports[-1]
        if len(data) < STATUS.size:
            if self.pid is not None and self.exit is None:
                self.exit = Exit(-signal.SIGKILL, None)  # the server died, and took the child along
            return False
        kind, value, peak = STATUS.unpack(data)
        if kind == BEGUN:
            self.pid = value
            self.server.forked = True
        elif kind == REFUSED:
            raise WorkerError(
                f"The system refused another process: {os.strerror(value)}.",
                "Free some memory, or raise the limit on processes (ulimit -u).",
            )
        else:
            self.exit = Exit(value, peak * (1 if sys.platform == "darwin" else 1024))
        return True

    def _wait_for_exit(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ, self._read_status)
            selector.register(self._output, selectors.EVENT_READ, self._read_output)
            while self.exit is None and (left := deadline - time.monotonic()) > 0:
                # Its output is read too: a child before a full pipe cannot leave.
                for key, _ in selector.select(left):
                    if not key.data():
                        selector.unregister(key.fileobj)


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
    """What a child has pickled.

    Raises:
        WorkerError: It would import TensorFlow here.
    """
    return _Unpickler(io.BytesIO(data)).load()


def quoted(text: str, lines: int = 40) -> str:
    """The last lines of a process's output, to put behind a message; empty for none."""
    kept = [line for line in text.splitlines() if not line.startswith("Extension modules:")][-lines:]
    return "\nThe last it printed:\n" + "\n".join(f"    {line}" for line in kept) if kept else ""


def _tail_of(file: IO[bytes]) -> str:
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    return file.read().decode("utf-8", "replace").strip()
