"""SIGTERM, as spot machines and schedulers send it: finish the step, write a checkpoint, leave."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from shared.errors import TrainingError

log = logging.getLogger("casebook.training")

GRACE_SECONDS = 25.0
"""How long a training may take to leave once it was told to; clouds give 30 s and more."""


class Stopped(TrainingError):
    """A training that was told to stop, and can be taken up again."""


class Stop:
    """Whether this process was told to stop."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        self.asked = True


@contextlib.contextmanager
def listening() -> Iterator[Stop]:
    """Within the block SIGTERM only sets the flag, which the training reads after each call into the graph.

    Outside the main thread, where Python handles no signals, the flag stays as it is.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def told(number: int, frame: FrameType | None) -> None:
        stop.ask()

    before = signal.signal(signal.SIGTERM, told)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
