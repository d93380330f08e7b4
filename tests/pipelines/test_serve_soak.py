"""Schedules against a real Prefect server: they fire, one at a time, and outlive whatever is killed.

A domain of the test's own stands in, with flows that only write down when they ran; all
else is the code of ``casebook serve``. Each process has its own PREFECT_HOME.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

FLOWS = """
import logging, os, time
import pipelines.prefect_setup  # as pipelines.tasks does
from prefect import flow, task
from shared import worker

def note(text):
    with open(os.environ["TOY_LOG"], "a") as log:
        log.write(f"{time.time():.2f} {os.getpid()} {text}\\n")

@flow(name="toy-train")
def train(config: dict | None = None, run: str | None = None) -> dict:
    note("start")
    logging.getLogger("casebook.training").info("epoch 1: loss 0.5")
    time.sleep((config or {}).get("sleep", 0))
    note("end")
    return {}

@flow(name="toy-predict")
def predict(source: str, config: dict | None = None, out: str | None = None) -> dict:
    note(f"predict {source}")
    train_in_a_child()
    return {}

@task
def train_in_a_child() -> None:
    def training():
        import keras, tensorflow as tf
        from shared.training import fit
        def model():
            return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        def data():
            return tf.data.Dataset.from_tensor_slices((tf.ones([64, 2]), tf.ones([64, 1])))
        fit(model, data, loss=keras.losses.mean_squared_error, epochs=2, validation_fn=data)
    worker.call(training)
"""

DOMAIN = """
from pydantic import Field
from shared.config import DomainConfig
from shared.contract import Domain

class Config(DomainConfig):
    sleep: float = Field(0.0, description="Seconds that training takes.")

class Toy(Domain):
    name, title = "toy", "Toy"

