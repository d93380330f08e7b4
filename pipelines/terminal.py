"""What a person sees: progress while it runs, one screen when it fails, tables when it is done.

Progress and errors go to stderr, results to stdout, so that ``--json`` can be piped.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from pipelines.prefect_setup import LOGGERS
from shared import progress
from shared.errors import CasebookError
from shared.words import duration, number

SHOWN_BARS = 4
SECONDS_BETWEEN_LINES = 10.0
PIPE_WIDTH = 120
"""Columns where there is no terminal to ask, e.g. in a log."""


def output() -> Console:
    """Where results go."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def messages() -> Console:
    """Where progress and errors go."""
    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else PIPE_WIDTH)


@contextmanager
def showing(console: Console | None = None) -> Iterator[None]:
    """Within the block, progress is shown (as bars on a terminal, as plain lines elsewhere), and warnings."""
    console = console or messages()
    display: Bars | Lines = Bars(console) if console.is_terminal else Lines(console)
    ours, warnings = logging.getLogger(LOGGERS), Warnings(console)
    ours.addHandler(warnings)
    try:
        with display, progress.listening(display):
            yield
    finally:
        ours.removeHandler(warnings)


class Warnings(logging.Handler):
    """Warnings of our own packages, those of children included, between the lines of progress; each once.

    Prefect shows none of them: it sends the logs of others to its server alone.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self.console = console
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if said not in self._said:
            self._said.add(said)
            self.console.print(Text.assemble(("Warning: ", "bold yellow"), said))


class Lines:
    """Progress as plain lines: the start and the end of every label, and now and then between.

    For logs and pipes, where a bar would be thousands of lines.
    """

    def __init__(self, console: Console, *, every: float = SECONDS_BETWEEN_LINES) -> None:
        self.console = console
        self.every = every
        self._printed: dict[str, float] = {}
        self._ended: set[str] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, report: progress.Progress) -> None:
        now = time.monotonic()
        ends = report.total is not None and report.done >= report.total
        with self._lock:
            if ends and report.label in self._ended:
                return
            last = self._printed.get(report.label)
            if last is not None and now - last < self.every and not ends:
                return
            self._printed[report.label] = now
            if ends:
                self._ended.add(report.label)
            else:
                self._ended.discard(report.label)
            self.console.print(_line(report), markup=False)


class Bars:
    """Progress as bars, the most recently moved ones below; a finished bar becomes a line."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[beside]}", style="dim", markup=False),
            TimeLeft(),
            console=console,
            transient=True,
        )
        self._tasks: OrderedDict[str, TaskID] = OrderedDict()
        self._started: dict[str, float] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, report: progress.Progress) -> None:
        with self._lock:
            self._update(report)

    def _update(self, report: progress.Progress) -> None:
        label = report.label
        if label not in self._tasks:
            self._started[label] = time.monotonic()
            self._tasks[label] = self._progress.add_task(label, total=report.total, count="", beside="")
            if len(self._tasks) > SHOWN_BARS:
                self._progress.remove_task(self._tasks.popitem(last=False)[1])
        task = self._tasks[label]
        self._tasks.move_to_end(label)
        self._progress.update(
            task,
            completed=report.done,
            total=report.total,
            count=_count(report),
            beside=_beside(report),
        )
        if report.total is not None and report.done >= report.total:
            self._progress.remove_task(self._tasks.pop(label))
            seconds = time.monotonic() - self._started.pop(label)
            self._progress.console.print(f"{_line(report)} · {duration(seconds)}", markup=False, style="dim")


class TimeLeft(ProgressColumn):
    """Time left as the pace so far promises; time spent where the end is not known."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining
        if left is not None:
            return Text(f"{duration(left)} left", style="cyan")
        return Text(duration(task.elapsed or 0.0), style="dim")


def _count(report: progress.Progress) -> str:
    return f"{report.done}/{report.total}" if report.total is not None else f"{report.done}"


def _beside(report: progress.Progress) -> str:
    parts = [f"{name.replace('_', ' ')} {number(value)}" for name, value in report.numbers.items()]
    return " · ".join([*parts, report.note] if report.note else parts)


def _line(report: progress.Progress) -> str:
    return " · ".join(part for part in (f"{report.label} {_count(report)}", _beside(report)) if part)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> Table:
    """A plain table: numbers to the right, everything escaped."""
    made = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        made.add_column(
            column, justify="right" if numeric else "left", header_style="bold dim", overflow="fold"
        )
    for row in rows:
        made.add_row(*(escape(number(cell)) for cell in row))
    return made


def show_error(error: BaseException, *, debug: bool = False, console: Console | None = None) -> None:
    """One screen: what was expected, what was received, the remedy; the traceback with ``debug``."""
    console = console or messages()
    if debug:
        console.print("".join(traceback.format_exception(error)), markup=False, style="dim")
    if isinstance(error, CasebookError):
        console.print(Text.assemble(("Error: ", "bold red"), error.message))
        if error.remedy:
            console.print(Text.assemble(("Remedy: ", "bold green"), error.remedy))
        return
    text = str(error).strip()
    first = "\n".join(text.splitlines()[:8]) if text else "no message"
    console.print(Text.assemble(("Unexpected error: ", "bold red"), f"{type(error).__name__}: {first}"))
    if not debug:
        console.print("This should not happen. --debug shows where it came from; please report it with that.")
