"""The two flows of a domain that someone else wrote; ours are spelled out in files of their own."""

from __future__ import annotations

from typing import Any

from pipelines import steps, tasks


@tasks.flow(name="train")
def train(domain: str, config: dict[str, Any] | None = None, run: str | None = None) -> dict[str, Any]:
    """One run, new with ``config`` (differences to the defaults), or ``run`` taken up again."""
    with steps.opened(domain, config, run) as this:
        tasks.ingest(this)
        tasks.plan(this)
        tasks.train(this)
        tasks.evaluate(this)
        tasks.export(this)
        tasks.judge(this)
        tasks.publish(this)
        tasks.report(this)
    return steps.outcome(this)


@tasks.flow(name="predict")
def predict(
    domain: str, source: str, config: dict[str, Any] | None = None, out: str | None = None
) -> dict[str, Any]:
    """New input in, the field's output out."""
    return tasks.predict(domain, source, config, out)
