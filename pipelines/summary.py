"""The end of a run on one screen, from the files of its folder alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pipelines.terminal import table
from shared.files import read_json
from shared.plan import ExecutionPlan
from shared.runs.folder import STEPS, is_held
from shared.words import duration, money, number

SHOWN_REASONS = 6


def read(folder: Path, name: str) -> Any | None:
    """A JSON file of a run's folder, or None where that step did not get so far."""
    path = folder / name
    return read_json(path) if path.is_file() else None


def state_of(folder: Path, manifest: Mapping[str, Any]) -> str:
    """The run's state, and the step at which an unfinished one stands.

    A killed run cannot say so itself: its manifest says ``running``, but nobody holds its lock.
    """
    state = str(manifest["state"])
    if state == "done":
        return state
    if state == "running" and not is_held(folder):
        state = "killed"
    steps = manifest.get("steps", {})
    at = next((step for step in STEPS if steps.get(step, {}).get("state") != "done"), None)
    return f"{state} at {at}" if at else state


def of_run(folder: Path) -> dict[str, Any]:
    """What there is to say of a run; parts that it has not come to are None or empty."""
    manifest = read_json(folder / "manifest.json")
    card = read(folder, "card.json") or {}
    metrics = read(folder, "metrics.json") or {}
    gate = read(folder, "gate.json") or {}
    plan = read(folder, "plan.json") or {}
    evaluation = metrics.get("evaluation") or {}
    comparison = metrics.get("comparison") or {}
    report = folder / "report.html"
    return {
        "run": manifest["run"],
        "domain": manifest["domain"],
        "title": manifest.get("title", ""),
        "state": state_of(folder, manifest),
        "error": None if manifest["state"] == "done" else manifest.get("error"),
        "synthetic": bool(card.get("synthetic", manifest.get("synthetic"))),
        "data": {
            "title": card.get("title", manifest.get("source", "")),
            "examples": card.get("examples"),
            "set_aside": len(card.get("quarantine", ())),
            "warnings": list(card.get("warnings", ())),
            "facts": dict(card.get("facts", {})),
        },
        "device": {
            "name": plan.get("device_name", ""),
            "kind": plan.get("device", ""),
            "replicas": plan.get("replicas", 1),
            "batch_size": plan.get("batch_size"),
            "precision": plan.get("precision"),
            "xla": plan.get("xla"),
            "samples_per_second": plan.get("samples_per_second"),
            "measured": plan.get("measured"),
        },
        "score": metrics.get("score"),
        "comparison": comparison.get("rows", []),
        "confidence": comparison.get("confidence", 0.95),
        "folds": len(metrics.get("per_fold", ())),
        "flags": list(evaluation.get("flags", ())),
        "verdict": gate.get("verdict"),
        "reasons": list(gate.get("reasons", ())),
        "checks": list(gate.get("checks", ())),
        "cost": manifest.get("cost") or {},
        "model": manifest.get("model_label"),
        "path": str(folder),
        "report": str(report) if report.is_file() else None,
    }


def show(summary: Mapping[str, Any], console: Console) -> None:
    """The summary: data, device, model against baselines, verdict, cost, report, what next."""
    console.print()
    if summary["synthetic"]:
        _loud(console, "SYNTHETIC DATA: made up by the program. These numbers say nothing about the world.")
    console.print(Text(f"{summary['domain']} · run {summary['run']} · {summary['state']}", style="bold"))
    if summary["error"]:
        console.print(Text(str(summary["error"]), style="red"))
    _facts(console, [("trained on", _data(summary)), ("ran on", _device(summary["device"]))])
    for warning in summary["data"]["warnings"]:
        console.print(Text(f"  note: {warning}", style="yellow"))
    _comparison(console, summary)
    for flag in summary["flags"]:
        console.print(Text(f"  flag: {flag}", style="yellow"))
    _verdict(console, summary)
    _facts(
        console,
        [
            ("cost", _cost(summary["cost"])),
            ("report", summary["report"] or f"none yet; `casebook report {summary['run']}` writes it"),
            ("next", _next(summary)),
        ],
    )


def show_prediction(result: Mapping[str, Any], console: Console) -> None:
    """What ``predict`` did: the sentence that matters most, the numbers, what was set aside."""
    console.print()
    if result.get("synthetic_model"):
        _loud(console, "THE MODEL WAS TRAINED ON SYNTHETIC DATA: do not act on these numbers.")
    console.print(Text(str(result["headline"]), style="bold"))
    rows = [("model", str(result.get("model", ""))), ("scored", str(result["scored"]))]
    rows += [
        (str(key).replace("_", " "), number(value)) for key, value in (result.get("facts") or {}).items()
    ]
    _facts(console, [*rows, ("output", str(result["output"]))])
    set_aside = result.get("quarantine") or []
    if set_aside:
        console.print(Text(f"  set aside: {len(set_aside)}", style="yellow"))
        for item in set_aside[:SHOWN_REASONS]:
            console.print(Text(f"    {item['item']}: {item['reason']}"))
        if len(set_aside) > SHOWN_REASONS:
            console.print(f"    and {len(set_aside) - SHOWN_REASONS} more, in summary.json beside the output")


