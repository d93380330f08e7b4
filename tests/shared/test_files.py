"""Nothing is written half; JSON holds JSON's types only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shared import files


def test_a_failed_writer_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a.txt", "old")

    def fail() -> None:
        with files.atomic(tmp_path / "a.txt") as temporary:
            temporary.write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a.txt", "old")
    code = (
        "import os, sys; from pathlib import Path; from shared import files\n"
        "with files.atomic(Path(sys.argv[1])) as t:\n"
        "    t.write_text('half'); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.txt")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "a.txt").read_text() == "old"


def test_json_of_numpy_paths_and_nan(tmp_path: Path) -> None:
    value = {
        "a": np.float32(1.5),
        "b": np.array([1, 2]),
        "c": float("nan"),
        4: (Path("x"), None, np.bool_(True)),
    }
    files.write_json(tmp_path / "a.json", value)
    assert files.read_json(tmp_path / "a.json") == {"a": 1.5, "b": [1, 2], "c": None, "4": ["x", None, True]}


def test_npz_refuses_what_needs_pickle(tmp_path: Path) -> None:
    files.write_npz(tmp_path / "a.npz", x=np.arange(3))
    with np.load(tmp_path / "a.npz", allow_pickle=False) as kept:
        assert kept["x"].tolist() == [0, 1, 2]
    assert os.listdir(tmp_path) == ["a.npz"]
