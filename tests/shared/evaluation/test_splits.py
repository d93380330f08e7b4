"""Splits: folds computed by hand, and leakage looked for by hypothesis."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.contract import SPLITS
from shared.errors import InputError
from shared.evaluation import splits


def test_a_group_never_crosses_and_every_example_counts_once():
    generator = np.random.default_rng(0)
    groups = generator.integers(0, 300, size=2000).astype(str)
    divided = splits.by_group(groups, salt="x")
    sets = [set(groups[divided[split]]) for split in SPLITS]
    assert sum(len(names) for names in sets) == len(set.union(*sets)) == len(set(groups))
    assert sorted(np.concatenate(list(divided.values())).tolist()) == list(range(2000))
    assert 0.6 < len(sets[0]) / 300 < 0.8


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("abcé中 -0", min_size=1, max_size=8), max_size=30), st.text(max_size=5))
def test_new_patients_never_move_old_ones(extra, salt):
    old = [f"patient-{number}" for number in range(200)]
    extra = [name for name in extra if name.strip()]
    before = splits.by_group(old, salt=salt)
    after = splits.by_group(old + extra, salt=salt)
    for split in SPLITS:
        assert before[split].tolist() == [number for number in after[split] if number < 200]


def test_another_salt_is_another_division():
    groups = [f"p{number}" for number in range(100)]
    assert (
        splits.by_group(groups, salt="a")["test"].tolist()
        != splits.by_group(groups, salt="b")["test"].tolist()
    )


@pytest.mark.parametrize("missing", ["", "  ", float("nan"), None])
def test_an_example_without_a_patient_is_refused_loudly(missing):
    groups = np.array(["p1", missing, "p2"], dtype=object)
    with pytest.raises(InputError, match="1 of 3 examples have no group; the first is example 1"):
        splits.by_group(groups, salt="x")


def test_too_few_groups_say_which_split_is_empty():
    with pytest.raises(InputError, match="No group of 1 falls into"):
        splits.by_group(["only"] * 5, salt="x")
    assert len(splits.by_group(["only"] * 5, salt="x", shares=(1, 0, 0))["train"]) == 5


def test_shares_must_sum_to_one():
    with pytest.raises(InputError, match="must sum to 1"):
        splits.by_group(["a"], salt="x", shares=(0.5, 0.2, 0.2))


histories = st.fixed_dictionaries(
    {
        "days": st.integers(31, 60),
        "tickers": st.integers(1, 3),
        "horizon": st.integers(0, 4),
        "embargo": st.integers(0, 3),
        "folds": st.integers(1, 3),
        "train_size": st.one_of(st.none(), st.integers(8, 10)),
        "seed": st.integers(0, 2**16),
    }
)


@settings(max_examples=60, deadline=None)
@given(histories)
def test_walk_forward_leaks_nothing(history):
    generator = np.random.default_rng(history["seed"])
    moments = np.repeat(np.arange(history["days"]) * 3, history["tickers"])  # moments need not be dense
    generator.shuffle(moments)
    ends = moments + 3 * history["horizon"] * generator.integers(0, 2, size=len(moments))
    sizes = {"folds": history["folds"], "test_size": 4, "validation_size": 9}
    folds = splits.walk_forward(
        moments, ends, **sizes, train_size=history["train_size"], embargo=history["embargo"]
    )
    unpurged = splits.walk_forward(moments, moments, **sizes, train_size=history["train_size"])
    tested = np.concatenate([np.unique(moments[fold["test"]]) for fold in folds])
    # Tests follow each other without gap or overlap, and end with the last moment.
    assert tested.tolist() == (np.arange(history["days"])[-4 * history["folds"] :] * 3).tolist()
    for fold, plain in zip(folds, unpurged, strict=True):
        assert fold["test"].tolist() == plain["test"].tolist(), "purging moved the bounds of a test"
        first = {split: moments[plain[split]].min() for split in ("validation", "test")}
        clear = 3 * history["embargo"]
        assert ends[fold["train"]].max() < first["validation"] - clear
        assert ends[fold["validation"]].max() < first["test"] - clear
        chosen = np.concatenate([fold[split] for split in SPLITS])
        assert len(np.unique(chosen)) == len(chosen), "an example stands in two splits"
        # Everything of one moment falls on one side, unless its own label was purged.
        for early, late in (("train", "validation"), ("validation", "test")):
            assert moments[fold[early]].max() < moments[fold[late]].min()


def test_walk_forward_takes_dates_and_says_what_does_not_fit():
    days = np.arange("2020-01-01", "2020-03-01", dtype="datetime64[D]")
    (fold,) = splits.walk_forward(days, days + 5, folds=1, test_size=10, validation_size=10)
    assert str(days[fold["test"]].min()) == "2020-02-20"
    assert str((days + 5)[fold["train"]].max()) == "2020-02-09"
    with pytest.raises(InputError, match="need 81 moments, received 60"):
        splits.walk_forward(days, days, folds=7, test_size=10, validation_size=10)
    with pytest.raises(InputError, match="Nothing is left of validation before the test"):
        splits.walk_forward(days, days + 10, folds=1, test_size=10, validation_size=10)
    with pytest.raises(InputError, match="ends before its own moment, first at example 0"):
        splits.walk_forward(days, days - 1, folds=1, test_size=1, validation_size=1)
