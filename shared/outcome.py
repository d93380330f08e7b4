"""What the end of a child means: a verdict, what it returned or raised, and words for a person."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from shared.children import Child, Exit
from shared.errors import CasebookError
from shared.machine import memory
from shared.parcel import load
from shared.server import quoted


class Verdict(StrEnum):
    """How a child ended."""

    OK = "ok"
    OUT_OF_MEMORY = "out of memory"
    TIMED_OUT = "timed out"
    KILLED = "killed"
    BUG = "bug"


REMEDY = {
    Verdict.OUT_OF_MEMORY: "Use a smaller batch or model, or a machine with more memory.",
    Verdict.TIMED_OUT: "Give it more time, or less to do.",
    Verdict.KILLED: "Look for what ended it: a person, a job scheduler, or a crash in native code.",
}


@dataclass(frozen=True)
class Outcome:
    """What became of a function in a child.

    Attributes:
        verdict: ``BUG`` is any error of the function that is not about memory.
        value: What the function returned, where the verdict is ok.
        error: What it raised, with the child's traceback as its cause; None where it raised
            nothing, or something that cannot travel (then ``message`` tells it).
        message: For a person: what happened, and the end of what the child printed.
        seconds: Wall time in the child, without the server's start.
        peak_bytes: Largest resident memory of the child, the libraries it shares with the
            server (some 300 MB) included; None where nobody could tell.
        order: Of children that ran together, as which it ended, from 0: of those that are not
            ok the one with the lowest order failed first, and may have made the others fail.
    """

    verdict: Verdict
    value: Any = None
    error: BaseException | None = None
    message: str = ""
    seconds: float = 0.0
    peak_bytes: int | None = None
    order: int = 0


class ChildTraceback(Exception):
    """The cause of an error that came from a child: shows the child's traceback above the parent's."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


def of(child: Child, started: float, limited: bool, kills: int) -> Outcome:
    """The outcome of a child that has ended by itself.

    Args:
        started: When it got its orders, by ``time.monotonic()``.
        limited: It ran under a memory limit.
        kills: Processes that the kernel has killed for memory meanwhile.
    """
    if child.answer is not None:
        return _delivered(child, child.answer)
    verdict, message = why(child.exit, child.printed(), limited, kills)
    return stopped(child, verdict, message, child.ended_at - started)


def stopped(child: Child, verdict: Verdict, message: str, seconds: float) -> Outcome:
    """The outcome of a child that has left without an answer, or whose answer no longer matters."""
    return Outcome(verdict, None, None, message + quoted(child.printed()), seconds, _peak(child))


def _peak(child: Child) -> int | None:
    return child.exit.peak_bytes if child.exit else None


def _delivered(child: Child, answer: Mapping[str, Any]) -> Outcome:
    seconds, peak = answer["seconds"], _peak(child)
    if answer["returned"]:
        try:
            value = load(child.take_value())
        except Exception as trouble:
            return Outcome(Verdict.BUG, None, trouble, str(trouble), seconds, peak)
        return Outcome(Verdict.OK, value, None, "", seconds, peak)
    error: BaseException | None = None
    if answer["error"] is not None:
        with contextlib.suppress(Exception):
            error = load(answer["error"])
    if error is not None:
        error.__cause__ = ChildTraceback(answer["traceback"])
    if answer["out_of_memory"]:
        lines = answer["traceback"].strip().splitlines()
        telling = next((line for line in lines if "OOM" in line or "allocate" in line), lines[-1])
        message = f"It ran out of memory: {telling.strip()[:300]}"
        return Outcome(Verdict.OUT_OF_MEMORY, None, error, message, seconds, peak)
    if isinstance(error, CasebookError):
        message = error.message
    else:
        message = answer["traceback"].strip() + quoted(child.printed())
    return Outcome(Verdict.BUG, None, error, message, seconds, peak)


_HEADER = "Traceback (most recent call last):\n"


def last_words(message: str, lines: int = 8) -> str:
    """The error at the end of a traceback in ``message``, for a screen; ``message`` where there is none.

    What stands in front of the traceback, as which worker of several it was, stays.

    >>> last_words("Worker 1 of 2: Traceback (most recent call last):\\n  File 1\\n    f()\\nValueError: no\\n")
    'Worker 1 of 2: ValueError: no'
    """
    _, header, last = message.partition("\nThe last it printed:")[0].rpartition(_HEADER)
    told = last.splitlines()
    while header and told and (not told[0] or told[0].startswith(" ")):
        told.pop(0)
    if told and told[0].endswith("Graph execution error:"):
        # TensorFlow's own stack comes first, and what was wrong last.
        told[1:] = [
            line for line in told[1:] if line.strip() and line[0] not in " \t" and line[:8] != "Detected"
        ]
    return message.partition(_HEADER)[0] + "\n".join(told[:lines]) if header and told else message


def why(exit: Exit | None, printed: str, limited: bool, kills: int) -> tuple[Verdict, str]:
    """The verdict on a child that left without an answer, and a sentence for a person.

    Args:
        printed: The end of what it printed.
        limited: It ran under a memory limit.
        kills: Processes that the kernel killed for memory meanwhile.
    """
    if exit is None:
        return Verdict.KILLED, "It could not be heard any more."
    words = printed.lower()
    short = any(
        text in words
        for text in ("bad_alloc", "out of memory", "cannot allocate memory", "resource_exhausted")
    )
    # Under a limit, starting a thread may be what fails first.
    threads = ("resource temporarily unavailable", "pthread_create() failed")
    short = short or (limited and any(text in words for text in threads))
    if exit.code >= 0:
        if short:
            return Verdict.OUT_OF_MEMORY, "It ran out of memory."
        return Verdict.BUG, f"It left with exit code {exit.code} before it could answer."
    name = _named(-exit.code)
    if short:
        return Verdict.OUT_OF_MEMORY, f"It ran out of memory and was ended by {name}."
    if -exit.code == signal.SIGKILL:
        if kills > 0:
            return Verdict.OUT_OF_MEMORY, "The operating system killed it (SIGKILL): memory ran out."
        if exit.peak_bytes is not None and exit.peak_bytes > memory()[0] / 4:
            return Verdict.OUT_OF_MEMORY, "It was killed (SIGKILL): most probably memory ran out."
    return Verdict.KILLED, f"It was ended by {name}."


def host_kills() -> int:
    """How often this machine's kernel has killed a process for memory; 0 where it doesn't say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _named(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals have no name
        return f"signal {number}"
