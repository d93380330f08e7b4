"""The steps of a run: plain functions over a run's folder, without Prefect.

Each step does its work once: a finished one returns its kept result, a killed one is done
again, training goes on from its last checkpoint. What needs TensorFlow runs in a child
process (shared/worker.py), so this process never imports it.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines import preparation, release, training
from shared import files, progress, worker
from shared.config import build, knobs
from shared.contract import Domain, find
from shared.errors import CasebookError
from shared.evaluation import champion, gate, judgement
from shared.evaluation.comparison import MODEL
from shared.plan import ExecutionPlan, for_domain
from shared.runs import export as exporting
from shared.runs import history, registry, small_forms
from shared.runs.folder import Run, code_version
from shared.settings import plans_root, price_per_hour, runs_root
from shared.training import warm_start, workers

log = logging.getLogger("casebook.steps")


@contextmanager
def opened(domain: str, config: Mapping[str, Any] | None = None, run: str | None = None) -> Iterator[Run]:
    """A new run, or the one named ``run``; its state, cost and machine are settled at the end.

    Args:
        config: Nested differences to the domain's defaults; ignored for an existing run.
        run: Id or folder of a run to go on with.
    """
    body = find(domain)
    this = Run.open(run) if run else Run.create(body, build(body.Config, base=config))
    if this.manifest["code_version"] != code_version(body):
        log.warning("The code has changed since run %s began: its numbers mix both.", this.id)
    started = time.time()
    with release.at_the_end(this.config.accelerator), this.held():
        this.set_state("running")
        try:
            yield this
        except Exception as error:
            this.note(error=error.message if isinstance(error, CasebookError) else repr(error))
            this.set_state("failed")
            raise
        except BaseException:  # Ctrl-C, a scheduler's SIGTERM
            this.set_state("interrupted")
            raise
        else:
            this.set_state("done")
        finally:
            this.note(cost=_cost(this, time.time() - started))
            workers.dismiss(this.config.accelerator, runs_root(), well=this.manifest["state"] == "done")


def ingest(this: Run) -> dict[str, Any]:
    """Raw data to prepared data; kept for the next run with the same data, settings and code."""

    def work() -> dict[str, Any]:
        folder = preparation.prepared(this.domain, this.config)
        card = files.read_json(folder / "card.json")
        files.write_json(this.path / "card.json", card)
        this.note(
            synthetic=card["synthetic"],
            inputs={"source": this.config.source, "prepared": folder.name, "data": card["fingerprint"]},
        )
        set_aside = len(card["quarantine"])
        log.info("%s: %s examples, %s set aside", card["title"], card["examples"], set_aside)
        return {"prepared": str(folder), "examples": card["examples"], "set_aside": set_aside}

    return this.step("ingest", work)


def plan(this: Run) -> dict[str, Any]:
    """How to run on this device: measured, or kept from an earlier measurement."""

    def work() -> dict[str, Any]:
        found = for_domain(this.domain.name, _prepared(this), this.config, plans=plans_root()).to_dict()
        files.write_json(this.path / "plan.json", found)
        this.note(
            device={"kind": found["device"], "name": found["device_name"], "replicas": found["replicas"]}
        )
        return found

    return this.step("plan", work)


def train(this: Run) -> dict[str, Any]:
    """Every member of every fold, each in a child of its own, from its last checkpoint."""

    def work() -> dict[str, Any]:
        folds = [fold.name for fold in this.domain.folds(_prepared(this), this.config)]
        seeds = this.domain.members(this.config)
        start = training.champion(this)
        members: list[list[str]] = []
        reports = []
        for number, name in enumerate(folds):
            members.append([])
            for seed in seeds:
                position = number * len(seeds) + len(members[-1])
                progress.emit("training", position, len(folds) * len(seeds), note=f"fold {name}, seed {seed}")
                folder = this.path / "work" / f"fold-{number}" / f"seed-{seed}"
                reports.append(_train_member(this, number, seed, folder, start=start))
                members[-1].append(str(folder))
        progress.emit("training", len(folds) * len(seeds), len(folds) * len(seeds))
        training.note_starts(this, reports)
        trained = {"folds": folds, "seeds": seeds, "members": members, "reports": reports}
        history.merge(this.path, trained)
        return trained

    return this.step("train", work)


def evaluate(this: Run) -> dict[str, Any]:
    """Model against baselines with intervals, the field's metrics, the guards."""

    def work() -> dict[str, Any]:
        trained = _result(this, "train")
        shuffled = None
        if this.config.gate.guards == "full":
            last = len(trained["folds"]) - 1
            folder = this.path / "work" / "shuffled"
            progress.emit("guard: training on shuffled labels", 0, 1)
            _train_member(this, last, trained["seeds"][0], folder, shuffled_labels=True)
            shuffled = str(folder / "test.npz")
        report = worker.call(
            judgement.judge,
            this.domain.name,
            str(_prepared(this)),
            this.config.model_dump(),
            trained["members"],
            str(this.path),
            shuffled,
        )
        return {"metrics": "metrics.json", "decision": report["evaluation"]["decision"]}

    return this.step("evaluate", work)


