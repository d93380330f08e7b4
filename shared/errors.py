"""Errors a person can act on: what was expected, what was received, what to do."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class CasebookError(Exception):
    """Base of the errors shown to a person on one screen, without a traceback.

    Args:
        message: What was expected and what was received, naming the file, row,
            variable or key.
        remedy: What the person can do about it. Shown on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\nRemedy: {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[type[CasebookError], tuple[str, str]]:
        # Errors cross process borders (shared/worker.py), and the default would lose the remedy.
        return (type(self), (self.message, self.remedy))


class InputError(CasebookError):
    """What the person gave (path, file, key, value) cannot be used. Exit code 2."""

    exit_code = 2


class DeviceError(CasebookError):
    """The accelerator that was asked for cannot be had here."""


class LeakError(CasebookError):
    """A guard found that the test set was seen in training."""


class TrainingError(CasebookError):
    """Training stopped because its numbers are no longer sound (NaN, Inf, divergence)."""


class BusyError(CasebookError):
    """Another process works on that; it is none of ours to end or to clean up."""


class WorkerError(CasebookError):
    """A child process did not deliver: it timed out, was killed or ran out of memory."""


_NO_SPACE = "no space left on device"
_REFUSED = (
    (
        (errno.ENOSPC, errno.EDQUOT),
        "The disk is full",
        "Free some space; `casebook resume last` goes on with a run.",
    ),
    (
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "The system does not allow it",
        "Give the right to read or write it, or name another folder (CASEBOOK_RUNS, --out).",
    ),
    (
        (errno.EMFILE, errno.ENFILE),
        "Too many files are open",
        "Raise the limit, e.g. `ulimit -n 4096`, and try again.",
    ),
)


def is_disk_full(error: BaseException) -> bool:
    """Whether ``error`` says that a disk is full, which TensorFlow tells as a resource that is exhausted."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _NO_SPACE in str(error).lower()


def of_the_machine(error: BaseException) -> CasebookError | None:
    """What the machine refused (a full disk, a right, open files) as an error a person can act on; else None."""
    code = errno.ENOSPC if is_disk_full(error) else getattr(error, "errno", None)
    for codes, what, remedy in _REFUSED:
        if code in codes:
            where = f": {name}" if (name := getattr(error, "filename", None)) else ""
            found = CasebookError(f"{what}{where}.", remedy)
            found.__cause__ = error
            return found
    return None


def did_you_mean(received: str, known: Iterable[str]) -> str:
    """A remedy that names the nearest known words.

    >>> did_you_mean("epoch", ["epochs", "seed"])
    "Did you mean 'epochs'? Known: epochs, seed."
    """
    names = list(known)
    near = difflib.get_close_matches(received, names, n=1)
    return (f"Did you mean {near[0]!r}? " if near else "") + f"Known: {', '.join(names)}."
