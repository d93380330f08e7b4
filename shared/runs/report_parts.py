"""The parts of the report as plain data for the template: what is shown, and in which words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shared import words
from shared.contract import SPLITS
from shared.plan import Trial
from shared.plan_words import in_micro_batches
from shared.runs import figures

QUARANTINE_SHOWN = 20
"""Rows of the quarantine table; the count of all stands above it."""
ROWS_SHOWN = 200
"""Rows of any other table."""
_PICTURES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".svg": "image/svg+xml"}

View = dict[str, Any]


def rows(found: Sequence[Any] | None, *names: str) -> View | None:
    """A part that is a list; with ``names``, of mappings that have just these keys."""
    if not found:
        return None
    return {"rows": [shaped(one, *names) for one in found] if names else list(found)}


def shaped(row: Mapping[str, Any], *names: str) -> View:
    """``row`` with all of ``names``, None where it has not; the template asks without looking."""
    return {name: row.get(name) for name in names}


def head(folder: Path, manifest: Mapping[str, Any], card: Mapping[str, Any], plan: Mapping[str, Any]) -> View:
    cost = manifest.get("cost") or {}
    device = plan.get("device_name") or (manifest.get("device") or {}).get("name") or ""
    facts = {
        "Trained on": card.get("title") or manifest.get("source"),
        "Examples": card.get("examples"),
        "Ran on": f"{device} ({plan.get('device')})" if device and plan.get("device") else device,
        "Model": manifest.get("model_label"),
        "Took": words.duration(cost["seconds"]) if cost.get("seconds") else None,
        "Cost": words.money(cost),
        "Started": _moment(manifest["started"]) if manifest.get("started") else None,
        "Seeds": ", ".join(map(str, manifest.get("seeds") or ())),
        "Began with": _began_with(manifest.get("started_from")),
        "Memory": _memory(manifest),
    }
    return {
        "title": manifest.get("title") or manifest.get("domain") or "A run",
        "domain": manifest.get("domain") or "",
        "run": manifest.get("run") or folder.name,
        "facts": {name: value for name, value in facts.items() if value not in (None, "")},
    }


def _began_with(start: Mapping[str, Any] | None) -> str | None:
    """What a retraining started from; None where none was asked for."""
    if not start:
        return None
    if not start.get("champion"):
        return "new weights: there was no champion to start from"
    members = start.get("members") or ()
    warm = sum(member.get("from") == "champion" for member in members)
    why = dict.fromkeys(
        f"{member.get('fold')}: {member.get('why')}" for member in members if member.get("from") != "champion"
    )
    told = f"{start['champion']}, {warm} of {len(members)} models"
    return f"{told}; from new weights {' '.join(why)}" if why else told


def _memory(manifest: Mapping[str, Any]) -> str | None:
    cuts = manifest.get("memory")
    if not cuts:
        return None
    return f"ran out with {'; '.join(cuts)}: fell back to {manifest.get('micro_batches')} micro-batches"


def _moment(text: Any) -> str:
    return str(text).replace("T", " ").replace("+00:00", " UTC")


def verdict(manifest: Mapping[str, Any], gate: Mapping[str, Any]) -> View:
    """Kind (a colour), word and sentences of the banner."""
    state = manifest.get("state")
    verdict = gate.get("verdict")
    # The word of a failed run is that it failed, whatever an earlier step had found.
    if state in ("failed", "interrupted"):
        reasons = [manifest.get("error") or _failure(manifest) or "Its last step did not finish."]
        return {"kind": "failed", "word": str(state).capitalize(), "reasons": reasons}
    words_of = {"promote": ("promoted", "Promoted"), "hold": ("held", "Held")}
    kind, word = words_of.get(str(verdict), ("open", "No verdict yet"))
    prefixes = ("held: ", "promoted: ")
    reasons = [str(reason) for reason in gate.get("reasons") or ()]
    for prefix in prefixes:
        reasons = [reason.removeprefix(prefix) for reason in reasons]
    return {"kind": kind, "word": word, "reasons": [reason[:1].upper() + reason[1:] for reason in reasons]}


def _failure(manifest: Mapping[str, Any]) -> str:
    """Why the first failed step failed, as the manifest keeps it."""
    for name, step in (manifest.get("steps") or {}).items():
        if step.get("state") == "failed":
            return f"{name}: {step.get('reason', 'failed')}"
    return ""


def data(card: Mapping[str, Any]) -> View | None:
    if not card:
        return None
    quarantine = list(card.get("quarantine") or ())
    reasons: dict[str, int] = {}
    for item in quarantine:
        reasons[item["reason"]] = reasons.get(item["reason"], 0) + 1
    return {
        "title": card.get("title", ""),
        "examples": card.get("examples"),
        "facts": {
            str(name).replace("_", " "): _text(value) for name, value in (card.get("facts") or {}).items()
        },
        "warnings": list(card.get("warnings") or ()),
        "fingerprint": card.get("fingerprint", ""),
        "quarantine": [shaped(item, "item", "reason") for item in quarantine[:QUARANTINE_SHOWN]],
        "set_aside": len(quarantine),
        "reasons": sorted(reasons.items(), key=lambda pair: -pair[1])[:8]
        if len(reasons) < len(quarantine)
        else [],
    }


def split(folds: Sequence[Mapping[str, Any]] | None) -> View | None:
    """The folds on an axis of time; where there is none, as bars of their sizes."""
    if not folds:
        return None
    rows = []
    for fold in folds:
        sizes = {split: int((fold.get("sizes") or {}).get(split, 0)) for split in SPLITS}
        total = sum(sizes.values()) or 1
        shares = {split: round(100 * size / total, 3) for split, size in sizes.items()}
        about = {str(name): _text(value) for name, value in (fold.get("about") or {}).items()}
        rows.append(
            {
                "name": fold["name"],
                "sizes": sizes,
                "shares": shares,
                "about": about,
                "groups": fold.get("groups"),
            }
        )
    return {"rows": rows, "timeline": figures.timeline(folds), "grouped": any(row["groups"] for row in rows)}


def comparison(metrics: Mapping[str, Any]) -> View | None:
    """Rows with the places of their intervals on two axes: the score, and the model's lead."""
    comparison = metrics.get("comparison")
    if not comparison or not comparison.get("rows"):
        return None
    model, *others = comparison["rows"]
    best_first = -1 if comparison["higher_is_better"] else 1
    unknown = float("inf")
    others.sort(key=lambda row: unknown if row["value"] is None else best_first * row["value"])
    rows = [model, *others]
    chance = comparison.get("chance")
    of_score = figures.Axis.over([chance, *(row[key] for row in rows for key in ("value", "low", "high"))])
    of_lead = figures.Axis.over(
        [0.0, *(row[f"difference{end}"] for row in others for end in ("", "_low", "_high"))]
    )
    drawn = [
        {
            **row,
            "bar": _bar(of_score, row["value"], row["low"], row["high"]),
            "lead": _bar(of_lead, row["difference"], row["difference_low"], row["difference_high"]),
        }
        for row in rows
    ]
    folds = list(metrics.get("per_fold") or ())
    return {
        **{key: value for key, value in comparison.items() if key != "rows"},
        "rows": drawn,
        "ticks": of_score.ticks,
        "lead_ticks": of_lead.ticks,
        "zero": of_lead(0.0),
        "chance_at": None if chance is None else of_score(chance),
        "folds": {"columns": list(folds[0]), "rows": [list(fold.values()) for fold in folds]}
        if folds
        else None,
    }


