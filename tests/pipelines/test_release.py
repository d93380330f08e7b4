"""The release command runs exactly once, however a run ends and whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines import cli, embedded, flows, release, steps
from shared import worker
from shared.config import AcceleratorSection, build
from shared.contract import find
from shared.errors import BusyError
from shared.runs.folder import Run


@pytest.fixture
def sign(tmp_path: Path) -> Path:
    """A file that gets a line at every release."""
    return tmp_path / "released"


@pytest.fixture
def section(sign: Path) -> AcceleratorSection:
    return AcceleratorSection(release_command=f"echo >> '{sign}'")


def count(sign: Path) -> int:
    return len(sign.read_text().splitlines()) if sign.exists() else 0


def test_the_outermost_block_releases_once(section: AcceleratorSection, sign: Path) -> None:
    with release.at_the_end(section):
        with release.at_the_end(section):
            pass
        assert count(sign) == 0
    assert count(sign) == 1
    with release.at_the_end(section):
        pass
    assert count(sign) == 2


@pytest.mark.parametrize("end", [ValueError("x"), KeyboardInterrupt(), SystemExit(143)])
def test_it_is_released_however_it_ends(end: BaseException, section: AcceleratorSection, sign: Path) -> None:
    with pytest.raises(type(end)), release.at_the_end(section), release.at_the_end(section):
        raise end
    assert count(sign) == 1


def test_a_run_that_another_process_works_on_keeps_its_machine(
    section: AcceleratorSection, sign: Path
) -> None:
    body = find("stocks")
    run = Run.create(body, build(body.Config, base={"accelerator": section.model_dump()}))
    with run.held():
        with pytest.raises(BusyError), steps.opened("stocks", run=run.id):
            pytest.fail("it was opened")
        with pytest.raises(BusyError), release.at_the_end(section), steps.opened("stocks", run=run.id):
            pytest.fail("it was opened")
    assert count(sign) == 0


def flow(config: dict[str, Any], run: str | None = None, *, error: BaseException | None = None) -> Any:
    """What the body of a flow does."""
    with steps.opened("stocks", config, run) as this:
        if error is not None:
            raise error
        (this.path / "report.html").touch()
    return steps.outcome(this)


@pytest.mark.parametrize("error", [None, ValueError("the step failed"), KeyboardInterrupt()])
def test_a_flow_releases_whether_prefect_or_the_command_line_called_it(
    error: BaseException | None,
    section: AcceleratorSection,
    sign: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"accelerator": section.model_dump()}
    if error is None:
        flow(settings)  # as Prefect calls it under `serve`
    else:
        with pytest.raises(type(error)):
            flow(settings, error=error)
    assert count(sign) == 1

    monkeypatch.setattr(worker, "warm_up", lambda: None)
    monkeypatch.setattr(embedded, "for_this_process", lambda: None)
    ours = flows.Flows(lambda **given: flow(**given, error=error), lambda **_: {}, {})  # type: ignore[arg-type]
    monkeypatch.setattr(flows, "of", lambda domain: ours)
    command = ["run", "stocks", "--accelerator.release-command", section.release_command]
    assert (cli.run(command) == 0) == (error is None)
    assert count(sign) == 2
    assert (cli.run(["resume", "last"]) == 0) == (error is None)
    # What is done is only shown: there is nothing to release.
    assert count(sign) == (2 if error is None else 3)


_IN_PREFECT = """
from pipelines import prefect_setup
prefect_setup.apply()
from pipelines import release, steps
from prefect import flow
from shared.config import AcceleratorSection
import sys

section = AcceleratorSection(release_command=sys.argv[1])

@flow
def train():
    with steps.opened("stocks", {"accelerator": section.model_dump()}):
        raise ValueError("the step failed")

try:
    if sys.argv[2] == "command":
        with release.at_the_end(section):
            train()
    else:
        train()
except ValueError:
    sys.exit(3)
"""


@pytest.mark.soak
@pytest.mark.parametrize("caller", ["command", "prefect"])
def test_once_in_a_true_prefect_flow(
    caller: str, section: AcceleratorSection, sign: Path, runs: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "CASEBOOK_RUNS": str(runs)}
    program = [sys.executable, "-c", _IN_PREFECT, section.release_command, caller]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 3, done.stderr
    assert count(sign) == 1
