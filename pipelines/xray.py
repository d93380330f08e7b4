"""Chest X-rays: films in, a judged classifier out; then a worklist, most urgent first."""

from __future__ import annotations

from typing import Any

from pipelines import steps, tasks

DOMAIN = "xray"


@tasks.flow(name="xray-train")
def train(config: dict[str, Any] | None = None, run: str | None = None) -> dict[str, Any]:
    """One run, new with ``config`` (differences to the defaults), or ``run`` taken up again."""
    with steps.opened(DOMAIN, config, run) as this:
        tasks.ingest(this)  # films decoded the radiologist's way, patients pseudonymised, bad films set aside
        tasks.plan(this)  # batch size and precision, measured on the unfrozen network
        tasks.train(this)  # a head on frozen features, then the last blocks unfrozen
        tasks.evaluate(this)  # AUROC with patient-level intervals, beside prevalence and intensity features
        tasks.export(this)  # the network in float32, checked against the trained one
        tasks.judge(this)  # better than the best baseline by the lower end of the interval, or held
        tasks.publish(this)  # into the registry; champion where the gate says so
        tasks.report(this)  # one page that shows all of it
    return steps.outcome(this)


@tasks.flow(name="xray-predict")
def predict(source: str, config: dict[str, Any] | None = None, out: str | None = None) -> dict[str, Any]:
    """New films in, a worklist with the most urgent first out."""
    return tasks.predict(DOMAIN, source, config, out)
