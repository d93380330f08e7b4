"""How the benchmarks compare: ways to do one thing take turns, and each turn gives a ratio.

What else the machine does then hits all of them alike, and the spread over the turns tells how far
a ratio can be trusted. Seconds are taken by the clock and of this process's CPU: the second is
worth more where others use the machine, and tells what a gain by the clock was paid with.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

REPEATS = 3

T = TypeVar("T")


@dataclass(frozen=True)
class Seconds:
    """What something took, by the clock and of the CPU (all threads of the process)."""

    clock: float
    cpu: float

    @classmethod
    def now(cls) -> Seconds:
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, earlier: Seconds) -> Seconds:
        return Seconds(self.clock - earlier.clock, self.cpu - earlier.cpu)

    def __truediv__(self, count: float) -> Seconds:
        return Seconds(self.clock / count, self.cpu / count)


def took(work: Callable[[], object]) -> Seconds:
    """Seconds of one call."""
    before = Seconds.now()
    work()
    return Seconds.now() - before


def median(times: Sequence[Seconds]) -> Seconds:
    """Of each kind of seconds the median."""
    return Seconds(statistics.median(t.clock for t in times), statistics.median(t.cpu for t in times))


def in_turns(ways: Mapping[str, Callable[[], T]], repeats: int = REPEATS) -> dict[str, list[T]]:
    """What each way gave in each turn; every other turn goes backwards."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for turn in range(repeats):
        order = list(ways) if turn % 2 == 0 else list(reversed(ways))
        for name in order:
            found[name].append(ways[name]())
    return found


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """``theirs / ours``, turn by turn: the median, with the lowest and the highest.

    >>> ratio([2.0, 4.0, 3.0], [1.0, 1.0, 1.0])
    '3.00 (2.00 to 4.00)'
    """
    each = [a / b for a, b in zip(theirs, ours, strict=True)]
    return f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"


def quick(about: str | None) -> bool:
    """Whether ``--quick`` was asked for: only to see that a benchmark works.

    Args:
        about: The benchmark's docstring, for ``--help``.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="see that it works; its figures mean nothing")
    asked = bool(parser.parse_args().quick)
    if asked:
        print("--quick: this shows that the benchmark works; its figures mean nothing.")
    return asked
