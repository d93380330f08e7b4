"""Runs of the pipeline without Prefect, and of the command line as a person starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pipelines import steps
from shared.config import DomainConfig, build, to_toml
from shared.contract import find

Whole = Callable[..., dict[str, Any]]


def whole_run(domain: str, config: Mapping[str, Any] | None = None, run: str | None = None) -> dict[str, Any]:
    """All steps in order, as the flows call them; returns what a flow returns."""
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
def casebook(runs: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts the command of this environment; returns the process."""

    def start(*words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("casebook")), *words],
            env={**os.environ, "CASEBOOK_RUNS": str(runs), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


@pytest.fixture
def tiny_file(tmp_path: Path) -> Callable[[str], Path]:
    """A domain's tiny settings as a TOML file."""

    def write(domain: str) -> Path:
        body = find(domain)
        config: DomainConfig = build(body.Config, base=body.tiny())
        file = tmp_path / f"{domain}.toml"
        file.write_text(to_toml(config))
        return file

    return write
