"""The server that forks the children of ``shared/worker.py``; ``shared/forked.py`` is what they do.

The server is a process of one thread that has TensorFlow imported and does nothing but
fork: importing starts no device, so each child opens its own, with its own limits, in
0.3 s instead of 5. It never lists devices: a GPU opened before a fork is unusable after it.

It leads a session of its own, so a terminal's Ctrl-C reaches the parent only, which then
kills what it started. Nothing outlives the parent, by three independent means: the server
kills its children when the control socket ends, the kernel kills them when the server
dies (Linux), and each child's watchdog thread leaves when its own socket ends.

Each child leads a process group, and whatever it has started ends with it, however it ends. Only a
process that has made a group of its own (``setsid``, as daemons do) stays.

Not built on ``multiprocessing``'s fork server, because that one runs the parent's
``__main__`` again (a script without a guard would start itself), prints TensorFlow's noise
on the terminal, and keeps the environment of the moment it was started.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence

from shared import autograph
from shared.forked import work

STATUS = struct.Struct("!qqqq")
"""What the server says of a child: (BEGUN, pid, 0), then (ENDED, exit status, peak RSS in KiB), or
instead of both (REFUSED, errno, 0); and last the nanosecond of ``time.monotonic_ns()``."""
BEGUN, ENDED, REFUSED = range(3)

_PR_SET_CHILD_SUBREAPER = 36


def serve(control_fd: int, preload: Sequence[str]) -> None:
    """Forks a child for every request on the control socket, until that socket ends.

    A request is one byte with three file descriptors: the child's socket to the parent,
    the pipe on which the server reports :data:`STATUS`, and the pipe for stdout and stderr.
    The byte ``d`` without descriptors means: no more will come, leave when the last child has.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # What a child leaves behind comes to this process, which buries it: the first process of a
        # container often buries nobody.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    control = socket.socket(fileno=control_fd)
    with _leaving_with(control):
        for name in preload:
            try:
                importlib.import_module(name)
            except Exception:
                # The child that needs it fails at its own import, with the right error.
                traceback.print_exc()
    autograph.keep_in_memory()
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)

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
        ahead = autograph.conversions()
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
                    work(talk, output)
                with contextlib.suppress(OSError):
                    os.setpgid(pid, pid)
                children[pid] = status
                _report(status, BEGUN, pid, 0)
                os.close(talk)
                os.close(output)
            else:
                # The parent sees its pipes end, and turns to another server.
                print("No room for the pipes of another child: see ulimit -n.", file=sys.stderr, flush=True)
                for fd in fds:
                    os.close(fd)
    os._exit(0)


@contextlib.contextmanager
def _leaving_with(control: socket.socket) -> Iterator[None]:
    """Ends this process when the parent has gone, which it would else see only after seconds of imports.

    The thread that looks has ended when the block has: a process that forks must have one only.
    """
    done_read, done_write = os.pipe()

    def look() -> None:
        poll = select.poll()
        poll.register(control, select.POLLHUP)  # comes whatever requests still wait to be read
        poll.register(done_read, select.POLLIN)
        if (control.fileno(), select.POLLHUP) in [(fd, event & select.POLLHUP) for fd, event in poll.poll()]:
            os._exit(1)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        os.write(done_write, b"d")
        thread.join()
        os.close(done_read)
        os.close(done_write)


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
            if hasattr(os, "waitid"):
                # Before it is reaped nobody else can have its number, and its group still can be ended.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None:
                    return
                if found.si_pid in children:
                    kill(found.si_pid)
                pid, status, usage = os.wait4(found.si_pid, 0)
            else:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    return
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
        except ChildProcessError:
            return
        pipe = children.pop(pid, None)
        if pipe is not None:
            _report(pipe, ENDED, os.waitstatus_to_exitcode(status), usage.ru_maxrss)
            os.close(pipe)


def _report(pipe: int, *values: int) -> None:
    # A parent that has gone away needs no report.
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, STATUS.pack(*values, time.monotonic_ns()))
