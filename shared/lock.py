"""One run a machine holds the accelerator: a lock of the operating system, which dies with its holder."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from shared import progress
from shared.settings import locks_root

log = logging.getLogger("casebook.accelerator")

_holding = 0


@contextlib.contextmanager
def held() -> Iterator[None]:
    """One run a machine; entering again in the same process is free."""
    if _holding:
        with lent():
            yield
        return
    handle = os.open(lock_path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _wait_for(handle)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        with lent():
            yield
    finally:
        os.close(handle)  # and with it the lock


@contextlib.contextmanager
def lent() -> Iterator[None]:
    """For a child whose parent holds the lock and waits for it: within the block the child holds it too."""
    global _holding
    _holding += 1
    try:
        yield
    finally:
        _holding -= 1


def lock_path() -> Path:
    """The lock's file: one a machine (and a user, since /tmp does not let users share a file safely)."""
    return locks_root() / f"casebook-accelerator-{os.getuid()}.lock"


def _wait_for(handle: int) -> None:
    started = time.monotonic()
    told = -1
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        waited = int(time.monotonic() - started)
        if waited != told:
            told = waited
            holder = os.pread(handle, 32, 0).decode(errors="replace") or "unknown"
            progress.emit("waiting for the accelerator", waited, note=f"held by process {holder}")
            if waited == 0:
                log.info("Waiting for the accelerator, which process %s holds.", holder)
        time.sleep(0.1)
