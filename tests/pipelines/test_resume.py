"""kill -9 in the middle of training, then resume: the same numbers, to the bit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shared import files

pytestmark = pytest.mark.soak

Start = Callable[..., subprocess.Popen[bytes]]


def epochs(runs: Path) -> int:
    lines = (line for file in runs.rglob("seed-*/history.jsonl") for line in file.read_text().splitlines())
    return sum('"kind"' not in line for line in lines)


@pytest.mark.parametrize("domain", ["stocks", "xray", "climate"])
def test_a_killed_run_resumes_to_the_bit(
    domain: str, casebook: Start, tiny_file: Callable[[str], Path], runs: Path, tmp_path: Path
) -> None:
    log = tmp_path / "casebook.log"
    config = str(tiny_file(domain))
    whole = casebook("run", domain, "--config", config, CASEBOOK_RUNS=str(tmp_path / "undisturbed"))
    assert whole.wait(timeout=300) == 0, log.read_text()

    killed = casebook("run", domain, "--config", config)
    deadline = time.monotonic() + 200
    while epochs(runs) < 1:
        assert killed.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    (folder,) = [path.parent for path in runs.glob(f"{domain}/*/manifest.json")]
    assert files.read_json(folder / "manifest.json")["steps"]["train"]["state"] == "running"

    resumed = casebook("resume", "last")
    assert resumed.wait(timeout=300) == 0, log.read_text()

    (other,) = [path.parent for path in (tmp_path / "undisturbed").glob(f"{domain}/*/manifest.json")]
    with np.load(folder / "predictions.npz") as mine, np.load(other / "predictions.npz") as theirs:
        for name in theirs.files:
            assert mine[name].tobytes() == theirs[name].tobytes(), name  # labels may be NaN
    mine, theirs = (files.read_json(path / "metrics.json")["comparison"] for path in (folder, other))
    assert mine == theirs