def export(this: Run) -> dict[str, Any]:
    """The last fold's members as a published model, checked, with small forms beside it, and explained."""

    def work() -> dict[str, Any]:
        trained = _result(this, "train")
        last = len(trained["folds"]) - 1
        members = trained["members"][-1]
        model = str(this.path / "model")
        card = {
            "domain": this.domain.name,
            "run": this.id,
            "decision": _result(this, "evaluate")["decision"],
            "config": this.config.model_dump(),
            "synthetic": this.manifest["synthetic"],
            "code_version": this.manifest["code_version"],
        }
        what = (this.domain.name, str(_prepared(this)), this.config.model_dump(), last)
        checked = worker.call(exporting.export, *what, members, model, card)
        checked = small_forms.add(
            this.domain.name,
            str(_prepared(this)),
            this.config,
            last,
            members,
            this.path / "model",
            this.path / "work" / "forms",
            _plan(this),
            checked,
        )
        this.note(forms=checked["forms"])
        metrics = files.read_json(this.path / "metrics.json")
        files.write_json(this.path / "metrics.json", {**metrics, "forms": checked["forms"]})
        if type(this.domain).explain is not Domain.explain:
            places = (model, str(this.path / "work"), str(this.path / "figures"))
            _add_figures(this, worker.call(exporting.explain, *what, *places))
        theirs = trained["reports"][-len(trained["seeds"]) :]
        warm_start.keep(this.path / "model", trained["members"][-1], theirs, training.champion(this))
        return checked

    return this.step("export", work)


def judge(this: Run) -> dict[str, Any]:
    """The gate: promote or hold, with reasons. Hold is a result, not an error."""

    def work() -> dict[str, Any]:
        metrics = files.read_json(this.path / "metrics.json")
        match = _against_champion(this)
        verdict = gate.decide(
            metrics["comparison"],
            champion=match,
            guards=metrics["guards"],
            export=_result(this, "export"),
            section=this.config.gate,
            synthetic=bool(this.manifest["synthetic"]),
        )
        found = {**asdict(verdict), "champion": match}
        files.write_json(this.path / "gate.json", found)
        return found

    return this.step("gate", work)


def publish(this: Run) -> dict[str, Any]:
    """Shows the run in MLflow, registers its model; the gate's word makes it champion."""

    def work() -> dict[str, Any]:
        metrics = files.read_json(this.path / "metrics.json")
        verdict = _result(this, "gate")["verdict"]
        row = next(row for row in metrics["comparison"]["rows"] if row["name"] == MODEL)
        score = f"{metrics['score']['name']} {'undefined' if row['value'] is None else format(row['value'], '.4g')}"
        given = this.config.model_dump()
        settings = {key: _at(given, key) for key, _ in knobs(type(this.config))}
        tracked = registry.track(
            this.domain.name,
            this.id,
            settings=settings,
            metrics={
                **{
                    f"{metrics['score']['name']} {row['name']}": row["value"]
                    for row in metrics["comparison"]["rows"]
                    if row["value"] is not None
                },
                **{m["name"]: m["value"] for m in metrics["evaluation"]["metrics"] if m["value"] is not None},
            },
            epochs=history.epochs(this.path),
            tags={"gate": verdict, "folder": str(this.path), "synthetic": str(this.manifest["synthetic"])},
        )
        version = registry.register(
            this.domain.name,
            this.id,
            this.path / "model",
            tracked=tracked,
            score=score,
            synthetic=bool(this.manifest["synthetic"]),
            promote_it=verdict == "promote",
        )
        role = "champion" if version.champion else "held"
        label = f"{this.domain.name} v{version.number} ({role})"
        this.note(model_label=label)
        return {"version": version.number, "champion": version.champion, "label": label}

    return this.step("publish", work)


