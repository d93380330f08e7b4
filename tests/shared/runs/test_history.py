"""The history of a run: its members' lines with fold and seed, and the numbers of epochs for tracking."""

import json

from shared import files
from shared.runs import history

STEP = {"kind": "step", "phase": "head", "epoch": 1, "step": 100, "loss": 0.7, "lr": 0.1}
EPOCH = {"phase": "head", "epoch": 1, "loss": 0.5, "val_loss": None, "seconds": 2.5}


def test_all_members_lines_are_in_the_runs_and_those_of_epochs_are_tracked(tmp_path):
    members = [[str(tmp_path / fold / seed) for seed in ("0", "1")] for fold in ("a", "b")]
    lines = json.dumps(STEP) + "\n" + json.dumps(EPOCH) + "\n"
    for file in (tmp_path / fold / seed / history.NAME for fold in ("a", "b") for seed in ("0", "1")):
        files.write_text(file, lines)
    history.merge(tmp_path, {"folds": ["a", "b"], "seeds": [0, 1], "members": members})
    rows = [json.loads(line) for line in (tmp_path / history.NAME).read_text().splitlines()]
    assert rows[:2] == [{"fold": "a", "member": 0, **STEP}, {"fold": "a", "member": 0, **EPOCH}]
    assert len(rows) == 8
    assert [(row["fold"], row["member"]) for row in history.of_epochs(rows)] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
    ]
    assert list(history.epochs(tmp_path))[:3] == [
        ("a/0/head/loss", 1, 0.5),
        ("a/0/head/seconds", 1, 2.5),
        ("a/1/head/loss", 1, 0.5),
    ]
