"""The table of forms and the rule of the margin, by numbers worked out by hand."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from shared import files
from shared.config import DomainConfig, build
from shared.errors import InputError
from shared.runs import forms, report
from shared.runs.forms import Form, Trained

NAN = float("nan")


def trained(score: float = 0.8, *, higher: bool = True, unit: str = "") -> Trained:
    name = "AUROC" if higher else "RMSE"
    return Trained(
        score, name, unit, higher, examples=100, test_examples=400, batch=32, device="a CPU, 2 cores"
    )


def found(score: float | None, difference: float | None = 0.1) -> dict[str, Any]:
    return {
        "bytes": 2048,
        "compressed_bytes": 1024,
        "one_ms": 0.25,
        "batch_ms": 4.0,
        "difference": difference,
        "score": score,
    }


@pytest.mark.parametrize(
    ("score", "higher", "published", "better_by"),
    [
        (0.80, True, True, 0.0),
        (0.95, True, True, 0.15),
        (0.79, True, True, -0.01),  # worse by the margin exactly, though 0.8 - 0.79 > 0.01 in binary
        (0.789, True, False, -0.011),
        (0.81, False, True, -0.01),
        (0.811, False, False, -0.011),
        (0.5, False, True, 0.3),
    ],
)
def test_the_margin_is_kept_in_the_scores_own_direction(
    score: float, higher: bool, published: bool, better_by: float
) -> None:
    row = forms.judged("litert-int8", found(score), trained(higher=higher), margin=0.01)
    assert row.published is published
    assert row.score_difference == pytest.approx(better_by, abs=1e-12)
    assert bool(row.reason) is not published


def test_a_conversion_far_from_the_model_is_left_out_whatever_it_scores() -> None:
    """A test split of a few examples may score it as well; a pruned model was trained on."""
    row = forms.judged("litert-int8", found(0.85, difference=3.8), trained(), margin=0.01)
    assert not row.published
    assert "off by 3.8 of their spread" in row.reason
    assert forms.judged("litert-int8", found(0.8, difference=1.9), trained(), margin=0.01).published
    assert forms.judged("pruned", found(0.85, difference=3.8), trained(), margin=0.01).published


def test_the_reason_names_both_scores_and_the_margin() -> None:
    row = forms.judged("litert-int8", found(2.5), trained(2.0, higher=False, unit="K"), margin=0.01)
    assert (
        row.reason == "RMSE 2.5 K is worse than the trained model's 2 K by 0.5, more than the margin of 0.01"
    )


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize(
    ("score", "difference", "trained_score", "reason"),
    [
        (NAN, 0.1, 0.8, "is undefined"),
        (None, 0.1, 0.8, "is undefined"),  # as JSON has it
        (0.8, NAN, 0.8, "NaN or Inf"),
        (0.8, float("inf"), 0.8, "NaN or Inf"),
        (0.8, None, 0.8, "NaN or Inf"),
        (0.8, 0.1, NAN, "nothing can be judged"),
    ],
)
def test_what_is_no_number_is_left_out_whatever_the_margin(
    score: float | None, difference: float | None, trained_score: float, reason: str, higher: bool
) -> None:
    row = forms.judged(
        "litert-int8", found(score, difference), trained(trained_score, higher=higher), margin=1e9
    )
    assert not row.published
    assert reason in row.reason


def test_an_exact_form_keeps_the_tolerance() -> None:
    assert forms.exact("keras", found(NAN, 1e-4), trained(NAN), tolerance=1e-4).published
    for difference in (1.1e-4, NAN):
        row = forms.exact("keras", found(0.8, difference), trained(), tolerance=1e-4)
        assert not row.published
        assert "differs from the trained model" in row.reason


def test_sizes_are_of_files_and_of_all_in_folders(tmp_path: Path) -> None:
    zeros = bytes(100_000)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "one").write_bytes(zeros)
    (tmp_path / "deep" / "er" / "two").write_bytes(b"abc")
    assert forms.sizes([tmp_path / "one", tmp_path / "deep"]) == {
        "bytes": 100_003,
        "compressed_bytes": len(zlib.compress(zeros)) + len(zlib.compress(b"abc")),
    }
    assert forms.sizes([]) == {"bytes": 0, "compressed_bytes": 0}


def test_the_report_shows_the_table(tmp_path: Path) -> None:
    rows = [
        forms.exact("saved-model", found(0.8, 0.0), trained(), tolerance=1e-4),
        forms.judged("litert-dynamic", found(0.7), trained(), margin=0.01),
        Form("litert-int8", published=False, reason="its conversion did not finish: <b>SIGSEGV</b>"),
    ]
    table = forms.table(rows, trained(), margin=0.01)
    files.write_json(tmp_path / "steps" / "export.json", {"forms": table})
    page = " ".join(report.write(tmp_path).read_text().split())
    for expected in (
        "SavedModel",
        "LiteRT, full int8",
        "2.0 KiB",
        "1.0 KiB",
        "0.25 ms",
        "4 ms",
        "Batch of 32",
        "−0.100",
        "0.700",
        "AUROC 0.7 is worse than the trained model&#39;s 0.8 by 0.1, more than the margin of 0.01",
        "Its conversion did not finish: &lt;b&gt;SIGSEGV",
        "100 of 400 test examples",
        "a CPU, 2 cores",
    ):
        assert expected in page, expected


def test_a_run_without_a_table_says_so(tmp_path: Path) -> None:
    files.write_json(tmp_path / "steps" / "export.json", {"max_difference": 0.0})
    page = report.write(tmp_path).read_text()
    assert "This run has not come so far." in page[page.index('id="forms"') : page.index('id="plan"')]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("none", ()),
        (["none"], ()),
        ("", ()),
        ([], ()),
        (["litert-int8"], ("litert-int8",)),
        (["litert-int8", "litert-float16"], ("litert-int8", "litert-float16")),
    ],
)
def test_formats_can_be_none(given: Any, expected: tuple[str, ...]) -> None:
    assert build(DomainConfig, flags={"export.formats": given}).export.formats == expected


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InputError, match="litert-float16"):
        build(DomainConfig, flags={"export.formats": ["tflite"]})
