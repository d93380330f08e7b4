"""Single steps of a run, with what lies around them replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pipelines import prediction, preparation, steps
from shared import files
from shared.contract import Published, find
from shared.errors import InputError
from shared.runs import registry
from shared.runs.folder import Run


def test_a_model_whose_score_is_undefined_is_published_as_such(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test set of one class has no AUROC: the gate holds the model, and the run still ends."""
    body = find("stocks")
    this = Run.create(body, body.Config())
    rows = [{"name": name, "value": None} for name in ("model", "majority")]
    metrics = {"score": {"name": "AUROC"}, "comparison": {"rows": rows}, "evaluation": {"metrics": []}}
    files.write_json(this.path / "metrics.json", metrics)
    (this.path / "history.jsonl").write_text("")
    this.step("gate", lambda: {"verdict": "hold"})
    told: dict[str, Any] = {}
    monkeypatch.setattr(registry, "track", lambda *_, **given: (told.update(given), "tracked")[1])
    version = registry.Version("stocks", 1, this.id, this.path, False, 0.0, "", False)
    monkeypatch.setattr(registry, "register", lambda *_, **given: (told.update(given), version)[1])
    assert steps.publish(this)["label"] == "stocks v1 (held)"
    assert (told["score"], told["metrics"]) == ("AUROC undefined", {})


def test_an_output_folder_that_cannot_be_written_is_told_before_anything_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Published(tmp_path, {}, find("stocks").Config().model_dump(), "stocks v1", False)
    monkeypatch.setattr(prediction, "chosen_model", lambda domain: model)
    monkeypatch.setattr(prediction.worker, "call", lambda *_: pytest.fail("something was scored"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"output folder .* cannot be written") as caught:
        prediction.predict("stocks", "bokeh", out=str(tmp_path / "file" / "out"))
    assert "--out" in caught.value.remedy


def test_what_a_killed_preparation_left_is_swept_after_a_day_and_not_before(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = find("stocks")
    kept = runs / ".prepared" / "stocks"
    for name in (".dead", ".at-work", "done"):
        (kept / name).mkdir(parents=True)
        (kept / name / "half.npz").touch()
    for old in (kept / ".dead" / "half.npz", kept / ".dead", kept / ".at-work", kept / "done"):
        os.utime(old, (1e9, 1e9))
    monkeypatch.setattr(preparation.worker, "call", lambda *_: None)
    final = preparation.prepared(body, body.Config())
    assert sorted(path.name for path in kept.iterdir()) == sorted([".at-work", "done", final.name])
