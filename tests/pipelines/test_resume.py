"""kill -9 at random instants of training, in every fold, phase and member, then resume: the same to the bit.

Three instants a domain; CASEBOOK_TEST_KILLS=20 makes it twenty.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared import files
from shared.config import build, merge, to_toml
from shared.contract import find

KILLS = int(os.environ.get("CASEBOOK_TEST_KILLS", "3"))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300 + 200 * KILLS)]

Start = Callable[..., subprocess.Popen[bytes]]

PLAN = {"batch_size": 16, "precision": "float32", "xla": "off"}  # two measured plans may differ
TWO_MEMBERS = {"stocks": {"train": {"members": 2}}}


def config(domain: str, tmp_path: Path) -> str:
    body = find(domain)
    given = merge(
        {"plan": PLAN, "export": {"formats": []}, "train": {"epochs": 3}}, TWO_MEMBERS.get(domain, {})
    )
    file = tmp_path / f"{domain}.toml"
    file.write_text(to_toml(build(body.Config, base=merge(body.tiny(), given))))
    return str(file)


def folder_of(runs: Path) -> Path:
    (found,) = [path.parent for path in runs.glob("*/*/manifest.json")]
    return found


def step_of(runs: Path, name: str) -> dict[str, Any]:
    found = list(runs.glob("*/*/manifest.json"))
    return files.read_json(found[0])["steps"].get(name, {}) if found else {}


def arrays(folder: Path) -> dict[str, bytes]:
    """Every array that training and evaluation left, as bytes: labels may be NaN."""
    kept = {}
    for file in [folder / "predictions.npz", *sorted(folder.glob("work/**/*.npz"))]:
        with np.load(file) as stored:
            kept |= {f"{file.relative_to(folder)}:{name}": stored[name].tobytes() for name in stored.files}
    return kept


@pytest.mark.parametrize("domain", ["stocks", "xray", "climate"])
def test_killed_at_random_instants_it_resumes_to_the_bit(
    domain: str, casebook: Start, runs: Path, tmp_path: Path
) -> None:
    log = tmp_path / "casebook.log"

    def finished(process: subprocess.Popen[bytes]) -> None:
        assert process.wait(timeout=400) == 0, log.read_text()[-3000:]

    # Up to the beginning of training, kept to begin from each time.
    begun = casebook("run", domain, "--config", config(domain, tmp_path))
    while step_of(runs, "train").get("state") != "running":
        assert begun.poll() is None, log.read_text()
        time.sleep(0.02)
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait()
    time.sleep(1.0)  # its children leave
    base = tmp_path / "base"
    shutil.copytree(runs, base)

    finished(casebook("resume", "last"))
    undisturbed = arrays(folder_of(runs))
    comparison = files.read_json(folder_of(runs) / "metrics.json")["comparison"]
    seconds = step_of(runs, "train")["seconds"]
    assert any("seed-0" in name for name in undisturbed)

    chance = random.Random(f"{domain} {KILLS}")
    told = []
    for _ in range(KILLS):
        shutil.rmtree(runs)
        shutil.copytree(base, runs)
        killed = casebook("resume", "last")
        # The manifest that was kept says "running" already: training begins when its folder appears.
        while not list(folder_of(runs).glob("work/*/*")):
            assert killed.poll() is None, log.read_text()
            time.sleep(0.01)
        moment = chance.uniform(0.0, seconds)
        time.sleep(moment)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        rows = sum(len(f.read_text().splitlines()) for f in folder_of(runs).glob("work/*/*/history.jsonl"))
        told.append(f"{moment:.1f} s: {step_of(runs, 'train')['state']}, {rows} lines of history")
        finished(casebook("resume", "last"))
        assert arrays(folder_of(runs)) == undisturbed, told
        assert files.read_json(folder_of(runs) / "metrics.json")["comparison"] == comparison
    print(f"{domain}, training takes {seconds:.1f} s, killed at:", *told, sep="\n  ")
