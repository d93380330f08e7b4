"""The command line: exit codes, errors on one screen, nothing heavy before it is needed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from pipelines import cli, embedded, flows
from shared import contract, worker
from shared.config import DomainConfig, Section
from shared.errors import CasebookError, InputError

HEAVY = {"tensorflow", "keras", "prefect", "mlflow", "pandas", "xarray", "sklearn", "matplotlib"}


class ModelSection(Section):
    units: int = Field(8, ge=1, description="Units of the network.")


class ToyConfig(DomainConfig):
    model: ModelSection = ModelSection()


class Toy(contract.Domain):
    """A domain that only the command line asks things of."""

    name, title, Config = "toy", "A toy", ToyConfig


Toy.__abstractmethods__ = frozenset()


class Point:
    """An entry point whose loading is the domain itself."""

    value = "toy:domain"

    def load(self) -> contract.Domain:
        return Toy()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """``toy`` is the only domain there is."""
    monkeypatch.setattr(contract, "_registered", lambda: {"toy": Point()})


MakeRun = Callable[..., Path]
Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def flow(toy: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calls]:
    """Replaces the flows by functions that note what they were called with, without Prefect."""
    monkeypatch.setattr(worker, "warm_up", lambda: None)
    monkeypatch.setattr(embedded, "for_this_process", lambda: None)

    def replaced(train: Any = None, predict: Any = None) -> Calls:
        calls: Calls = []

        def noted(name: str, answer: Any) -> Callable[..., Any]:
            def call(**parameters: Any) -> Any:
                calls.append((name, parameters))
                if isinstance(answer, BaseException):
                    raise answer
                return answer

            return call

        made: Any = flows.Flows(noted("train", train), noted("predict", predict), {})
        monkeypatch.setattr(flows, "of", lambda domain: made)
        return calls

    return replaced


def test_run_passes_flags_over_file_and_shows_the_summary(
    flow: Callable[..., Calls], a_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = flow(train={"path": str(a_run(tmp_path / "run"))})
    file = tmp_path / "c.toml"
    file.write_text('source = "here"\n[train]\nepochs = 3\nseed = 4\n')
    words = [
        "run",
        "toy",
        "--config",
        str(file),
        "--train.epochs",
        "5",
        "--model.units=9",
        "--price-per-hour",
        "2",
    ]
    assert cli.run([*words, "--replan", "--guards", "full"]) == 0
    ((name, parameters),) = calls
    config = parameters["config"]
    assert (name, parameters["run"]) == ("train", None)
    assert (config["source"], config["train"]["epochs"], config["train"]["seed"]) == ("here", 5, 4)
    assert (config["model"]["units"], config["run"]["price_per_hour"]) == (9, 2.0)
    assert (config["plan"]["replan"], config["gate"]["guards"]) == (True, "full")
    out, err = capsys.readouterr()
    assert "PROMOTE" in out
    assert "Starting the flow" in err


@pytest.mark.parametrize(
    ("verdict", "flags", "code"),
    [("hold", [], 0), ("hold", ["--fail-on-hold"], 3), ("promote", ["--fail-on-hold"], 0)],
)
def test_a_held_model_is_a_result_unless_asked_otherwise(
    flow: Callable[..., Calls], a_run: MakeRun, tmp_path: Path, verdict: str, flags: list[str], code: int
) -> None:
    flow(train={"path": str(a_run(tmp_path, verdict=verdict))})
    assert cli.run(["run", "toy", *flags]) == code


def test_json_is_all_that_goes_to_stdout(
    flow: Callable[..., Calls], a_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow(train={"path": str(a_run(tmp_path))})
    assert cli.run(["run", "toy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "promote"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("No price column.", "Name one Close."), 2, "Remedy: Name one Close."),
        (CasebookError("The disk is full."), 1, "Error: The disk is full."),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "Error: The disk is full."),
        (RuntimeError("RESOURCE_EXHAUSTED: x; No space left on device"), 1, "Remedy: Free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/film.dcm"), 1, "allow it: /a/film.dcm"),
        (ZeroDivisionError("division by zero"), 1, "Unexpected error: ZeroDivisionError"),
        (KeyboardInterrupt(), 130, "casebook resume last"),
        (ValueError("Error calling function `_ser_model`: KeyboardInterrupt: "), 130, "casebook resume last"),
        (ValueError("Error calling function `_ser_model`: Terminated: "), 143, "casebook resume last"),
    ],
)
def test_a_failed_run_says_why_and_exits_honestly(
    flow: Callable[..., Calls], error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flow(train=error)
    assert cli.run(["run", "toy"]) == code
    out, err = capsys.readouterr()
    assert said in err
    assert "Traceback" not in out + err


def test_the_release_command_runs_even_where_no_run_was_opened(
    flow: Callable[..., Calls], tmp_path: Path
) -> None:
    flow(train=KeyboardInterrupt())
    released = tmp_path / "released"
    assert cli.run(["run", "toy", "--accelerator.release-command", f"echo >> {released}"]) == 130
    assert released.read_text() == "\n"


def test_debug_shows_the_traceback(flow: Callable[..., Calls], capsys: pytest.CaptureFixture[str]) -> None:
    flow(train=CasebookError("no"))
    assert cli.run(["run", "toy", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_error_is_json_too_where_json_was_asked_for(toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["config", "nothere"]) == 2
    assert cli.run(["run", "toy", "--train.epoch", "1", "--json"]) == 2
    assert "train.epochs" in json.loads(capsys.readouterr().out)["remedy"]


def test_a_run_that_is_done_is_done_even_if_prefects_server_went_away(
    flow: Callable[..., Calls], a_run: MakeRun, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = flow(train=ConnectionError("server gone"))
    folder = a_run(runs / "digits" / "20261130-120000-abcd")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert cli.run(["run", "toy"]) == 1, "there is no run of this domain"
    capsys.readouterr()
    started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 1))
    (folder / "manifest.json").write_text(json.dumps({**manifest, "domain": "toy", "started": started}))
    folder.parent.rename(runs / "toy")
    assert cli.run(["run", "toy"]) == 0
    assert "Prefect could not record that: server gone" in capsys.readouterr().err
    assert len(calls) == 2


def test_predict_passes_only_what_was_set(
    flow: Callable[..., Calls], a_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {
        "headline": "Two up.",
        "scored": 2,
        "output": "x.csv",
        "facts": {},
        "quarantine": [],
        "model": "m",
    }
    calls = flow(predict=result)
    assert cli.run(["predict", "toy", "--source", "new", "--out", str(tmp_path), "--model.units", "3"]) == 0
    assert calls == [
        ("predict", {"source": "new", "config": {"model": {"units": "3"}}, "out": str(tmp_path)})
    ]
    assert "Two up." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "nothing"),
        (["run"], "DOMAIN"),
        (["run", "toys"], "Did you mean 'toy'?"),
        (["run", "toy", "--model.unit", "3"], "--model.units"),
        (["run", "toy", "--model.units", "many"], "model.units"),
        (["run", "toy", "--model.units", "0"], "model.units"),
        (["run", "toy", "--config", "absent.toml"], "absent.toml"),
        (["run", "toy", "--guards", "some"], "some"),
        (["predict", "toy"], "source"),
        (["predict", "toy", "--source", ""], "The source is empty"),
        (["predict", "toy", "--source", "no/such.csv"], "There is no file or folder no/such.csv"),
        (["run", "toy", "--source", "no/such.csv"], "There is no file or folder no/such.csv"),
        (["plan", "toy", "--source", "no/such.csv"], "There is no file or folder no/such.csv"),
        (["resume", "20200101-000000-0000"], "There is no run"),
        (["status", "nothere"], "There is no run"),
    ],
)
def test_wrong_input_is_exit_code_2_and_one_screen(
    flow: Callable[..., Calls], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = flow()
    assert cli.run(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) < 12
    assert calls == []


def test_a_read_only_runs_folder_is_wrong_input(
    toy: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("CASEBOOK_RUNS", str(blocked / "runs"))
    assert cli.run(["plan", "toy"]) == 2
    assert "CASEBOOK_RUNS" in capsys.readouterr().err


def test_status_lists_runs_and_where_they_stand(
    toy: None, a_run: MakeRun, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["status"]) == 0
    assert "No runs yet" in capsys.readouterr().out
    folder = a_run(runs / "toy" / "20261130-120000-abcd", synthetic=True)
    manifest = json.loads((folder / "manifest.json").read_text())
    stopped = {**manifest, "domain": "toy", "state": "interrupted", "steps": {"ingest": {"state": "done"}}}
    (folder / "manifest.json").write_text(json.dumps(stopped))
    assert cli.run(["status"]) == 0
    out = capsys.readouterr().out
    assert "interrupted at plan" in out
    assert "SYNTHETIC" in out
    (folder / "manifest.json").write_text(json.dumps({**stopped, "state": "running"}))
    assert cli.run(["status"]) == 0
    assert "killed at plan" in capsys.readouterr().out, "nobody holds its lock"
    assert cli.run(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["run"] == "20261130-120000-abcd"


def test_config_prints_toml_that_reads_back(
    toy: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["config", "toy", "--model.units", "5"]) == 0
    text = capsys.readouterr().out
    assert "# Units of the network." in text
    file = tmp_path / "c.toml"
    file.write_text(text)
    assert cli.run(["config", "toy", "--config", str(file)]) == 0
    assert capsys.readouterr().out == text


def test_model_history_of_a_domain_without_models(toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["model", "history", "toy"]) == 0
    assert "`casebook run toy` makes one" in capsys.readouterr().out


def test_help_of_a_domain_lists_options_and_settings(toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["run", "toy", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--fail-on-hold" in out
    assert "--model.units INT" in out
    assert out.count("--source ") == 1
    assert cli.run(["run", "toys", "--help"]) == 2


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["run", "stocks", "--help"], ["config", "xray"]]
)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = f"""
import sys
from pipelines import cli
assert cli.run({words!r}) == 0
print(*({HEAVY!r} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == [], "loaded for nothing"


def test_prefect_is_quiet_unless_asked_and_a_persons_own_settings_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pipelines.prefect_setup import apply, environment

    console = "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"
    assert environment()[console] == "CRITICAL"
    assert console not in environment(verbose=True)
    assert environment(debug=True)["PREFECT_LOGGING_LEVEL"] == "DEBUG"
    for asked in ({}, {"verbose": True}, {"debug": True}):
        values = environment(**asked)
        assert values["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
        assert values["PREFECT_LOGGING_EXTRA_LOGGERS"] == "casebook", "our lines reach the flow's log"
    ours = {"PREFECT_LOGGING_EXTRA_LOGGERS": "mine"}
    monkeypatch.setattr(os, "environ", ours)
    apply(verbose=True)
    assert ours["PREFECT_LOGGING_EXTRA_LOGGERS"] == "mine"
    assert ours["DO_NOT_TRACK"] == "1"


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_cleanly(how: signal.Signals, status: int, tmp_path: Path) -> None:
    """Also when started in the background of a script, where SIGINT comes ignored."""
    code = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
from pipelines import cli, embedded, flows
from shared import worker
worker.warm_up = embedded.for_this_process = lambda: None
def of(domain):
    def train(**parameters):
        print("ready", flush=True)
        time.sleep(60)
    return flows.Flows(train, train, {})
flows.of = of
cli.main(["run", "stocks"])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CASEBOOK_RUNS": str(tmp_path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(how)
    _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert "Interrupted" in err
    assert "Traceback" not in err


def test_two_ways_of_asking_for_workers_are_refused_before_a_run_is_made(
    toy: None, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    assert cli.run(["run", "toy", "--workers", "2"]) == cli.FAILED
    assert "accelerator.workers = 2 and TF_CONFIG were both given" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not list(runs.glob("toy/*"))
