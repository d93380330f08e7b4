"""Climate fields: model runs in, a judged CNN out; then a CF NetCDF file."""

from __future__ import annotations

from typing import Any

from pipelines import steps, tasks

DOMAIN = "climate"


@tasks.flow(name="climate-train")
def train(config: dict[str, Any] | None = None, run: str | None = None) -> dict[str, Any]:
    """One run, new with ``config`` (differences to the defaults), or ``run`` taken up again."""
    with steps.opened(DOMAIN, config, run) as this:
        tasks.ingest(this)  # grids checked, units and calendars stated, corrupt files set aside
        tasks.plan(this)  # batch size and precision, measured on this device
        tasks.train(this)  # a CNN on one scenario, tested on another
        tasks.evaluate(this)  # area-weighted RMSE beside interpolation, per-cell offsets and ridge regression
        tasks.export(this)  # the CNN in float32, checked against the trained one
        tasks.judge(this)  # better than the best baseline by the lower end of the interval, or held
        tasks.publish(this)  # into the registry; champion where the gate says so
        tasks.report(this)  # one page that shows all of it
    return steps.outcome(this)


@tasks.flow(name="climate-predict")
def predict(source: str, config: dict[str, Any] | None = None, out: str | None = None) -> dict[str, Any]:
    """New fields in, the model's fields as CF NetCDF out."""
    return tasks.predict(DOMAIN, source, config, out)
