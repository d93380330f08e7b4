"""A domain of one's own: the README's walk-through, installed and run as its reader would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.testing import Conformance, Made

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "tests/plugins/digits/casebook_digits/__init__.py"

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("installed")
class TestDigits(Conformance):
    """``installed`` sets ``domain``."""

    def line(self, made: Made) -> Mapping[str, Any]:
        with np.load(made.prepared / "prepared.npz") as prepared:
            return {"image": prepared["images"][0].tolist()}


def test_the_readme_shows_the_very_package() -> None:
    readme = (ROOT / "docs" / "own-domain.md").read_text()
    assert MODULE.read_text().strip() in readme
    assert (ROOT / "tests/plugins/digits/pyproject.toml").read_text().strip() in readme


def casebook(
    site: Path, runs: Path, *words: str, lines: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "CASEBOOK_RUNS": str(runs)}
    command = [str(Path(sys.executable).with_name("casebook")), *words]
    return subprocess.run(
        command, env=environment, input=lines, capture_output=True, text=True, check=False, timeout=300
    )


def test_it_runs_predicts_and_is_known_to_the_registry(site: Path, tmp_path: Path) -> None:
    """Command line, flow, plan, gate, registry, report and predict, without a line of ours about it."""
    runs = tmp_path / "runs"
    assert "digits" in casebook(site, runs, "run", "--help").stdout
    done = casebook(site, runs, "run", "digits", "--train.epochs", "8", "--plan.batch-size", "32")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = [path.parent for path in runs.glob("digits/*/manifest.json")]
    gate = json.loads((folder / "gate.json").read_text())
    assert gate["verdict"] in ("promote", "hold")
    assert "logistic regression" in done.stdout
    assert (folder / "report.html").stat().st_size > 10_000
    history = casebook(site, runs, "model", "history", "digits")
    assert "v1" in history.stdout
    said = casebook(site, runs, "predict", "digits", "--source", "digits", "--out", str(tmp_path / "out"))
    assert said.returncode == 0, said.stdout + said.stderr
    lines = (tmp_path / "out" / "digits.csv").read_text().split()
    assert len(lines) == 1798
    image = json.dumps({"id": "a", "image": [[0.0] * 8] * 8})
    said = casebook(site, runs, "predict", "digits", "--stdin", lines=f"{image}\n{{}}\n")
    assert said.returncode == 0, said.stderr
    good, bad = map(json.loads, said.stdout.splitlines())
    assert good["id"] == "a"
    assert good["digit"] in range(10)
    assert good["synthetic_model"] is False
    assert "float32 [8, 8]" in bad["error"]
    again = casebook(site, runs, "resume", folder.name)
    assert again.returncode == 0, again.stdout + again.stderr
