"""A member of two phases: what it leaves behind, and how it goes on after it was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shared import progress
from shared.config import DomainConfig
from shared.contract import Source
from shared.errors import InputError
from shared.evaluation.predictions import read_predictions
from shared.training.member import rebuild, train_member
from tests.shared.training import two_phases

TIMES = (
    "seconds",
    "samples_per_second",
    "input_bound_share",
    "cpu_share",
    "machine_share",
    "host_memory_gb",
    "host_free_gb",
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    from shared import contract

    monkeypatch.setattr(contract, "_registered", lambda: {"two-phases": two_phases.Entry()})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a member that was trained without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    environment = {**os.environ, "CASEBOOK_LOCKS": str(folder)}
    program = [sys.executable, two_phases.__file__, str(folder / "member")]
    subprocess.run(program, check=True, env=environment, capture_output=True, timeout=300)
    return folder / "member"


def history(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def assert_equal_to_the_bit(one: Path, other: Path) -> None:
    assert history(one) == history(other)
    for name in ("weights.npz", "validation.npz", "test.npz"):
        with np.load(one / name) as a, np.load(other / name) as b:
            assert a.files == b.files
            for key in a.files:
                np.testing.assert_array_equal(a[key], b[key])


@pytest.mark.slow
def test_what_a_member_leaves(whole):
    assert {path.name for path in whole.iterdir()} == {
        "history.jsonl",
        "weights.npz",
        "validation.npz",
        "test.npz",
        "done.json",
    }
    assert [(row["phase"], row["epoch"]) for row in history(whole)] == [
        ("head", 1),
        ("head", 2),
        ("all", 1),
        ("all", 2),
        ("all", 3),
    ]
    said = read_predictions(whole / "test.npz")
    assert said.keys.tolist() == [f"case-{number}" for number in range(50, 60)]
    assert said.groups is not None
    assert said.groups[0] == "patient-25"
    assert said.values.shape == said.truth.shape == (10, 1)
    assert said.values.dtype == np.float32
    done = json.loads((whole / "done.json").read_text())
    assert [phase["name"] for phase in done["phases"]] == ["head", "all"]
    assert done["epochs"] == 5
    assert done["parameters"] == 4 * 6 + 6 + 6 + 1
    assert done["device"] == "cpu"
    assert "CPU:0" in done["placement"][0]
    assert done["precision"] == "float32"
    assert done["determinism"]["intra_op_threads"] >= 1


@pytest.mark.slow
def test_a_done_member_is_not_trained_again(whole):
    heard: list[progress.Progress] = []
    with progress.listening(heard.append):
        done = train_member("no-such-domain", ".", {}, 0, 7, {}, str(whole))
    assert done == json.loads((whole / "done.json").read_text())
    assert not heard


@pytest.mark.slow
def test_the_model_is_built_again_from_its_folder(whole):
    import keras

    domain = two_phases.TwoPhases()
    fold = domain.folds(Path(), None)[0]
    keras.utils.clear_session()
    model = rebuild(domain, Path(), DomainConfig(), fold, whole)
    x = np.stack([x for x, _ in domain.examples(Path(), None, fold, "test").dataset])
    said = read_predictions(whole / "test.npz")
    np.testing.assert_allclose(np.asarray(model(x)), said.values, rtol=1e-5)


class Stop(Exception):
    pass


@pytest.mark.slow
def test_an_interrupted_member_goes_on_to_the_bit(whole, tmp_path):
    """In the first epoch of the second phase; kills at other moments are in the soak."""
    left = [7]

    def stop(report: progress.Progress) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stop

    with progress.listening(stop), pytest.raises(Stop):
        two_phases.train(tmp_path)
    assert (tmp_path / "checkpoints" / "phase0.json").exists()
    assert not (tmp_path / "done.json").exists()
    two_phases.train(tmp_path)
    assert_equal_to_the_bit(tmp_path, whole)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["best0.npz", "phase0.json"])
def test_a_finished_phase_that_cannot_be_read_is_trained_anew(whole, tmp_path, caplog, name):
    left = [7]

    def stop(report: progress.Progress) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stop

    with progress.listening(stop), pytest.raises(Stop):
        two_phases.train(tmp_path)
    (tmp_path / "checkpoints" / name).write_bytes(b"{")
    two_phases.train(tmp_path)
    assert "Phase 1, which was finished, is trained anew" in caplog.text
    assert_equal_to_the_bit(tmp_path, whole)


@pytest.mark.soak
@pytest.mark.parametrize("report", [4, 9, 14])
def test_kill_9_at_any_moment_then_a_fresh_process(whole, tmp_path, report):
    """SIGKILL while the process works on the step after its n-th report."""
    program = [sys.executable, two_phases.__file__, str(tmp_path / "member")]
    process = subprocess.Popen([*program, "50"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    for _ in range(report):
        assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "member" / "done.json").exists()
    subprocess.run(program, check=True, capture_output=True, timeout=300)
    assert_equal_to_the_bit(tmp_path / "member", whole)


@pytest.mark.slow
def test_shuffled_labels_train_on_dealt_labels_and_test_on_true_ones(whole, tmp_path):
    done = two_phases.train(tmp_path, shuffled_labels=True)
    assert done["shuffled_labels"]
    for split in ("test", "validation"):
        ours, true = (read_predictions(folder / f"{split}.npz").truth for folder in (tmp_path, whole))
        assert np.array_equal(ours, true) == (split == "test")
        assert ours.sum() == true.sum()  # dealt out, not made up


def test_labels_of_a_stream_cannot_be_shuffled():
    import tensorflow as tf

    from shared.training.chain import shuffle_labels

    stream = Source(3, dataset=tf.data.Dataset.range(3).map(lambda i: (i, i)))
    with pytest.raises(InputError, match="fit into memory"):
        shuffle_labels(stream, 0)


def test_importing_the_member_imports_no_tensorflow():
    program = "import sys, shared.training.member, shared.accelerator; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
