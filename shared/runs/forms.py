"""The forms of a published model in one table, and which of them may be published.

A small form (LiteRT, pruned) says nearly what the trained model says. Whether that is near
enough is not for its outputs to tell but for the domain's score: a form is published only
where it scores no worse than the trained model by more than the margin of the configuration.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SAVED_MODEL, KERAS, PRUNED = "saved-model", "keras", "pruned"
LITERT_FILES = {
    "litert-float16": "float16.tflite",
    "litert-dynamic": "dynamic.tflite",
    "litert-int8": "int8.tflite",
}
"""Name of each LiteRT form to its file in a member's folder."""
PLACES = {SAVED_MODEL: "saved_model", KERAS: "model.keras", PRUNED: "pruned.keras", **LITERT_FILES}
"""Name of each form to its file or folder in a member's folder (``member-0``, ``member-1``, ...)."""
FAR = 2.0
"""A conversion whose outputs are off by more than this many of their standard deviations has failed,
whatever it scores: on a small test split a score cannot tell. A pruned model was trained on, and may differ."""
TITLES = {
    SAVED_MODEL: "SavedModel",
    KERAS: ".keras",
    "litert-float16": "LiteRT, float16 weights",
    "litert-dynamic": "LiteRT, dynamic range (int8 weights)",
    "litert-int8": "LiteRT, full int8",
    PRUNED: "pruned .keras, compressed",
}


@dataclass(frozen=True)
class Form:
    """A row of the table. Numbers are of all members together; None where there is none.

    Attributes:
        name: A key of :data:`PLACES`.
        published: Whether it lies in the published model's folder.
        reason: Why it was left out; empty where it was published.
        note: What a person who uses it must know.
        bytes: Size on disk.
        compressed_bytes: The same deflated, as a zip or a download has it.
        one_ms: Median latency of one example, milliseconds.
        batch_ms: Median latency of a batch (the table's ``batch``), milliseconds.
        difference: Largest difference to the trained model's outputs, in units of their spread
            (standard deviation).
        score: The domain's score on the test split.
        score_difference: How much better than the trained model's, whatever the score's
            direction; negative: worse.
    """

    name: str
    published: bool
    reason: str = ""
    note: str = ""
    bytes: int | None = None
    compressed_bytes: int | None = None
    one_ms: float | None = None
    batch_ms: float | None = None
    difference: float | None = None
    score: float | None = None
    score_difference: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Trained:
    """What forms are judged by: the trained model's score on the test examples.

    Attributes:
        score: NaN where undefined.
        name, unit, higher_is_better: Of the domain's score.
        examples: On how many test examples; forms are judged on the same ones.
        test_examples: How many the test split has.
        batch: Examples in the batch that latency is measured on.
        device: What latency was measured on.
    """

    score: float
    name: str
    unit: str
    higher_is_better: bool
    examples: int
    test_examples: int
    batch: int
    device: str

    def better_by(self, score: float) -> float:
        """How much better ``score`` is than the trained model's, whatever its direction."""
        return score - self.score if self.higher_is_better else self.score - score


def judged(name: str, found: Mapping[str, Any], trained: Trained, *, margin: float, note: str = "") -> Form:
    """A small form with its verdict: published where its score is within the margin.

    Anything that is no number fails: outputs with NaN, a score that is undefined, of the form or
    of the trained model.

    Args:
        found: As :meth:`shared.runs.yardstick.Yardstick.measure` gives it.
        margin: How much worse a form may score, in the score's unit.
    """
    score = _number(found["score"])
    difference = _number(found["difference"])
    gain = trained.better_by(score)
    unit = f" {trained.unit}" if trained.unit else ""
    if not math.isfinite(difference):
        reason = "its outputs hold NaN or Inf"
    elif name in LITERT_FILES and difference > FAR:
        reason = (
            f"its outputs are off by {difference:.2g} of their spread, more than {FAR:g}: a failed conversion"
        )
    elif not math.isfinite(trained.score):
        reason = f"{trained.name} of the trained model is undefined on the test split: nothing can be judged"
    elif not math.isfinite(score):
        reason = f"its {trained.name} is undefined"
    elif not gain >= -margin - 1e-9:  # the last digits of a difference are not the form's fault
        reason = (
            f"{trained.name} {score:.4g}{unit} is worse than the trained model's {trained.score:.4g}{unit} by "
            f"{-gain:.2g}, more than the margin of {margin:g}"
        )
    else:
        reason = ""
    return Form(name, not reason, reason, note, **_measured(found), score_difference=gain)


def exact(name: str, found: Mapping[str, Any], trained: Trained, *, tolerance: float) -> Form:
    """A form that must say what the trained model says: published where it does, to the tolerance."""
    difference = _number(found["difference"])
    reason = ""
    if not difference <= tolerance:
        spread = "of its outputs' spread"
        reason = f"it differs from the trained model by {difference:.2g} {spread}, more than {tolerance:g}"
    gain = trained.better_by(_number(found["score"]))
    return Form(name, not reason, reason, **_measured(found), score_difference=gain)


def _measured(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: found[key] for key in ("bytes", "compressed_bytes", "one_ms", "batch_ms", "difference", "score")
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)  # JSON has no NaN


def sizes(places: Iterable[Path]) -> dict[str, int]:
    """``bytes`` on disk and ``compressed_bytes`` (deflated file by file, as zip does) of files or folders."""
    plain = packed = 0
    for place in places:
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if not file.is_file():
                continue
            pack = zlib.compressobj(6)
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    plain += len(block)
                    packed += len(pack.compress(block))
            packed += len(pack.flush())
    return {"bytes": plain, "compressed_bytes": packed}


def table(rows: Sequence[Form], trained: Trained, *, margin: float) -> dict[str, Any]:
    """The whole table as plain data, as the export's result, the manifest and the metrics hold it."""
    return {"margin": margin, "trained": asdict(trained), "rows": [row.to_dict() for row in rows]}


def view(exported: Mapping[str, Any]) -> dict[str, Any] | None:
    """The table for the report, from the result of the step ``export``."""
    found = exported.get("forms")
    if not found:
        return None
    trained = found["trained"]
    return {
        **{key: trained[key] for key in ("name", "unit", "batch", "device", "examples", "test_examples")},
        "trained_score": trained["score"],
        "direction": "higher" if trained["higher_is_better"] else "lower",
        "margin": f"{found['margin']:g}",
        "rows": [_shown(row) for row in found["rows"]],
    }


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    told = "; ".join(text for text in (row["reason"], row["note"]) if text)
    return {
        **row,
        "title": TITLES.get(row["name"], row["name"]),
        "one": _seconds(row["one_ms"]),
        "many": _seconds(row["batch_ms"]),
        "told": told[:1].upper() + told[1:],
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
