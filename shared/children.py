"""The parent's handle on one child: a socket, two pipes and a process id.

``shared/worker.py`` decides what to run and what its end means; ``shared/forkserver.py`` and
``shared/forked.py`` are what runs on the other side. All of a child's life is watched from the
thread that asked for it, in one loop over three streams: what it says, what it prints, and what
the server says of it. That loop may be left by an exception at any instant (Ctrl-C) and taken up again.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shared.errors import WorkerError
from shared.forkserver import BEGUN, REFUSED, STATUS, kill
from shared.messages import HEAD, TALK, VALUE, Incoming
from shared.parcel import load
from shared.server import TAIL_BYTES, Server, quoted

_PIPE_READS = 64
"""More than a full pipe holds: where someone still writes, emptying it must have an end."""

LEAVE_SECONDS = 5.0
"""How long a child may take to leave when it has answered, or been killed."""


@dataclass(frozen=True)
class Exit:
    """How a child left: its exit status (negative: a signal), largest resident memory, and when."""

    code: int
    peak_bytes: int | None
    at: float = 0.0


class Child:
    """One child from request to exit.

    Attributes:
        pid: Known once :meth:`begun` has returned True.
        exit: Set when the child has left.
        answer: What it answered, see ``forked``; None where it left without.
        leave_by: When it is waited for no longer: some seconds after its answer.
    """

    def __init__(self, hear: Callable[[str, Any], None]) -> None:
        """``hear(kind, value)`` gets what the child says before its answer."""
        self.pid: int | None = None
        self.exit: Exit | None = None
        self.answer: dict[str, Any] | None = None
        self._hear = hear
        self._value: memoryview | None = None
        self.leave_by = math.inf
        self._reports: list[bytes] = []
        self._printed = bytearray()
        self._open = contextlib.ExitStack()

    def ask(self, server: Server) -> None:
        """Asks ``server`` for the process."""
        self.server = server
        self._talk, theirs = socket.socketpair()
        self._open.callback(self._talk.close)
        self._incoming = Incoming(self._talk)
        with theirs, contextlib.ExitStack() as here:
            self._status, status = os.pipe()
            self._open.callback(os.close, self._status)
            here.callback(os.close, status)
            self._output, output = os.pipe()
            self._open.callback(os.close, self._output)
            here.callback(os.close, output)
            os.set_blocking(self._output, False)
            self._asked = server.request(theirs.fileno(), status, output)

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
            self._talk.settimeout(timeout or None)
            self._talk.sendall(HEAD.pack(len(orders), TALK))
            self._talk.sendall(orders)
        self._talk.setblocking(False)

    def take_value(self) -> memoryview:
        """What the function returned, still pickled; given once, so that it is not in memory twice for long."""
        value, self._value = self._value, None
        assert value is not None
        return value

    def hear_in_spite_of_errors(self) -> None:
        """From now on a listener's error is no reason to stop: the child is being ended, and has its time."""
        hear = self._hear

        def hear_on(kind: str, value: Any) -> None:
            with contextlib.suppress(Exception):
                hear(kind, value)

        self._hear = hear_on

    def signal(self, number: int) -> None:
        """Sends a signal to the child, but not to what it has started."""
        if self.pid is not None and self.exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def print_stack(self) -> None:
        """Lets the child's fault handler print where it hangs."""
        self.signal(signal.SIGUSR1)
        deadline = time.monotonic() + 0.5
        heard = False
        while time.monotonic() < deadline:
            time.sleep(0.05)
            if self._drain_output():
                heard = True
            elif heard:
                return

    def printed(self) -> str:
        """The end of what the child printed."""
        return bytes(self._printed[-TAIL_BYTES:]).decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """Kills the child, if it lives, and what it has started."""
        if self.pid is not None and self.exit is None:
            kill(self.pid)

    def end(self) -> None:
        """Kills the child if it lives, waits for it, and closes everything. May be called twice."""
        with self._open:
            if self.pid is not None and self.exit is None:
                self.kill()
                _wait_for_exit(self)

    @property
    def ended_at(self) -> float:
        """When its function ended or, where that was not heard of, its process; by ``time.monotonic()``."""
        if self.answer is not None:
            return float(self.answer["at"])
        return self.exit.at if self.exit is not None else time.monotonic()

    def has_ended(self) -> bool:
        """Whether there is nothing more to wait for; then all that it said and printed has been taken."""
        if self.exit is None:
            return time.monotonic() >= self.leave_by
        while self.answer is None and self._read_talk(again=False):
            pass
        self._drain_output()
        return True

    def streams(self) -> list[tuple[Any, Callable[[], bool]]]:
        """What to wait for, each with what takes it and says False at its end."""
        return [
            (self._talk, self._read_talk),
            (self._output, self._read_output),
            (self._status, self._read_status),
        ]

    def _drain_output(self) -> bool:
        some = False
        for _ in range(_PIPE_READS):
            if not self._read_output(again=False):
                break
            some = True
        return some

    def _read_talk(self, again: bool = True) -> bool:
        """Takes what has come; False when the stream has ended, or (not ``again``) is empty."""
        try:
            goes_on = self._incoming.read()
        except BlockingIOError:
            return again
        except ConnectionError:
            return False
        message = self._incoming.message
        if message is not None:
            what, body = message
            try:
                if what == VALUE:
                    self._value = body
                else:
                    self._take(*load(body))
            finally:
                # Also where the listener raises: it is told everything once at most.
                self._incoming.drop()
        return goes_on

    def _take(self, kind: str, value: Any) -> None:
        if kind == "answer":
            self.leave_by = time.monotonic() + LEAVE_SECONDS
            self.answer = value
        else:
            self._hear(kind, value)

    def _read_output(self, again: bool = True) -> bool:
        try:
            piece = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return again
        if not piece:
            return False
        self._printed += piece
        if len(self._printed) > 4 * TAIL_BYTES:
            del self._printed[:-TAIL_BYTES]
        if os.environ.get("CASEBOOK_DEBUG") == "1" and sys.stderr is not None:
            sys.stderr.write(piece.decode("utf-8", "replace"))
        return True

    def _read_status(self) -> bool:
        # In one call into C, as messages are read; and noted, once more if need be, before it is dropped.
        self._reports.extend(map(os.read, (self._status,), (STATUS.size,)))
        goes_on = True
        while self._reports:
            goes_on = self._note(self._reports[0])
            del self._reports[0]
        return goes_on

    def _note(self, report: bytes) -> bool:
        if len(report) < STATUS.size:
            if self.pid is not None and self.exit is None:
                # The server died, and the kernel takes the child along, but not what the child has started.
                kill(self.pid)
                self.exit = Exit(-signal.SIGKILL, None, time.monotonic())
            return False
        kind, value, peak, at = STATUS.unpack(report)
        if kind == BEGUN:
            self.pid = value
            self.server.forked = True
        elif kind == REFUSED:
            raise WorkerError(
                f"The system refused another process: {os.strerror(value)}.",
                "Free some memory, or raise the limit on processes (ulimit -u).",
            )
        else:
            self.exit = Exit(value, peak * (1 if sys.platform == "darwin" else 1024), at / 1e9)
        return True


