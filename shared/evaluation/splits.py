"""Who trains, who validates, who is tested: splits that do not leak, by group and by time.

Both functions are pure: the same arguments give the same numbers for ever. Neither draws
at random, so neither has a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from shared.contract import SPLITS, Split
from shared.errors import InputError

Divided = dict[Split, np.ndarray]
"""For each of train, validation and test the numbers of its examples, int64, ascending."""


def by_group(
    groups: Sequence[str] | np.ndarray,
    *,
    salt: str,
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15),
) -> Divided:
    """Divides examples so that a group (a patient) has one split, the same one for ever.

    A group's split depends on nothing but its name and the salt: new patients never move
    old ones, and two models trained months apart agree on who is a test patient.

    Args:
        groups: Group of every example, str ``[n]``.
        salt: Any text. Another salt is another division; changing it voids comparisons
            with earlier models.
        shares: Expected shares of train, validation and test *groups*; sum 1.

    Raises:
        InputError: An example has no group, the shares are wrong, or a split that was to
            get a share stays empty, as happens with a handful of groups.

    Example:
        Examples 0, 2 are one patient, and stay together:

        >>> patients = ["p1", "p2", "p1", "p3", "p4", "p5", "p6"]
        >>> split = by_group(patients, salt="demo", shares=(0.5, 0.25, 0.25))
        >>> {name: numbers.tolist() for name, numbers in split.items()}
        {'train': [1, 3, 4], 'validation': [5], 'test': [0, 2, 6]}
    """
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise InputError(
            f"The shares of train, validation and test must sum to 1, received {shares}.",
            "Give three shares such as 0.7, 0.15, 0.15.",
        )
    names = np.asarray(groups, dtype=str)
    unnamed = np.flatnonzero(np.isin(np.char.strip(names), ("", "nan", "None", "NaN")))
    if len(unnamed):
        raise InputError(
            f"{len(unnamed)} of {len(names)} examples have no group; the first is example {unnamed[0]}.",
            "Without a group (a patient's number) one patient could stand in train and test: "
            "give every example its group.",
        )
    unique, inverse = np.unique(names, return_inverse=True)
    splits = np.array([split_of(name, salt=salt, shares=shares) for name in unique], dtype=str)
    of_example = splits[inverse]
    divided = {split: np.flatnonzero(of_example == split) for split in SPLITS}
    for split, share in zip(SPLITS, shares, strict=True):
        if share > 0 and len(divided[split]) == 0:
            raise InputError(
                f"No group of {len(unique)} falls into {split} (share {share:g}).",
                "Bring more groups (patients): splits are drawn by a permanent hash of the group's name, "
                "which needs about 20 groups to fill all three.",
            )
    return divided


def split_of(group: str, *, salt: str, shares: Sequence[float] = (0.7, 0.15, 0.15)) -> Split:
    """The split of one group: its SHA-256, read as a number in [0, 1), against the shares.

    >>> split_of("patient-17", salt="demo")
    'train'
    """
    digest = hashlib.sha256(f"{salt}\0{group}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < shares[0]:
        return "train"
    return "validation" if position < shares[0] + shares[1] else "test"


def walk_forward(
    moments: np.ndarray,
    label_ends: np.ndarray,
    *,
    folds: int,
    test_size: int,
    validation_size: int,
    train_size: int | None = None,
    embargo: int = 0,
) -> list[Divided]:
    """Folds that walk forward in time: train, then validation, then test, oldest fold first.

    Sizes count *moments* (sessions, years), not examples: all examples of one moment, say
    every ticker of a day, fall on the same side of every boundary. The last test ends with the
    last moment, tests follow each other without gap or overlap.

    Purge: an example whose label looks at or past the first moment of the next split is left
    out, from train and from validation alike, because its label would tell of that split. Only
    the earlier side gives way; the bounds of a test are what ``test_size`` says, always.

    Args:
        moments: Moment at which an example is known, ``[n]``, anything that sorts
            (datetime64, int, cftime objects); in any order, repeats allowed.
        label_ends: Last moment that its label looks at, ``[n]``, at or after ``moments``.
        folds: Number of folds.
        test_size: Moments of each test.
        validation_size: Moments of each validation, just before its test.
        train_size: Moments of train, just before validation; None takes all there are.
        embargo: Moments before each boundary that labels must also stay clear of, for
            effects that outlast the label, such as serial correlation.

    Raises:
        InputError: Sizes do not fit the moments, or purging leaves a split empty.

    Example:
        Ten days, a label that looks two days ahead. Days 2 and 3 leave train because their
        labels reach day 4; days 4 and 5 would leave validation for test, and one example stays:

        >>> days = np.arange(10)
        >>> for fold in walk_forward(days, days + 2, folds=2, test_size=2, validation_size=3):
        ...     print({name: numbers.tolist() for name, numbers in fold.items()})
        {'train': [0], 'validation': [3], 'test': [6, 7]}
        {'train': [0, 1, 2], 'validation': [5], 'test': [8, 9]}
    """
    moments, label_ends = np.asarray(moments), np.asarray(label_ends)
    if len(moments) != len(label_ends):
        raise InputError(
            f"Every example needs a moment and a label's end, received {len(moments)} and {len(label_ends)}.",
            "Pass two arrays of one length.",
        )
    if min(folds, test_size, validation_size, 1 if train_size is None else train_size) < 1 or embargo < 0:
        raise InputError(
            f"Folds and sizes must be positive, received folds={folds}, test_size={test_size}, "
            f"validation_size={validation_size}, train_size={train_size}, embargo={embargo}.",
            "Give whole numbers from 1 up (embargo from 0).",
        )
    if bool(np.any(label_ends < moments)):
        raise InputError(
            f"A label ends before its own moment, first at example {int(np.argmax(label_ends < moments))}.",
            "label_ends holds the last moment that each label looks at.",
        )
    unique = np.unique(moments)
    needed = folds * test_size + validation_size + (train_size or 1)
    if len(unique) < needed:
        raise InputError(
            f"{folds} folds with test {test_size}, validation {validation_size} and train "
            f"{train_size or 'at least 1'} need {needed} moments, received {len(unique)}.",
            "Use fewer folds, smaller sizes or a longer history.",
        )
    return [
        _one_fold(moments, label_ends, unique, len(unique) - (folds - number) * test_size, test_size,
                  validation_size, train_size, embargo)
        for number in range(folds)
    ]  # fmt: skip


def _one_fold(
    moments: np.ndarray,
    label_ends: np.ndarray,
    unique: np.ndarray,
    test_first: int,
    test_size: int,
    validation_size: int,
    train_size: int | None,
    embargo: int,
) -> Divided:
    """One fold; ``test_first`` and the sizes are positions in ``unique``, the sorted moments."""
    validation_first = test_first - validation_size
    train_first = 0 if train_size is None else validation_first - train_size
    divided: Divided = {
        "train": _between(moments, unique, train_first, validation_first)
        & _ends_before(label_ends, unique, validation_first - embargo),
        "validation": _between(moments, unique, validation_first, test_first)
        & _ends_before(label_ends, unique, test_first - embargo),
        "test": _between(moments, unique, test_first, test_first + test_size),
    }
    for split, chosen in divided.items():
        if not chosen.any():
            raise InputError(
                f"Nothing is left of {split} before the test that starts at {unique[test_first]}: "
                "every label reaches into the next split.",
                f"Make {split} longer than the label's horizon plus the embargo of {embargo}, "
                "or use fewer folds.",
            )
    return {split: np.flatnonzero(chosen) for split, chosen in divided.items()}


def _between(moments: np.ndarray, unique: np.ndarray, first: int, end: int) -> np.ndarray:
    """Whose moment is one of ``unique[first:end]``; bool ``[n]``."""
    chosen: np.ndarray = moments >= unique[first]
    return chosen & (moments < unique[end]) if end < len(unique) else chosen


def _ends_before(label_ends: np.ndarray, unique: np.ndarray, boundary: int) -> np.ndarray:
    """Whose label ends before the moment ``unique[boundary]``; bool ``[n]``."""
    if boundary < 0:
        return np.zeros(len(label_ends), dtype=bool)
    ended: np.ndarray = label_ends < unique[boundary]
    return ended
