"""Several workers train one model: started by a run on one machine, or one by one as on several."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from shared import cluster, files
from shared.config import build, merge, to_toml
from shared.contract import find
from shared.settings import runs_root

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

Start = Callable[..., subprocess.Popen[bytes]]

SECONDS_TO_NOTICE = 60.0
"""Within which a run says that a worker was lost: 10 s for the others' next sum to fail, 20 s to leave."""


def folder_of(runs: Path) -> Path:
    (found,) = [path.parent for path in runs.glob("stocks/*/manifest.json")]
    return found


def epochs(runs: Path) -> int:
    lines = [line for file in runs.rglob("seed-*/history.jsonl") for line in file.read_text().splitlines()]
    return sum(json.loads(line).get("kind") != "step" for line in lines)


def assert_equal_to_the_bit(one: Path, other: Path) -> None:
    with np.load(one / "predictions.npz") as mine, np.load(other / "predictions.npz") as theirs:
        for name in theirs.files:
            assert mine[name].tobytes() == theirs[name].tobytes(), name


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The runs folder of a whole run by each number of workers; filled by the first test that needs it."""
    return {}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Longer than tiny, so that there is time to kill; a batch that 2 and 3 workers share."""
    domain = find("stocks")
    longer = {
        "plan": {"batch_size": 12, "precision": "float32", "xla": "off"},
        "train": {"epochs": 6, "patience": 0},
        "export": {"formats": []},
    }
    file = tmp_path / "stocks.toml"
    file.write_text(to_toml(build(domain.Config, base=merge(domain.tiny(), longer))))
    return file


def whole(undisturbed: dict[int, Path], count: int, casebook: Start, config: Path, tmp_path: Path) -> Path:
    if count not in undisturbed:
        place = tmp_path / f"undisturbed-{count}"
        words = ["run", "stocks", "--config", str(config)]
        done = casebook(*words, "--workers", str(count), CASEBOOK_RUNS=str(place))
        assert done.wait(timeout=400) == 0, (tmp_path / "casebook.log").read_text()
        undisturbed[count] = folder_of(place)
    return undisturbed[count]


def training_children(run: psutil.Process) -> list[psutil.Process]:
    """The two workers: the youngest children of the run's fork server, which train at the same time."""
    everyone = [child for child in run.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    by_parent: dict[int, list[psutil.Process]] = {}
    for child in everyone:
        by_parent.setdefault(child.ppid(), []).append(child)
    return max(by_parent.values(), key=lambda group: (len(group), group[0].create_time()))


@pytest.mark.parametrize("victim", [0, 1], ids=["the chief", "another"])
def test_a_killed_worker_stops_all_and_a_restart_ends_the_same(
    victim: int,
    undisturbed: dict[int, Path],
    casebook: Start,
    config: Path,
    runs: Path,
    tmp_path: Path,
) -> None:
    log = tmp_path / "casebook.log"
    other = whole(undisturbed, 2, casebook, config, tmp_path)

    run = casebook("run", "stocks", "--config", str(config), "--workers", "2")
    deadline = time.monotonic() + 300
    while epochs(runs) < 2:
        assert run.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = sorted(training_children(psutil.Process(run.pid)), key=lambda child: child.pid)
    os.kill(workers[-2:][victim].pid, signal.SIGKILL)
    killed = time.monotonic()
    assert run.wait(timeout=SECONDS_TO_NOTICE) != 0
    print(f"noticed within {time.monotonic() - killed:.1f} s")
    assert f"Worker {victim} of 2: It was ended by SIGKILL" in " ".join(log.read_text().split())
    assert not [child for child in workers if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert files.read_json(folder_of(runs) / "manifest.json")["steps"]["train"]["state"] != "done"

    resumed = casebook("resume", "last")
    assert resumed.wait(timeout=400) == 0, log.read_text()
    assert_equal_to_the_bit(folder_of(runs), other)


def test_sigterm_is_a_checkpoint_on_all_workers(
    undisturbed: dict[int, Path],
    casebook: Start,
    config: Path,
    runs: Path,
    tmp_path: Path,
) -> None:
    log = tmp_path / "casebook.log"
    other = whole(undisturbed, 2, casebook, config, tmp_path)
    run = casebook("run", "stocks", "--config", str(config), "--workers", "2")
    while epochs(runs) < 1:
        assert run.poll() is None, log.read_text()
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=90) not in (0, -signal.SIGKILL)
    assert files.read_json(folder_of(runs) / "manifest.json")["state"] == "interrupted"
    resumed = casebook("resume", "last")
    assert resumed.wait(timeout=400) == 0, log.read_text()
    assert_equal_to_the_bit(folder_of(runs), other)


def test_one_command_on_each_machine(
    undisturbed: dict[int, Path],
    casebook: Start,
    config: Path,
    runs: Path,
    tmp_path: Path,
) -> None:
    """As on three machines that share the runs folder: the chief makes the run, the others train along."""
    log = tmp_path / "casebook.log"
    other = whole(undisturbed, 3, casebook, config, tmp_path)
    started = []
    for index, variables in enumerate(cluster.environments(3)):
        locks = {"CASEBOOK_LOCKS": str(tmp_path / f"locks-{index}")}  # each machine has its own
        started.append(casebook("run", "stocks", "--config", str(config), **variables, **locks))
    for process in started:
        assert process.wait(timeout=600) == 0, log.read_text()
    assert "Trained 2 member(s) along with the chief" in log.read_text()
    assert_equal_to_the_bit(folder_of(runs), other)
    plan = files.read_json(folder_of(runs) / "plan.json")
    assert (plan["device"], plan["replicas"], plan["batch_size"]) == ("workers", 3, 12)
    assert runs_root() == runs
