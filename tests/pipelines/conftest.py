"""What the tests of the command line and of the terminal share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shared import files
from shared.plan import ExecutionPlan


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
