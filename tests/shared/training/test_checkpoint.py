from __future__ import annotations

import logging

import keras
import numpy as np
import pytest

from shared.errors import CasebookError
from shared.training.checkpoint import (
    Checkpoint,
    Checkpoints,
    assign,
    named,
    read_weights,
    values,
    write_weights,
)


def small(units: int = 2) -> keras.Model:
    return keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(units, name="a"), keras.layers.Dropout(0.5)]
    )


def moment(epoch: int, step: int = 0, **more) -> Checkpoint:
    return Checkpoint(
        {"model": {"a/kernel": np.full(3, epoch, np.float32)}}, {"epoch": epoch, "step": step, **more}
    )


def test_what_is_saved_comes_back(tmp_path):
    kept = Checkpoints(tmp_path, "head")
    history = [{"loss": 0.1, "auc": 0.1 + 0.2}]
    kept.save(moment(1, history=history))
    found = kept.newest()
    assert found is not None
    np.testing.assert_array_equal(found.groups["model"]["a/kernel"], [1, 1, 1])
    assert found.meta["history"] == history  # floats to the last bit


def test_the_last_two_are_kept_and_the_newest_is_read(tmp_path):
    kept = Checkpoints(tmp_path, "head")
    other = Checkpoints(tmp_path, "tail")
    other.save(moment(9))
    for epoch, step in [(1, 0), (2, 0), (2, 30), (10, 0)]:
        kept.save(moment(epoch, step))
    names = sorted(path.name for path in tmp_path.glob("head-*"))
    assert names == ["head-00002-00000030.npz", "head-00010-00000000.npz"]
    assert kept.newest().meta["epoch"] == 10
    kept.clear()
    assert kept.newest() is None
    assert other.newest().meta["epoch"] == 9


@pytest.mark.parametrize("harm", ["cut", "empty", "flipped", "text"])
def test_a_corrupt_newest_falls_back_with_a_warning(tmp_path, caplog, harm):
    kept = Checkpoints(tmp_path, "head")
    kept.save(moment(1))
    newest = kept.save(moment(2))
    content = bytearray(newest.read_bytes())
    if harm == "flipped":
        place = content.index(np.full(3, 2, np.float32).tobytes())
        content[place] ^= 0xFF
    newest.write_bytes(
        {"cut": content[: len(content) // 2], "empty": b"", "text": b"hello"}.get(harm, content)
    )
    with caplog.at_level(logging.WARNING, "casebook.training"):
        found = kept.newest()
    assert found.meta["epoch"] == 1
    assert newest.name in caplog.text


def test_all_corrupt_is_none_and_says_so(tmp_path, caplog):
    kept = Checkpoints(tmp_path, "head")
    kept.save(moment(1)).write_bytes(b"PK junk")
    with caplog.at_level(logging.WARNING, "casebook.training"):
        assert kept.newest() is None
    assert "No checkpoint of head is left" in caplog.text
    assert "pickle" not in caplog.text  # numpy's advice would be to trust it


def test_what_is_saved_after_corrupt_ones_is_kept_though_they_are_later(tmp_path):
    """All of epochs 8 and 9 damaged: it begins anew, and epoch 1 must not be cleared away as old."""
    kept = Checkpoints(tmp_path, "head")
    for epoch in (8, 9):
        kept.save(moment(epoch)).write_bytes(b"")
    assert kept.newest() is None
    kept.save(moment(1))
    assert kept.newest().meta["epoch"] == 1
    kept.save(moment(2)).write_bytes(b"")
    assert kept.newest().meta["epoch"] == 1


def test_seed_generators_are_among_the_weights(tmp_path):
    model = small()
    state = next(v for v in model.variables if "seed" in v.path)
    model(np.ones([1, 3], np.float32), training=True)
    expected = state.numpy()
    write_weights(tmp_path / "weights.npz", model)
    model(np.ones([1, 3], np.float32), training=True)
    assert not np.array_equal(state.numpy(), expected)
    read_weights(tmp_path / "weights.npz", model)
    np.testing.assert_array_equal(state.numpy(), expected)


def test_another_model_is_refused(tmp_path):
    write_weights(tmp_path / "weights.npz", small(2))
    with pytest.raises(CasebookError, match=r"another model: expected .*\(3, 5\).*\(3, 2\)"):
        read_weights(tmp_path / "weights.npz", small(5))
    (tmp_path / "weights.npz").write_bytes(b"")
    with pytest.raises(CasebookError, match="cannot be read"):
        read_weights(tmp_path / "weights.npz", small())


def test_automatic_names_that_counted_on_are_matched_by_order():
    def unnamed() -> keras.Model:
        return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(2)])

    first, second = unnamed(), unnamed()
    assert set(values(first.variables)) != set(values(second.variables))
    assign(second.variables, values(first.variables), "first")
    for a, b in zip(first.variables, second.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_twins_of_one_path_are_told_apart():
    twins = [keras.Variable(np.float32(value), name="w") for value in (1, 2)]
    assert list(named(twins)) == ["w", "w#2"]
    assert values(twins)["w#2"] == 2


def test_bfloat16_survives(tmp_path):
    variable = keras.Variable(np.array([1.5, -2.0]), dtype="bfloat16", name="half")
    kept = Checkpoints(tmp_path, "x")
    kept.save(Checkpoint({"model": values([variable])}, {"epoch": 1, "step": 0}))
    variable.assign([0.0, 0.0])
    assign([variable], kept.newest().groups["model"], "it")
    np.testing.assert_array_equal(variable.numpy().astype(np.float32), [1.5, -2.0])