def next_to_end(children: Sequence[Child], deadline: float) -> Child | None:
    """Passes on what ``children`` say until one of them has ended, and returns that; None at the deadline.

    Args:
        deadline: By ``time.monotonic()``; infinite: none.
    """
    with selectors.DefaultSelector() as selector:
        for child in children:
            for stream, read in child.streams():
                selector.register(stream, selectors.EVENT_READ, read)
        while True:
            for child in children:
                if child.has_ended():
                    return child
            now = time.monotonic()
            if now >= deadline:
                return None
            left = min(deadline, *(child.leave_by for child in children)) - now
            for key, _ in selector.select(None if math.isinf(left) else max(0.0, left)):
                if not key.data():
                    selector.unregister(key.fileobj)


def ask_to_end(children: Sequence[Child], grace: float) -> None:
    """Sends SIGTERM to each and goes on listening for up to ``grace`` seconds, or until all have ended."""
    for child in children:
        child.hear_in_spite_of_errors()
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    running = list(children)
    while running and (ended := next_to_end(running, deadline)) is not None:
        running.remove(ended)


def _wait_for_exit(child: Child) -> None:
    # Its output is read too: a child before a full pipe cannot leave.
    deadline = time.monotonic() + LEAVE_SECONDS
    with selectors.DefaultSelector() as selector:
        for stream, read in child.streams()[1:]:
            selector.register(stream, selectors.EVENT_READ, read)
        while child.exit is None and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if not key.data():
                    selector.unregister(key.fileobj)