def report(this: Run) -> dict[str, Any]:
    """The report page, from what lies in the run's folder."""
    from shared.runs import report as page

    this.note(cost=_cost(this, 0))
    this.set_state("done")  # the page is the last step, and shows how the run ended
    if not this.config.run.keep_checkpoints:
        for checkpoints in this.path.glob("work/**/checkpoints"):
            shutil.rmtree(checkpoints, ignore_errors=True)
    return {"report": str(page.write(this.path))}


def outcome(this: Run) -> dict[str, Any]:
    """What a flow returns: where everything is, and the verdict."""
    judged = this.result("gate") or {}
    return {
        "run": this.id,
        "path": str(this.path),
        "verdict": judged.get("verdict"),
        "reasons": judged.get("reasons", []),
        "report": str(this.path / "report.html"),
    }


def _train_member(this: Run, fold: int, seed: int, folder: Path, **options: Any) -> dict[str, Any]:
    return training.train(this, _prepared(this), _plan(this), fold, seed, folder, **options)


def _against_champion(this: Run) -> dict[str, Any] | None:
    """The candidate's match with the champion on fair examples, or None where none stands."""
    standing = registry.champion(this.domain.name)
    if standing is None or standing.run == this.id:
        return None
    model = registry.published(standing)
    theirs = build(
        type(this.config),
        base=preparation.still_known(this.domain, {**model.config, "source": this.config.source}),
    )
    last = len(_result(this, "train")["folds"]) - 1
    match = worker.call(
        champion.match,
        this.domain.name,
        str(_prepared(this)),
        this.config.model_dump(),
        last,
        str(this.path / "work" / f"fold-{last}.npz"),
        model,
        str(preparation.prepared(this.domain, theirs)),
        theirs.model_dump(),
        str(this.path / "work" / "champion.npz"),
    )
    return {**match, "champion": model.label, "synthetic": standing.synthetic}


def _add_figures(this: Run, figures: list[dict[str, str]]) -> None:
    """Puts figures beside those of the evaluation, once."""
    metrics = files.read_json(this.path / "metrics.json")
    known = metrics["evaluation"]["figures"]
    places = {figure["path"] for figure in known}
    for figure in figures:
        path = str(Path(figure["path"]).relative_to(this.path))
        if path not in places:
            known.append({**figure, "path": path})
    files.write_json(this.path / "metrics.json", metrics)


def _prepared(this: Run) -> Path:
    return preparation.again(this, Path(_result(this, "ingest")["prepared"]))


def _plan(this: Run) -> ExecutionPlan:
    return ExecutionPlan.from_dict(_result(this, "plan"))


def _result(this: Run, step: str) -> Any:
    result = this.result(step)
    if result is None:
        raise CasebookError(f"Step {step!r} of run {this.id} is not done.", f"`casebook resume {this.id}`.")
    return result


def _at(settings: Any, key: str) -> Any:
    for part in key.split("."):
        settings = settings[part]
    return settings


def _cost(this: Run, seconds_now: float) -> dict[str, Any]:
    steps = this.manifest["steps"]
    seconds = sum(step.get("seconds", 0) for step in steps.values())
    on_device = sum(steps.get(name, {}).get("seconds", 0) for name in ("plan", "train", "evaluate", "export"))
    replicas = this.manifest["device"].get("replicas", 1)
    price = this.config.run.price_per_hour
    price = price_per_hour() if price is None else price
    return {
        "seconds": round(max(seconds, seconds_now), 1),
        "device_seconds": round(on_device * replicas, 1),
        "price_per_hour": price,
        "money": None if price is None else round(max(seconds, seconds_now) / 3600 * price, 4),
    }
