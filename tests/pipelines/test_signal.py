"""Each domain finds a planted signal and is promoted; without one, the gate holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared import files
from shared.config import build, merge
from shared.contract import find

pytestmark = pytest.mark.slow

DOMAINS = ("stocks", "xray", "climate")


def made(domain: str, place: Path, strength: float) -> dict[str, Any]:
    """Settings for a run on a source of one's own with that much signal in it."""
    body = find(domain)
    settings = merge(body.tiny(), SIGNAL.get(domain, {}))
    body.synthesize(place, build(body.Config, base=settings), seed=5, strength=strength)
    return merge(settings, {"source": str(place)})


SIGNAL: dict[str, dict[str, Any]] = {
    "stocks": {
        "synthetic": {"tickers": 8, "sessions": 2000},
        "window": {"sessions": 40},
        "folds": {"count": 1, "test_sessions": 450, "validation_sessions": 150},
        "model": {"units": 24},
        "train": {"epochs": 6},
    },
    "xray": {
        "film": {"size": 96},
        "synthetic": {"films": 300, "size": 96},
        "model": {
            "backbone": "lite0",
            "weights": "imagenet",
            "head_epochs": 30,
            "tune_epochs": 1,
            "unfreeze": 1,
        },
        "plan": {"batch_size": 16, "precision": "float32", "xla": "off"},
    },
}
"""What a domain needs beyond its tiny settings to recover the signal."""


@pytest.mark.parametrize("domain", DOMAINS)
def test_with_signal_the_model_is_promoted(domain: str, whole: Callable[..., Any], tmp_path: Path) -> None:
    done = whole(domain, made(domain, tmp_path / "raw", 1.0))
    assert done["verdict"] == "promote", done["reasons"]
    manifest = files.read_json(Path(done["path"]) / "manifest.json")
    assert manifest["state"] == "done"
    assert manifest["synthetic"] is True
    assert "SYNTHETIC" in Path(done["report"]).read_text().upper()


@pytest.mark.parametrize("domain", DOMAINS)
def test_without_signal_the_gate_holds(domain: str, whole: Callable[..., Any], tmp_path: Path) -> None:
    done = whole(domain, made(domain, tmp_path / "raw", 0.0))
    assert done["verdict"] == "hold"
    assert done["reasons"]
