"""Every test has its own runs folder; no test touches the person's Prefect or MLflow."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

# Before anything imports Prefect or MLflow: both read these once.
_HOME = tempfile.TemporaryDirectory(prefix="casebook-tests-")
os.environ["PREFECT_HOME"] = str(Path(_HOME.name) / "prefect")
os.environ["MPLBACKEND"] = "Agg"
# The machine's lock on its accelerator would let tests wait for somebody's run.
os.environ["CASEBOOK_LOCKS"] = str(Path(_HOME.name) / "locks")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "CASEBOOK_PRICE_PER_HOUR"):
    os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty runs folder."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("CASEBOOK_RUNS", str(folder))
    return folder
