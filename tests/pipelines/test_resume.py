"""kill -9 at random instants of training, in every fold, phase and member, then resume: the same to the bit.

Three instants a domain; CASEBOOK_TEST_KILLS=20 makes it twenty. Once through the command as well.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shared import files
from tests.pipelines import training_alone

KILLS = int(os.environ.get("CASEBOOK_TEST_KILLS", "3"))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400 + 100 * KILLS)]

Start = Callable[..., subprocess.Popen[bytes]]


def folder_of(runs: Path) -> Path:
    (found,) = [path.parent for path in runs.glob("*/*/manifest.json")]
    return found


def arrays(folder: Path) -> dict[str, bytes]:
    """Every array that training and evaluation left, as bytes: labels may be NaN."""
    kept = {}
    for file in [*folder.glob("predictions.npz"), *sorted(folder.glob("work/**/*.npz"))]:
        with np.load(file) as stored:
            kept |= {f"{file.relative_to(folder)}:{name}": stored[name].tobytes() for name in stored.files}
    return kept


def lines(folder: Path) -> int:
    """Lines of history so far: one a step, and one an epoch."""
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("work/*/*/history.jsonl"))


@pytest.mark.parametrize("domain", ["stocks", "xray", "climate"])
def test_killed_at_random_instants_it_resumes_to_the_bit(domain: str, runs: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def training(*words: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as said:
            call = [sys.executable, training_alone.__file__, domain, *words]
            return subprocess.Popen(call, env=environment, stderr=said, stdout=said)

    def ended(process: subprocess.Popen[bytes]) -> None:
        assert process.wait(timeout=400) == 0, log.read_text()[-3000:]

    ended(training("plan"))
    run = folder_of(runs)
    base = tmp_path / "base"
    shutil.copytree(runs, base)
    ended(training("train", str(run)))
    undisturbed, total = arrays(run), lines(run)
    assert sum("weights.npz" in name for name in undisturbed) > 1

    chance = random.Random(f"{domain} {KILLS}")
    told = []
    for _ in range(KILLS):
        shutil.rmtree(runs)
        shutil.copytree(base, runs)
        killed = training("train", str(run))
        line, nap = chance.randrange(total), chance.uniform(0.0, 0.05)
        while lines(run) < line:
            assert killed.poll() is None, log.read_text()[-3000:]
            time.sleep(0.002)
        time.sleep(nap)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        told.append(f"line {line} of {total} and {nap * 1000:.0f} ms")
        ended(training("train", str(run)))
        assert arrays(run) == undisturbed, told
        assert lines(run) == total, told
    print(f"{domain} was killed at", *told, sep="\n  ")


def test_a_killed_command_resumes_to_the_bit(
    casebook: Start, tiny_file: Callable[[str], Path], runs: Path, tmp_path: Path
) -> None:
    log = tmp_path / "casebook.log"
    config = str(tiny_file("stocks"))
    whole = casebook("run", "stocks", "--config", config, CASEBOOK_RUNS=str(tmp_path / "undisturbed"))
    assert whole.wait(timeout=400) == 0, log.read_text()

    killed = casebook("run", "stocks", "--config", config)
    while not list(runs.rglob("seed-*/history.jsonl")):
        assert killed.poll() is None, log.read_text()
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert files.read_json(folder_of(runs) / "manifest.json")["steps"]["train"]["state"] == "running"
    resumed = casebook("resume", "last")
    assert resumed.wait(timeout=400) == 0, log.read_text()

    mine, theirs = folder_of(runs), folder_of(tmp_path / "undisturbed")
    assert arrays(mine) == arrays(theirs)
    one, two = (files.read_json(folder / "metrics.json")["comparison"] for folder in (mine, theirs))
    assert one == two