def _bar(axis: figures.Axis, value: float | None, low: float | None, high: float | None) -> View | None:
    if value is None:
        return None
    left, right = axis(value if low is None else low), axis(value if high is None else high)
    return {"at": axis(value), "left": left, "width": round(max(right - left, 0.0), 3)}


def field(folder: Path, evaluation: Mapping[str, Any]) -> View | None:
    if not evaluation:
        return None
    return {
        "metrics": [
            shaped(metric, "name", "value", "low", "high", "unit", "note")
            for metric in evaluation.get("metrics") or ()
        ],
        "flags": list(evaluation.get("flags") or ()),
        "tables": [
            {
                **shaped(table, "title", "columns", "note"),
                "rows": table["rows"][:ROWS_SHOWN],
                "hidden": max(0, len(table["rows"]) - ROWS_SHOWN),
            }
            for table in evaluation.get("tables") or ()
        ],
        "figures": [_figure(folder, figure) for figure in evaluation.get("figures") or ()],
        "decision": _flat(evaluation.get("decision") or {}),
    }


def _figure(folder: Path, figure: Mapping[str, Any]) -> View:
    path = (folder / str(figure["path"])).resolve()
    caption = figure.get("caption") or ""
    kind = _PICTURES.get(path.suffix.lower())
    # A picture of another folder is none of this run's, and may not be for everyone who gets the page.
    if kind is None or folder.resolve() not in path.parents or not path.is_file():
        return {"uri": None, "name": path.name, "caption": caption}
    return {"uri": figures.data_uri(path.read_bytes(), kind), "name": path.name, "caption": caption}


