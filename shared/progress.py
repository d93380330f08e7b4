"""Progress of long work, told from wherever it happens to whoever shows it.

Work calls :func:`emit`; it knows nothing of terminals, Prefect or processes.
In a child of ``shared/worker.py`` the listener is the pipe to the parent, in the
parent it is whatever :func:`listening` set: a terminal's bars, a log, a test's list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """One report: ``done`` of ``total`` pieces of ``label``, with the numbers of the moment.

    Attributes:
        label: What is progressing, e.g. ``"fold 2/4 · epochs"``. One bar a label.
        done: Pieces finished, counted from 0.
        total: Pieces in all, or None where nobody knows.
        numbers: What to show beside the bar, e.g. ``{"loss": 0.41, "AUROC": 0.87}``.
        note: A short text beside the bar, e.g. what is being tried.
    """

    label: str
    done: int
    total: int | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    note: str = ""


Listener = Callable[[Progress], None]
_listener: ContextVar[Listener | None] = ContextVar("casebook_progress", default=None)


def emit(label: str, done: int, total: int | None = None, *, note: str = "", **numbers: float) -> None:
    """Reports progress to the current listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(Progress(label, int(done), total, numbers, note))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within the block, :func:`emit` (in this thread or task) reaches ``listener``."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