def show_plan(plan: ExecutionPlan, console: Console) -> None:
    """What was tried, what was chosen, and why."""
    from shared.plan import table as trials

    columns, *rows = trials(plan)
    console.print()
    console.print(table(columns, rows, title=f"Tried on {plan.device_name or plan.device}"))
    console.print()
    xla = "with" if plan.xla else "without"
    chosen = f"batch {plan.batch_size}, {plan.precision}, {xla} XLA, learning rate x {plan.learning_rate_factor:.3g}"
    console.print(Text(f"Chosen: {chosen}", style="bold"))
    for reason in plan.reasons:
        console.print(Text(f"  {reason}"))


def _loud(console: Console, text: str) -> None:
    console.print(Text(f" {text} ", style="bold black on yellow"))


def _facts(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    width = max(10, *(len(name) for name, _ in rows))
    for name, value in rows:
        if value:
            console.print(Text.assemble((f"  {name:<{width}} ", "dim"), value))


def _data(summary: Mapping[str, Any]) -> str:
    data = summary["data"]
    if data["examples"] is None:
        return str(data["title"])
    folds = f", {summary['folds']} folds" if summary["folds"] > 1 else ""
    set_aside = f", {data['set_aside']:,} set aside" if data["set_aside"] else ""
    return f"{data['title']} ({data['examples']:,} examples{set_aside}{folds})"


def _device(device: Mapping[str, Any]) -> str:
    if not device["kind"]:
        return ""
    parts = [device["name"] or device["kind"]]
    if device["replicas"] > 1:
        parts.append(f"{device['replicas']} replicas")
    parts.append(f"batch {device['batch_size']}")
    parts.append(str(device["precision"]) + (" with XLA" if device["xla"] else ""))
    if device["samples_per_second"]:
        parts.append(f"{number(float(device['samples_per_second']))} samples/s measured")
    if not device["measured"]:
        parts.append("not measured")
    return ", ".join(parts)


def _comparison(console: Console, summary: Mapping[str, Any]) -> None:
    score, rows = summary["score"], summary["comparison"]
    if not score or not rows:
        return
    unit = f" ({score['unit']})" if score.get("unit") else ""
    better = "higher is better" if score["higher_is_better"] else "lower is better"
    sized = [abs(row["value"]) for row in rows if row["value"] is not None]
    decimals = 3 if not sized or max(sized) >= 0.1 else 5  # one for all, so that they compare at a glance
    shown = []
    for row in rows:
        difference = _interval(row, ("difference", "difference_low", "difference_high"), decimals, sign="+")
        shown.append((row["name"], _interval(row, ("value", "low", "high"), decimals), difference))
    console.print()
    heading = f"On test examples that no model has seen ({better}; {summary['confidence']:.0%} intervals)"
    console.print(Text(heading, style="bold"))
    console.print(table(("", f"{score['name']}{unit}", "model better by"), shown))
    console.print()


def _interval(row: Mapping[str, Any], keys: tuple[str, str, str], decimals: int, sign: str = "") -> str:
    """``0.970 [0.950, 0.980]``; without the brackets where there is no interval."""
    value, low, high = (row.get(key) for key in keys)
    if value is None:
        return "" if sign else "n/a"
    text = f"{value:{sign}.{decimals}f}"
    return text if low is None or high is None else f"{text} [{low:.{decimals}f}, {high:.{decimals}f}]"


def _verdict(console: Console, summary: Mapping[str, Any]) -> None:
    verdict = summary["verdict"]
    if not verdict:
        return
    style = "bold green" if verdict == "promote" else "bold yellow"
    console.print(Text.assemble(("  gate       ", "dim"), (verdict.upper(), style)))
    for reason in summary["reasons"][:SHOWN_REASONS]:
        console.print(Text(f"             {reason}"))
    if summary["model"]:
        _facts(console, [("model", str(summary["model"]))])


def _cost(cost: Mapping[str, Any]) -> str:
    if not cost:
        return ""
    parts = [f"{cost.get('device_seconds', 0):,.0f} device-seconds"]
    if cost.get("seconds"):
        parts.append(f"{duration(float(cost['seconds']))} in all")
    price = money(cost)
    return ", ".join([*parts, price] if price else parts)


def _next(summary: Mapping[str, Any]) -> str:
    if summary["state"] != "done":
        return f"casebook resume {summary['run']}"
    return f"casebook predict {summary['domain']} --source YOUR_DATA"
