"""The parent's handle on the fork server: its process, the socket it is asked by, and what it prints."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import IO

TAIL_BYTES = 16_000
"""How much is kept of what a process prints."""


class Server:
    """A running fork server. Its children die with it, and it with this object's process."""

    def __init__(self, key: object, preload: tuple[str, ...], variables: Mapping[str, str]) -> None:
        self.key = key
        self.owner = os.getpid()
        self.forked = False
        self._broken = False
        _occupy_standard_streams()
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

    def forget(self) -> None:
        """Lets go of the server in a process that is only a fork of its owner, and must not keep it alive."""
        self._control.close()

    def stop(self) -> None:
        """Ends the server and all its children."""
        if self.owner != os.getpid():
            return
        self._control.close()
        try:
            # It ends its children, and what they have started, which nobody else can. While it imports
            # it has none.
            self._process.wait(timeout=5.0 if self.forked else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def log(self) -> str:
        """The end of what the server printed."""
        return "" if self._log.closed else _tail_of(self._log)


_SAYS_NOTHING = (
    "Extension modules:",
    "All log messages before absl::InitializeLog()",
    "failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
)
"""In lines that are printed whatever happens: the last one by TensorFlow where there is no driver of CUDA."""


def quoted(text: str, lines: int = 40) -> str:
    """The last lines of a process's output, to put behind a message; empty for none that tell something."""
    kept = [line for line in text.splitlines() if not any(words in line for words in _SAYS_NOTHING)][-lines:]
    return "\nThe last it printed:\n" + "\n".join(f"    {line}" for line in kept) if kept else ""


def _tail_of(file: IO[bytes]) -> str:
    # Not by seek: the writer's place in the file is ours too.
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode("utf-8", "replace").strip()


def _occupy_standard_streams() -> None:
    """Where this process was started with one of 0, 1 and 2 closed, no socket of ours must land there."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
