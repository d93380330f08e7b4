"""Stock trends: prices in, a judged LSTM out; then each ticker's probability."""

from __future__ import annotations

from typing import Any

from pipelines import steps, tasks

DOMAIN = "stocks"


@tasks.flow(name="stocks-train")
def train(config: dict[str, Any] | None = None, run: str | None = None) -> dict[str, Any]:
    """One run, new with ``config`` (differences to the defaults), or ``run`` taken up again."""
    with steps.opened(DOMAIN, config, run) as this:
        tasks.ingest(this)  # prices adjusted, sessions checked, bad rows set aside
        tasks.plan(this)  # batch size and precision, measured on this device
        tasks.train(this)  # an LSTM a fold, walking forward in time
        tasks.evaluate(this)  # beside majority, persistence, logistic regression, boosting; a backtest
        tasks.export(this)  # the last fold's LSTM, in float32, checked against the trained one
        tasks.judge(this)  # better than the best baseline by the lower end of the interval, or held
        tasks.publish(this)  # into the registry; champion where the gate says so
        tasks.report(this)  # one page that shows all of it
    return steps.outcome(this)


@tasks.flow(name="stocks-predict")
def predict(source: str, config: dict[str, Any] | None = None, out: str | None = None) -> dict[str, Any]:
    """Bars up to now in, each ticker's probability of an upward trend out."""
    return tasks.predict(DOMAIN, source, config, out)
