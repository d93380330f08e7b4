"""What a training leaves to be read: each epoch and each line of steps once, also after a kill."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from shared.runs.history import of_epochs
from shared.training.recorder import Recorder

STEPS = 10
"""Of an epoch, three to a call; the last call of an epoch has one."""


def lines(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "history.jsonl").read_text().splitlines()]


def train(recorder: Recorder, phase: str = "head", first: int = 0, last: int = 3 * STEPS) -> None:
    """Steps ``first`` to ``last`` of a phase, with an epoch's row at the end of each."""
    done = first
    while done < last:
        epoch = done // STEPS + 1
        done = min(done + 3, epoch * STEPS)
        recorder.step({"phase": phase, "epoch": epoch, "step": done, "loss": 1 / done, "lr": 0.1})
        if done == epoch * STEPS:
            recorder.epoch({"phase": phase, "epoch": epoch, "loss": 1 / done, "val_loss": 2 / done})


def recorder(home: Path | None, **given: Any) -> Recorder:
    return Recorder(home, **{"every_steps": 4, "tensorboard": False, **given})


def test_lines_of_steps_stand_between_those_of_epochs(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "casebook.training"):
        train(recorder(tmp_path, label="fold 1 · head"))
    found = lines(tmp_path)
    # Full at 4, 8, 12, ...: told at the first call that reaches them.
    assert [row.get("step") for row in found] == [6, 9, None, 13, 16, 20, None, 26, 29, None]
    assert found[0] == {"kind": "step", "phase": "head", "epoch": 1, "step": 6, "loss": 1 / 6, "lr": 0.1}
    assert [row["epoch"] for row in of_epochs(found)] == [1, 2, 3]
    assert caplog.messages[0] == "fold 1 · head: epoch 1, step 6 loss 0.1667 lr 0.1"
    assert len(caplog.messages) == 7


def test_a_long_epoch_can_be_followed(tmp_path):
    train(recorder(tmp_path), last=9)
    assert [row["step"] for row in lines(tmp_path)] == [6, 9]


@pytest.mark.parametrize("killed_at", [3, 9, 10, 16, 23])
def test_a_killed_training_leaves_everything_once(tmp_path, killed_at):
    """It was killed some steps after the checkpoint that it goes on from."""
    train(recorder(tmp_path / "whole"))
    home = tmp_path / "killed"
    checkpointed = recorder(None)
    train(checkpointed, last=killed_at)
    train(recorder(home), last=killed_at + 6)
    with (home / "history.jsonl").open("a") as file:
        file.write('{"kind": "st')  # and in the middle of a line
    again = recorder(home, before=json.loads(json.dumps(checkpointed.rows)))
    assert lines(home) == checkpointed.rows, "at once: what comes after the checkpoint is no history yet"
    train(again, first=killed_at)
    assert (home / "history.jsonl").read_bytes() == (tmp_path / "whole" / "history.jsonl").read_bytes()


def test_a_training_that_goes_back_in_its_own_process_leaves_everything_once(tmp_path):
    """As one does whose weights became NaN."""
    train(recorder(tmp_path / "whole"))
    one = recorder(tmp_path)
    train(one, last=13)
    good = list(one.rows)
    train(one, first=13, last=23)
    one.back_to(good)
    train(one, first=13)
    assert lines(tmp_path) == lines(tmp_path / "whole")


def test_an_attempt_without_a_checkpoint_begins_anew(tmp_path):
    train(recorder(tmp_path), last=13)
    recorder(tmp_path)
    assert lines(tmp_path) == []


def test_the_next_phase_counts_its_own_steps(tmp_path):
    first = recorder(tmp_path)
    train(first)
    before = lines(tmp_path)
    train(recorder(tmp_path, before=first.rows), phase="all", last=STEPS)
    assert lines(tmp_path)[: len(before)] == before
    assert [row.get("step") for row in lines(tmp_path)[len(before) :]] == [6, 9, None]


def test_steps_can_be_left_out_and_so_can_files(tmp_path):
    none = recorder(tmp_path, every_steps=0)
    train(none)
    assert none.rows == lines(tmp_path) == of_epochs(lines(tmp_path))
    assert not none.due("head", 100)
    unwritten = recorder(None, tensorboard=True)
    train(unwritten)
    assert len(unwritten.rows) == 10


def test_what_is_no_number_is_null(tmp_path):
    recorder(tmp_path).epoch({"phase": "head", "epoch": 1, "loss": float("nan")})
    assert lines(tmp_path) == [{"phase": "head", "epoch": 1, "loss": None}]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for file in folder.glob("events*"):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name in ("scalars", "")  # said once a tag
                found.setdefault(value.tag, []).append((event.step, float(tf.make_ndarray(value.tensor))))
    return found


def test_tensorboard_has_epochs_and_steps_once_also_after_a_kill(tmp_path):
    killed = recorder(tmp_path, tensorboard=True)
    train(killed, last=2 * STEPS)
    rows = [row for row in killed.rows if row["epoch"] == 1]
    killed.close()
    again = recorder(tmp_path, tensorboard=True, before=rows)
    train(again, first=STEPS)
    again.back_to(rows)
    train(again, first=STEPS)
    train(again, phase="all", last=STEPS)
    again.close()
    found = scalars(tmp_path / "tensorboard" / "head")
    assert set(found) == {"loss", "val_loss", "steps/loss", "steps/lr"}
    assert [step for step, _ in found["loss"]] == [1, 2, 3]
    assert [step for step, _ in found["steps/loss"]] == [6, 9, 13, 16, 20, 26, 29]
    assert found["val_loss"][-1][1] == pytest.approx(2 / 30)
    assert [step for step, _ in scalars(tmp_path / "tensorboard" / "all")["loss"]] == [1]
