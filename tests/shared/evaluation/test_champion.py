"""A fair match: nothing that the champion has seen, nothing before its training ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shared.contract import SPLITS, Fold
from shared.evaluation.champion import SEEN, fair, write_seen


def fold(train: list[int], validation: list[int], test: list[int], **others: np.ndarray) -> Fold:
    keys = np.array([f"e{number}" for number in range(12)])
    splits = dict(zip(SPLITS, (np.array(part, np.int64) for part in (train, validation, test)), strict=True))
    return Fold("f", splits, keys, **others)


def test_seen_keys_are_left_out(tmp_path: Path) -> None:
    write_seen(tmp_path, fold([0, 1], [2], [3]))
    assert fair(fold([9], [10], [0, 4, 2, 5]), tmp_path / SEEN).tolist() == [1, 3]


def test_with_groups_a_patient_seen_once_is_seen(tmp_path: Path) -> None:
    patients = np.array([f"p{number // 2}" for number in range(12)])
    write_seen(tmp_path, fold([0], [2], [], groups=patients))
    # 1 shares its patient with 0, 3 with 2
    assert fair(fold([], [], [1, 3, 4], groups=patients), tmp_path / SEEN).tolist() == [2]


def test_in_time_only_what_lies_after_counts(tmp_path: Path) -> None:
    days = np.arange(np.datetime64("2020-01-01"), np.datetime64("2020-01-13"))
    spans = np.stack([days, days + 2], axis=1)
    write_seen(tmp_path, fold([0, 1], [3], [], spans=spans))  # last label ends on day 5
    found = fair(fold([], [], [4, 5, 6, 7], spans=spans), tmp_path / SEEN)
    assert found.tolist() == [2, 3]


@given(st.lists(st.integers(0, 11), unique=True), st.lists(st.integers(0, 11), unique=True))
def test_fair_examples_were_never_seen(seen: list[int], test: list[int]) -> None:
    import tempfile

    if not seen:
        seen = [0]
    with tempfile.TemporaryDirectory() as folder:
        write_seen(Path(folder), fold(seen, [], []))
        found = fair(fold([], [], test), Path(folder) / SEEN)
    assert {test[position] for position in found} == set(test) - set(seen)
