"""What the tests of pipelines share: a run written as steps leave it, whole runs, the command as a person starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pipelines import steps
from shared import files
from shared.config import DomainConfig, build, merge, to_toml
from shared.contract import find
from shared.plan import ExecutionPlan


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What the command sets for Prefect and its children ends with the test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


Whole = Callable[..., dict[str, Any]]


def whole_run(domain: str, config: Mapping[str, Any] | None = None, run: str | None = None) -> dict[str, Any]:
    """All steps in order, as the flows call them, but for small forms; returns what a flow returns."""
    config = merge({"export": {"formats": []}}, config or {})
    with steps.opened(domain, config, run) as this:
        for step in (
            steps.ingest,
            steps.plan,
            steps.train,
            steps.evaluate,
            steps.export,
            steps.judge,
            steps.publish,
            steps.report,
        ):
            step(this)
    return steps.outcome(this)


@pytest.fixture
def whole() -> Whole:
    return whole_run


@pytest.fixture
def casebook(runs: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the command of this environment; what it prints goes to ``casebook.log`` in ``tmp_path``."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, **environment: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "casebook.log").open("ab") as output:
            process = subprocess.Popen(
                [str(Path(sys.executable).with_name("casebook")), *words],
                env={**os.environ, "CASEBOOK_RUNS": str(runs), **environment},
                stdout=output,
                stderr=output,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def tiny_file(tmp_path: Path) -> Callable[[str], Path]:
    """A domain's tiny settings as a TOML file, with the plan decided (two measured ones may differ) and one form."""

    def write(domain: str) -> Path:
        body = find(domain)
        decided = {
            "plan": {"batch_size": 16, "precision": "float32", "xla": "off"},
            "export": {"formats": ["litert-dynamic"]},
        }
        config: DomainConfig = build(body.Config, base=merge(body.tiny(), decided))
        file = tmp_path / f"{domain}.toml"
        file.write_text(to_toml(config))
        return file

    return write


@pytest.fixture
def a_run() -> Callable[..., Path]:
    """Writes a finished run's folder as the steps leave it: ``a_run(folder, synthetic=, verdict=)``."""
    return _write


def _write(folder: Path, *, synthetic: bool = False, verdict: str = "promote") -> Path:
    """A finished run's folder as the steps leave it."""
    manifest = {
        "run": "20261130-120000-abcd",
        "domain": "digits",
        "title": "Digits",
        "state": "done",
        "started": "2026-11-30T12:00:00+00:00",
        "source": "digits",
        "synthetic": synthetic,
        "cost": {"seconds": 125.0, "device_seconds": 61.5, "price_per_hour": 3.0, "money": 0.104},
        "model_label": "digits v3 (champion)",
        "steps": {},
    }
    files.write_json(folder / "manifest.json", manifest)
    card = {
        "title": "1,797 digits",
        "synthetic": synthetic,
        "examples": 1797,
        "facts": {},
        "quarantine": [{"item": "x", "reason": "y"}],
        "warnings": ["small"],
    }
    files.write_json(folder / "card.json", card)
    plan = ExecutionPlan(
        device_name="A CPU, 2 cores", batch_size=64, samples_per_second=5123.4, measured=True
    )
    files.write_json(folder / "plan.json", plan.to_dict())
    rows = [
        {"name": "model", "value": 0.97, "low": 0.95, "high": 0.98, "difference": None},
        {
            "name": "nearest mean",
            "value": 0.9,
            "low": 0.88,
            "high": 0.92,
            "difference": 0.07,
            "difference_low": 0.05,
            "difference_high": 0.09,
        },
    ]
    metrics = {
        "score": {"name": "accuracy", "unit": "", "higher_is_better": True, "chance": 0.1},
        "comparison": {"rows": rows},
        "per_fold": [{}],
        "evaluation": {"flags": ["one class is never predicted"]},
    }
    files.write_json(folder / "metrics.json", metrics)
    files.write_json(folder / "gate.json", {"verdict": verdict, "reasons": ["better than the best baseline"]})
    (folder / "report.html").write_text("<html>")
    return folder