Toy.Config = Config
Toy.__abstractmethods__ = frozenset()
domain = Toy()
"""

SERVE = """
import sys
from importlib.metadata import EntryPoint
from pipelines import prefect_setup
prefect_setup.apply(verbose=True)
from shared import contract
contract._registered = lambda: {"toy": EntryPoint("toy", "toy_domain:domain", "casebook")}
import toy_flows
from pipelines import flows
flows.of = lambda domain: flows.Flows(toy_flows.train, toy_flows.predict, {})
from pipelines.cli import main
main(sys.argv[1:])
"""


@dataclass
class Serving:
    """A ``casebook serve`` of the test's own."""

    process: subprocess.Popen[bytes]
    folder: Path
    environment: dict[str, str]
    port: int

    def notes(self, word: str = "") -> list[tuple[float, int, str]]:
        """What the flows wrote down: (time, process, text), with ``word`` in the text."""
        log = self.folder / "log"
        rows = [line.split(" ", 2) for line in log.read_text().splitlines()] if log.exists() else []
        return [(float(when), int(pid), text) for when, pid, text in rows if word in text]

    def wait(self, for_what: Callable[[], Any], seconds: float = 90.0) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.said()
            found = for_what()
            if found:
                return found
            time.sleep(0.3)
        raise AssertionError(f"It did not happen within {seconds} s.\n{self.said()}")

    def said(self) -> str:
        return (self.folder / "out").read_text()[-6000:]

    def api(self, path: str, **body: Any) -> Any:
        with httpx.Client(trust_env=False, timeout=30) as client:
            answer = client.post(f"http://127.0.0.1:{self.port}/api/{path}", json=body)
        answer.raise_for_status()
        return answer.json()

    def states(self) -> list[str]:
        return [run["state"]["name"] for run in self.api("flow_runs/filter", sort="EXPECTED_START_TIME_ASC")]

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(how)
        return self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PREFECT_HOME for all tests here: making its database costs more than a test."""
    return tmp_path_factory.mktemp("prefect")


Start = Callable[[str], Serving]


@pytest.fixture
def start(tmp_path: Path, home: Path) -> Iterator[Start]:
    """``start(schedules)`` starts serving; a second call goes on in the same folder."""
    for name, text in (("toy_flows.py", FLOWS), ("toy_domain.py", DOMAIN), ("serve.py", SERVE)):
        (tmp_path / name).write_text(text)
    environment = {
        **os.environ,
        "CASEBOOK_RUNS": str(tmp_path / "runs"),
        "PREFECT_HOME": str(home),
        "PYTHONPATH": str(tmp_path),
        "TOY_LOG": str(tmp_path / "log"),
    }
    started: list[Serving] = []

    def serving(schedules: str) -> Serving:
        from pipelines.embedded import any_free_port

        (tmp_path / "schedules.toml").write_text(schedules)
        port = any_free_port()
        command = [sys.executable, "serve.py", "serve", "--config", "schedules.toml", "--poll-seconds", "1"]
        with (tmp_path / "out").open("ab") as out:
            process = subprocess.Popen(
                [*command, "--port", str(port)], cwd=tmp_path, env=environment, stdout=out, stderr=out
            )
        started.append(Serving(process, tmp_path, environment, port))
        return started[-1]

    yield serving
    for one in started:
        if one.process.poll() is None:
            one.stop(signal.SIGKILL)
    for _, pid, _ in started[0].notes() if started else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_schedule_of_seconds_fires_twice_and_a_flow_is_triggered_by_hand(start: Start) -> None:
    serving = start("[toy.train]\nseconds = 8\n")
    serving.wait(lambda: len(serving.notes("end")) >= 2)
    (first, one, _), (second, other, _) = serving.notes("start")[:2]
    assert one != other, "one process a run"
    assert second - first > 4

    environment = {**serving.environment, "PREFECT_API_URL": f"http://127.0.0.1:{serving.port}/api"}
    command = [
        sys.executable,
        "-m",
        "prefect",
        "deployment",
        "run",
        "toy-predict/casebook",
        "-p",
        "source=by-hand",
    ]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    serving.wait(lambda: serving.notes("predict by-hand"))

    # INFO lines of our own packages are in the flow's log (prefect#17879).
    serving.wait(
        lambda: any("epoch 1: loss 0.5" in line["message"] for line in serving.api("logs/filter", limit=200)),
        seconds=20,
    )
    # So are the epochs of a real training, which runs in a child of a task's thread.
    (run,) = serving.api("flow_runs/filter", flows={"name": {"any_": ["toy-predict"]}})
    epochs = serving.wait(
        lambda: [
            line
            for line in serving.api("logs/filter", logs={"flow_run_id": {"any_": [run["id"]]}}, limit=200)
            if line["message"].startswith("fit: epoch 2/2 loss ")
        ]
    )
    assert [line["name"] for line in epochs] == ["casebook.training"], "once"
    assert "val_loss" in epochs[0]["message"]
    assert epochs[0]["task_run_id"] is not None
    assert serving.stop() == 0
    assert "Traceback" not in serving.said()


def test_overlaps_are_skipped_and_a_killed_run_does_not_block_the_next(start: Start) -> None:
    serving = start("[toy.train]\nseconds = 5\nconfig.sleep = 300\n")
    _, pid, _ = serving.wait(lambda: serving.notes("start"))[0]
    serving.wait(lambda: "Cancelled" in serving.states())
    assert len(serving.notes("start")) == 1, "what comes due while a run is going is not started"
    os.kill(pid, signal.SIGKILL)
    serving.wait(lambda: len(serving.notes("start")) == 2)
    assert "Crashed" in serving.states()
    second = serving.notes("start")[1][1]
    assert serving.stop(signal.SIGTERM) == 0
    assert not alive(second), "nothing outlives serve"
    with pytest.raises(httpx.ConnectError):
        serving.states()


def test_after_kill_9_of_serve_missed_runs_are_caught_up_once_at_most(start: Start) -> None:
    first = start("[toy.train]\nseconds = 6\nconfig.sleep = 300\n")
    orphan = first.wait(lambda: first.notes("start"))[0][1]
    first.stop(signal.SIGKILL)
    os.kill(orphan, signal.SIGKILL)
    time.sleep(20)  # three runs are missed

    second = start("[toy.train]\nseconds = 6\nconfig.sleep = 2\n")
    second.wait(lambda: len(second.notes("end")) >= 2)
    starts = [when for when, _, _ in second.notes("start")][1:]
    assert all(later - earlier > 2 for earlier, later in itertools.pairwise(starts))
    assert "Crashed" in second.states(), "the run that died with the first serve is said to have"
    assert second.stop() == 0


def test_the_server_comes_back_when_it_is_killed(start: Start) -> None:
    serving = start("[toy.train]\nseconds = 5\n")
    serving.wait(lambda: serving.notes("end"))
    found = subprocess.run(
        ["pgrep", "-f", f"pipelines.embedded {serving.port} "], capture_output=True, text=True
    )
    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
    before = len(serving.notes("end"))
    serving.wait(lambda: len(serving.notes("end")) > before + 1, seconds=120)
    assert serving.stop() == 0


def test_the_server_of_a_run_does_not_outlive_a_killed_run(tmp_path: Path, home: Path) -> None:
    code = """
import time
from pipelines import embedded
server = embedded.for_this_process()
server.wait()
print(server.url, flush=True)
time.sleep(300)
"""
    environment = {**os.environ, "PREFECT_HOME": str(home)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    with httpx.Client(trust_env=False) as client:
        assert client.get(f"{url}/health").status_code == 200
        process.kill()
        process.wait()
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            try:
                client.get(f"{url}/health")
            except httpx.ConnectError:
                break
            time.sleep(0.2)
        else:
            raise AssertionError("the server outlived its run")
    process.stdout.close()
