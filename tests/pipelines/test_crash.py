"""kill -9 between any two steps, in the midst of export and publish, and while the registry is made."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pipelines import steps
from shared import files
from shared.config import build, merge
from shared.contract import find
from shared.runs import registry
from shared.runs.folder import Run
from tests.pipelines import self_killing

pytestmark = pytest.mark.soak

SETTINGS = {
    "plan": {"batch_size": 16, "precision": "float32", "xla": "off"},
    "export": {"formats": ()},  # each would be tried again after every kill
}
MOST_KILLS = 80


def program(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, self_killing.__file__, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def evaluated() -> Run:
    """A run that has everything but its published model."""
    body = find("stocks")
    this = Run.create(body, build(body.Config, base=merge(body.tiny(), SETTINGS)))
    with this.held():
        for step in (steps.ingest, steps.plan, steps.train, steps.evaluate):
            step(this)
    return this


def twin(run: Run) -> Run:
    """The same run under another name, from here on for itself."""
    folder = run.path.with_name(f"{run.id}-twin")
    shutil.copytree(run.path, folder)
    files.write_json(folder / "manifest.json", {**run.manifest, "run": folder.name})
    return Run.open(str(folder))


def finished(run: Run, ledger: Path) -> int:
    """Calls the self-killing program until the run is done; returns how often it died."""
    for kills in range(MOST_KILLS):
        with program(str(run.path), str(ledger)) as process:
            try:
                _, said = process.communicate(timeout=300)
            finally:
                process.kill()
        if process.returncode == 0:
            return kills
        assert process.returncode == -signal.SIGKILL, said
    pytest.fail(f"It did not come to its end: {ledger.read_text()}")


@pytest.mark.timeout(1500)
def test_killed_at_every_point_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    killed = evaluated()
    other = twin(killed)
    ledger = tmp_path / "ledger"
    kills = finished(killed, ledger)
    points = ledger.read_text().splitlines()
    assert kills == len(points) == len(set(points))
    for expected in (
        "after train #1",
        "export's child: before model #1",
        "export: before weights.npz #1",
        "publish: before publish.json #1",
        "registry: after create_model_version #1",
        "registry: after set_registered_model_alias #1",
        "report: before report.html #1",
    ):
        assert expected in points

    undisturbed = tmp_path / "nothing"
    undisturbed.write_text("".join(f"{point}\n" for point in points))
    assert finished(other, undisturbed) == 0

    one, two = Run.open(killed.id), Run.open(other.id)
    assert one.manifest["state"] == two.manifest["state"] == "done"
    for name in ("member-0/weights.npz", "seen.npz"):
        with np.load(one.path / "model" / name) as a, np.load(two.path / "model" / name) as b:
            assert a.files == b.files
            for key in a.files:
                np.testing.assert_array_equal(a[key], b[key])
    for name in ("metrics.json", "gate.json"):
        mine, theirs = files.read_json(one.path / name), files.read_json(two.path / name)
        assert mine.get("comparison") == theirs.get("comparison")
        assert mine.get("verdict") == theirs.get("verdict")
    assert {p.name for p in (one.path / "model").rglob("*")} == {
        p.name for p in (two.path / "model").rglob("*")
    }
    assert (one.path / "report.html").is_file()

    # The registry has each once, whole.
    versions = registry.history("stocks")
    assert [version.run for version in versions] == [two.id, one.id]
    assert versions[0].champion
    client = registry._client(registry.tracking_uri())
    (experiment,) = [e for e in client.search_experiments() if e.name == "casebook/stocks"]
    tracked = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(tracked) == {one.id, two.id}
    mine, theirs = tracked[one.id], tracked[two.id]
    assert mine.info.status == "FINISHED"
    assert mine.data.params == theirs.data.params
    assert mine.data.metrics.keys() == theirs.data.metrics.keys()
    for name in mine.data.metrics:
        history = [client.get_metric_history(run.info.run_id, name) for run in (mine, theirs)]
        assert [point.value for point in history[0]] == [point.value for point in history[1]]
    assert registry.rollback("stocks").run == one.id


@pytest.mark.parametrize("delay", [0.0, 0.2, 0.6, 1.2])
def test_a_registry_whose_making_was_killed_is_made_again(delay: float, runs: Path, tmp_path: Path) -> None:
    making = (
        "from shared.runs import registry; import sys; from pathlib import Path; m = Path(sys.argv[1]);"
        "t = registry.track('toy', 'run-1', settings={'a': 1}, metrics={'b': 2.0}, tags={});"
        "registry.register('toy', 'run-1', m, tracked=t, score='', synthetic=False, promote_it=True)"
    )
    call = [sys.executable, "-c", making, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(call, env=environment, stderr=subprocess.DEVNULL)
    while not list(runs.glob("*.db*")) and process.poll() is None:
        time.sleep(0.005)
    time.sleep(delay)
    process.kill()
    process.wait()
    again = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stderr
    assert [version.run for version in registry.history("toy")] == ["run-1"]
