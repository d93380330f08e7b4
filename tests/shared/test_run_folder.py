"""A run's folder: steps done once, failures told, nothing half-written taken for done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared import lock
from shared.config import DomainConfig
from shared.errors import CasebookError, InputError
from shared.runs.folder import Run, list_runs


def new(toy: Any, **settings: Any) -> Run:
    return Run.create(toy, DomainConfig.model_validate(settings))


def test_a_run_opens_again_as_it_was(toy: Any, runs: Path) -> None:
    run = new(toy, train={"epochs": 3, "members": 2})
    assert run.path.parent == runs / "toy"
    for name in (run.id, str(run.path), "last"):
        again = Run.open(name)
        assert again.config == run.config
        assert again.manifest == run.manifest
    assert again.manifest["seeds"] == [0, 1]


def test_a_step_is_done_once(toy: Any) -> None:
    run = new(toy)
    calls: list[int] = []

    def work() -> dict[str, Any]:
        calls.append(1)
        return {"n": len(calls), "where": Path("a")}

    assert run.step("ingest", work) == {"n": 1, "where": "a"}
    assert Run.open(run.id).step("ingest", work) == {"n": 1, "where": "a"}
    assert len(calls) == 1


def test_a_failed_step_says_why_and_is_done_again(toy: Any) -> None:
    run = new(toy)

    def fail() -> dict[str, Any]:
        raise CasebookError("Expected a, received b.", "Do c.")

    with pytest.raises(CasebookError):
        run.step("plan", fail)
    kept = Run.open(run.id)
    assert kept.manifest["steps"]["plan"]["state"] == "failed"
    assert kept.manifest["steps"]["plan"]["reason"] == "Expected a, received b."
    assert kept.step("plan", lambda: {"ok": True}) == {"ok": True}


def test_a_result_without_its_mark_is_not_taken(toy: Any) -> None:
    """Killed between writing the result and the mark: the step is done again."""
    run = new(toy)
    (run.path / "steps").mkdir()
    (run.path / "steps" / "plan.json").write_text('{"old": true}')
    assert run.result("plan") is None
    assert run.step("plan", lambda: {"new": True}) == {"new": True}


@pytest.mark.parametrize("content", [b"{", None])
def test_a_result_that_is_damaged_or_gone_is_made_again(
    toy: Any, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    run = new(toy)
    run.step("plan", lambda: {"batch": 1})
    kept = run.path / "steps" / "plan.json"
    kept.unlink() if content is None else kept.write_bytes(content)
    assert Run.open(run.id).step("plan", lambda: {"batch": 2}) == {"batch": 2}
    assert "'plan'" in caplog.text
    assert Run.open(run.id).result("plan") == {"batch": 2}


def test_two_processes_do_not_work_on_one_run(toy: Any) -> None:
    run = new(toy)
    with run.held():
        code = (
            "import sys; from pathlib import Path; from filelock import FileLock, Timeout\n"
            "try:\n    FileLock(sys.argv[1]).acquire(timeout=0)\nexcept Timeout:\n    sys.exit(7)\n"
        )
        done = subprocess.run([sys.executable, "-c", code, str(run.path / ".lock")], check=False)
        assert done.returncode == 7
    with run.held():
        pass


def test_an_unknown_run_is_answered_with_those_there_are(toy: Any) -> None:
    with pytest.raises(InputError, match="no run 'nothing'"):
        Run.open("nothing")
    run = new(toy)
    with pytest.raises(InputError) as caught:
        Run.open(run.id[:-1])
    assert f"Did you mean '{run.id}'" in caught.value.remedy


def test_a_runs_folder_that_cannot_be_written_is_named(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CASEBOOK_RUNS", str(tmp_path / "file" / "runs"))
    with pytest.raises(InputError, match="cannot be written") as caught:
        new(toy)
    assert "CASEBOOK_RUNS" in caught.value.remedy


def test_a_folder_of_locks_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CASEBOOK_LOCKS", str(tmp_path / "file" / "locks"))
    with pytest.raises(InputError, match="cannot be written") as caught, lock.held():
        pass
    assert "CASEBOOK_LOCKS" in caught.value.remedy


def test_a_run_with_settings_that_are_no_more_says_which(toy: Any) -> None:
    run = new(toy)
    settings = run.path / "config.toml"
    settings.write_text(f"gone = 3\n{settings.read_text()}")
    with pytest.raises(InputError, match="Unknown setting 'gone'"):
        Run.open(run.id)


def test_runs_are_listed_newest_first_and_strangers_are_passed_over(toy: Any, runs: Path) -> None:
    first, second = new(toy), new(toy)
    for run, moment in ((first, "2026-01-01T00:00:00"), (second, "2026-01-02T00:00:00")):
        run.note(started=moment)
    (runs / "toy" / "broken").mkdir()
    (runs / "toy" / "broken" / "manifest.json").write_text("{")
    (runs / ".prepared" / "toy" / "x").mkdir(parents=True)
    (runs / ".prepared" / "toy" / "manifest.json").write_text(json.dumps({"run": "no"}))
    assert [manifest["run"] for manifest in list_runs()] == [second.id, first.id]
    assert list_runs("other") == []
