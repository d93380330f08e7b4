"""Small forms of real members: converted, judged, published or left out, whatever the converter does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared import files, worker
from shared.config import build
from shared.contract import find
from shared.runs import export, small_forms
from shared.runs.registry import MODEL_CARD

from .conftest import PLAN, Trained

pytestmark = pytest.mark.slow


def published(
    trained: Trained, out: Path, kind: str, *, members: int = 1, **section: Any
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Rows by form's name, and the export's result, as the step ``export`` makes them."""
    prepared, config, folders = trained(kind, members)
    settings = build(find("networks").Config, base={**config, "export": section})
    what = ("networks", prepared, settings.model_dump(), 0, folders)
    exported = worker.call(export.export, *what, str(out / "model"), {"domain": "networks"})
    found = small_forms.add(
        "networks", prepared, settings, 0, folders, out / "model", out / "forms", PLAN, exported
    )
    return {row["name"]: row for row in found["forms"]["rows"]}, found


def tree(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in (".tflite", ".keras")
    }


def litert_says(model: str, form: str, x: np.ndarray) -> np.ndarray:
    from shared.runs.litert import LiteRT

    return LiteRT.load(model, form)(x)


def saved_model_says(model: str, x: np.ndarray) -> np.ndarray:
    from shared.runs.predictor import Predictor

    return Predictor.load(Path(model))(x)


@pytest.mark.soak
def test_recurrent_members_are_published_in_every_form(trained: Trained, tmp_path: Path) -> None:
    rows, found = published(trained, tmp_path, "lstm", members=2, margin=1.0)
    assert list(rows) == ["saved-model", "keras", "litert-float16", "litert-dynamic", "litert-int8"]
    assert all(row["published"] for row in rows.values()), rows
    assert tree(tmp_path / "model") == {
        f"member-{number}/{name}"
        for number in (0, 1)
        for name in ("model.keras", "float16.tflite", "dynamic.tflite", "int8.tflite")
    }
    for row in rows.values():
        assert row["one_ms"] > 0
        assert row["batch_ms"] > 0
        assert 0 < row["compressed_bytes"] < row["bytes"]
    assert rows["keras"]["difference"] < 1e-4
    assert rows["litert-float16"]["difference"] < 0.02
    assert rows["litert-float16"]["bytes"] < 0.7 * rows["keras"]["bytes"]
    assert "one example at a time" in rows["litert-float16"]["note"]
    assert "unrolled" in rows["litert-int8"]["note"]
    total = sum(file.stat().st_size for file in (tmp_path / "model").rglob("*") if file.is_file())
    assert found["size_bytes"] == total
    card = files.read_json(tmp_path / "model" / MODEL_CARD)
    assert [row["name"] for row in card["forms"]] == list(rows)
    assert not (tmp_path / "forms").exists()
    # The members' mean, of a batch, as the SavedModel says it.
    x = np.random.default_rng(3).normal(size=(5, 8, 8)).astype(np.float32)
    mean = worker.call(saved_model_says, str(tmp_path / "model"), x)
    said = worker.call(litert_says, str(tmp_path / "model"), "litert-float16", x)
    assert said.shape == (5, 1)
    np.testing.assert_allclose(said, mean, atol=2e-3)
    page = Path(__file__).parents[3] / "docs" / "export.md"
    printed = worker.call(follow, str(page), str(tmp_path / "model"), x)
    assert len(printed) == 5
    assert all(f"{float(mean[0, 0]):.2f}"[:3] in text for text in printed[0::4])
    assert "brighter" in printed[1]
    assert "brighter" in printed[3]


def follow(page: str, model: str, x: np.ndarray) -> list[str]:
    """Runs every example of the page as it stands, on another model; what each printed."""
    import contextlib
    import io
    import re

    printed = []
    for code in re.findall(r"```python\n(.*?)```", Path(page).read_text(), re.DOTALL):
        code = code.replace("window=", "picture=").replace("domains.stocks.model", "casebook_networks")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, {"model": model, "x": x})
        printed.append(out.getvalue())
    return printed


def test_a_crash_of_the_converter_is_a_row(trained: Trained, tmp_path: Path) -> None:
    """A loop in int8 takes the converter's process with it (tensorflow#101050)."""
    rows, found = published(trained, tmp_path, "loop", margin=1.0)
    assert rows["litert-float16"]["published"]
    assert rows["litert-dynamic"]["published"]
    assert not rows["litert-int8"]["published"]
    assert "SIGSEGV" in rows["litert-int8"]["reason"]
    assert rows["litert-int8"]["bytes"] is None
    assert not (tmp_path / "model" / "member-0" / "int8.tflite").exists()
    assert found["max_difference"] < 1e-4


def test_a_form_that_says_nan_is_left_out_whatever_the_margin(trained: Trained, tmp_path: Path) -> None:
    rows, _ = published(trained, tmp_path, "faint", formats=["litert-float16"], margin=1.0)
    assert not rows["litert-float16"]["published"]
    assert rows["litert-float16"]["reason"] == "its outputs hold NaN or Inf"
    assert math.isnan(rows["litert-float16"]["difference"])
    assert rows["litert-float16"]["bytes"] > 0
    assert tree(tmp_path / "model") == {"member-0/model.keras"}


def test_code_in_a_keras_file_is_left_out_and_the_others_stay(trained: Trained, tmp_path: Path) -> None:
    """A Lambda layer is Python code in the file, which Keras's safe mode refuses."""
    rows, _ = published(trained, tmp_path, "lambda", formats=["litert-dynamic"], margin=1.0)
    assert rows["saved-model"]["published"]
    assert rows["litert-dynamic"]["published"]
    assert not rows["keras"]["published"]
    assert "Lambda" in rows["keras"]["reason"]
    assert tree(tmp_path / "model") == {"member-0/dynamic.tflite"}


def test_pruned_members_are_smaller_when_compressed_and_load(trained: Trained, tmp_path: Path) -> None:
    rows, _ = published(trained, tmp_path, "dense", formats=[], margin=1.0, prune=0.8, prune_epochs=2)
    assert list(rows) == ["saved-model", "keras", "pruned"]
    pruned, whole = rows["pruned"], rows["keras"]
    assert pruned["published"], pruned
    assert pruned["compressed_bytes"] < 0.7 * whole["compressed_bytes"]
    assert pruned["bytes"] < 1.01 * pruned["compressed_bytes"] + 1000, "it is stored compressed"
    # 80% of the one large kernel, 64 x 24; biases, the head and normalisation stay.
    assert "weights are zero" in pruned["note"]
    zero = int(pruned["note"].split(" of ")[0].replace(",", ""))
    assert zero >= round(0.8 * 64 * 24)
    assert worker.call(zeros_of, str(tmp_path / "model" / "member-0" / "pruned.keras")) == round(
        0.8 * 64 * 24
    )


def zeros_of(path: str) -> int:
    """Zeros in the first kernel of a ``.keras`` file, which loads in safe mode."""
    import keras

    model = keras.models.load_model(path, safe_mode=True, compile=False)
    return int((model.get_layer("dense").kernel.numpy() == 0).sum())


def test_what_cannot_be_pruned_is_a_row(trained: Trained, tmp_path: Path) -> None:
    rows, _ = published(trained, tmp_path, "named", formats=[], prune=0.5)
    assert not rows["pruned"]["published"]
    assert "no trainable kernel of at least 256 weights" in rows["pruned"]["reason"]
    assert tree(tmp_path / "model") == {"member-0/model.keras"}