def plan(plan: Mapping[str, Any] | None) -> View | None:
    if not plan:
        return None
    trials = [
        {
            **shaped(trial, *Trial.__dataclass_fields__),
            "batch_size": in_micro_batches(trial["batch_size"], trial.get("accumulation", 1)),
            "chosen": all(trial[key] == plan[key] for key in ("batch_size", "precision", "xla"))
            and trial.get("accumulation", 1) == plan.get("accumulation", 1),
        }
        for trial in plan.get("trials") or ()
    ]
    return {
        "trials": trials[:ROWS_SHOWN],
        "reasons": list(plan.get("reasons") or ()),
        "measured": bool(plan.get("measured")),
        "seconds": plan.get("search_seconds"),
        "facts": {
            "Device": (plan.get("device_name") or plan["device"])
            + (f" × {plan['replicas']}" if plan.get("replicas", 1) > 1 else ""),
            "Batch size": in_micro_batches(plan["batch_size"], plan.get("accumulation", 1)),
            "Precision": plan["precision"],
            "XLA": "on" if plan["xla"] else "off",
            "Learning rate": f"× {words.number(plan.get('learning_rate_factor'))} ({plan.get('learning_rate_rule')})",
            "Samples a second": words.number(plan.get("samples_per_second")),
        },
    }


def cost(manifest: Mapping[str, Any]) -> View | None:
    cost, steps = manifest.get("cost") or {}, manifest.get("steps") or {}
    longest = max((step.get("seconds") or 0 for step in steps.values()), default=0) or 1
    # The page is written within its own step: how that one ends cannot stand on it.
    rows = [
        {"name": name, "state": step.get("state"), "seconds": step.get("seconds"),
         "width": round(100 * (step.get("seconds") or 0) / longest, 2)}
        for name, step in steps.items() if name != "report"
    ]  # fmt: skip
    if not rows and not cost:
        return None
    return {"rows": rows, "device_seconds": cost.get("device_seconds"), "seconds": cost.get("seconds"),
            "money": words.money(cost)}  # fmt: skip


def machine(manifest: Mapping[str, Any]) -> View | None:
    facts = {**(manifest.get("packages") or {})}
    inputs = _flat({"code": manifest.get("code_version"), **(manifest.get("inputs") or {})})
    return {"packages": facts, "inputs": inputs} if facts or inputs else None


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested plain data as ``dotted.key: text``."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = _text(value)
    return flat


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        shown = ", ".join(_text(item) for item in value[:12])
        return f"{shown}, … ({len(value)} in all)" if len(value) > 12 else shown
    return words.number(value)
