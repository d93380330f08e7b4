"""Progress on a terminal and in a log, errors on one screen, the summary of a run."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipelines import summary, terminal
from shared import files, progress
from shared.errors import InputError
from shared.plan import ExecutionPlan, Trial

MakeRun = Callable[..., Path]


def paper(*, is_terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(), width=100, force_terminal=is_terminal, highlight=False, color_system=None
    )


def written(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_without_a_terminal_progress_is_a_line_at_the_start_and_the_end() -> None:
    console = paper()
    with terminal.showing(console):
        for epoch in range(51):
            progress.emit("fold 1/4 · epochs", epoch, 50, loss=0.5, AUROC=0.8125)
        progress.emit("fold 1/4 · epochs", 50, 50)
    assert written(console).splitlines() == [
        "fold 1/4 · epochs 0/50 · loss 0.500 · AUROC 0.812",
        "fold 1/4 · epochs 50/50 · loss 0.500 · AUROC 0.812",
    ]


def test_long_work_is_heard_of_now_and_then() -> None:
    console = paper()
    lines = terminal.Lines(console, every=0.0)
    lines(progress.Progress("reading", 1, None, {}, "a.nc"))
    lines(progress.Progress("reading", 2, None, {}, "b.nc"))
    assert written(console).splitlines() == ["reading 1 · a.nc", "reading 2 · b.nc"]


def test_on_a_terminal_a_finished_bar_becomes_a_line_and_old_bars_leave() -> None:
    console = paper(is_terminal=True)
    with terminal.Bars(console) as bars:
        for number in range(9):
            bars(progress.Progress(f"fold {number}", 3, 10, {"loss": 0.25}))
        assert len(bars._tasks) == terminal.SHOWN_BARS
        bars(progress.Progress("fold 8", 10, 10, {"loss": 0.125}))
        assert "fold 8" not in bars._tasks
    assert "fold 8 10/10 · loss 0.125 ·" in written(console)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_warnings_of_ours_are_shown_once_beside_progress_and_no_others(is_terminal: bool) -> None:
    console = paper(is_terminal=is_terminal)
    ours = logging.getLogger("casebook.training")
    with terminal.showing(console):
        for _ in range(2):
            ours.warning("The checkpoint %s cannot be read.", "[a].npz")
        ours.info("epoch 1")
        logging.getLogger("somebody.else").warning("noise")
    ours.warning("after")
    assert written(console).count("Warning: The checkpoint [a].npz cannot be read.") == 1
    assert written(console).count("Warning") == 1
    assert "noise" not in written(console)
    assert not [one for one in logging.getLogger("casebook").handlers if isinstance(one, terminal.Warnings)]


def test_markup_in_data_is_no_markup() -> None:
    console = paper(is_terminal=True)
    with terminal.showing(console):
        progress.emit("[bold]x", 1, 1, note="[/red]")
    terminal.show_error(InputError("[red]path[/red]", "[b]"), console=console)
    console.print(terminal.table(("a",), [("[/bad]",)]))
    assert "[bold]x 1/1 · [/red]" in written(console)
    assert "Error: [red]path[/red]" in written(console)


def test_an_error_shows_its_remedy_and_a_traceback_only_for_debug() -> None:
    try:
        raise InputError("Expected a folder, received a.csv.", "Give a folder.")
    except InputError as error:
        quiet, loud = paper(), paper()
        terminal.show_error(error, console=quiet)
        terminal.show_error(error, console=loud, debug=True)
    assert written(quiet).splitlines() == [
        "Error: Expected a folder, received a.csv.",
        "Remedy: Give a folder.",
    ]
    assert "Traceback" in written(loud)


def test_an_unexpected_error_says_so_and_stays_on_one_screen() -> None:
    console = paper()
    terminal.show_error(ValueError("\n".join(["bad"] * 500)), console=console)
    assert "Unexpected error: ValueError: bad" in written(console)
    assert "--debug" in written(console)
    assert len(written(console).splitlines()) < 15


def shown(folder: Path) -> str:
    console = paper()
    summary.show(summary.of_run(folder), console)
    return written(console)


def test_the_summary_says_what_where_against_what_verdict_cost_report_and_next(
    a_run: MakeRun, tmp_path: Path
) -> None:
    text = shown(a_run(tmp_path))
    for part in (
        "1,797 digits (1,797 examples, 1 set aside)",
        "A CPU, 2 cores, batch 64, float32, 5,123 samples/s measured",
        "0.970 [0.950, 0.980]",
        "+0.070 [0.050, 0.090]",
        "PROMOTE",
        "better than the best baseline",
        "one class is never predicted",
        "62 device-seconds, 2 min 05 s in all, 0.104 at 3 an hour",
        str(tmp_path / "report.html"),
        "casebook predict digits --source YOUR_DATA",
    ):
        assert part in text
    assert "SYNTHETIC" not in text


def test_a_stopped_run_says_at_which_step(tmp_path: Path) -> None:
    done = {step: {"state": "done"} for step in ("ingest", "plan", "train", "evaluate")}
    assert summary.state_of(tmp_path, {"state": "failed", "steps": done}) == "failed at export"
    assert summary.state_of(tmp_path, {"state": "running", "steps": {}}) == "killed at ingest"


def test_synthetic_data_is_said_loudly(a_run: MakeRun, tmp_path: Path) -> None:
    assert "SYNTHETIC DATA" in shown(a_run(tmp_path, synthetic=True))


@pytest.mark.parametrize("missing", ["card.json", "plan.json", "metrics.json", "gate.json", "report.html"])
def test_a_run_that_is_not_done_yet_is_shown_as_far_as_it_came(
    a_run: MakeRun, tmp_path: Path, missing: str
) -> None:
    a_run(tmp_path)
    (tmp_path / missing).unlink()
    manifest: dict[str, Any] = files.read_json(tmp_path / "manifest.json")
    files.write_json(
        tmp_path / "manifest.json", {**manifest, "state": "failed", "error": "no room on the disk"}
    )
    text = shown(tmp_path)
    assert "no room on the disk" in text
    assert "casebook resume 20261130-120000-abcd" in text


def test_a_prediction_shows_headline_output_and_what_was_set_aside() -> None:
    result = {
        "headline": "3 films are urgent.",
        "scored": 12,
        "output": "out/worklist.csv",
        "facts": {"most_urgent": 0.93},
        "quarantine": [{"item": f"{n}.dcm", "reason": "truncated"} for n in range(9)],
        "model": "xray v1 (champion)",
        "synthetic_model": True,
    }
    console = paper()
    summary.show_prediction(result, console)
    text = written(console)
    for part in (
        "SYNTHETIC",
        "3 films are urgent.",
        "out/worklist.csv",
        "most urgent",
        "set aside: 9",
        "and 3 more",
    ):
        assert part in text


def test_the_plan_table_shows_trials_and_reasons() -> None:
    plan = ExecutionPlan(
        device_name="A CPU",
        trials=(Trial(32, "float32", False, "fits", 100.0), Trial(64, "float32", False, "out of memory")),
        reasons=("Batch 32: the only one that fits.",),
    )
    console = paper()
    summary.show_plan(plan, console)
    text = written(console)
    assert "out of memory" in text
    assert "Batch 32: the only one that fits." in text
