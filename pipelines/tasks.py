"""The steps as Prefect tasks: seen, timed and logged one by one in Prefect's interface.

Prefect's own cache stays off: its key holds a task's body but not the code it calls, so an
edited helper would give a stale result (prefect#23062). The run's folder knows what is done.
"""

from __future__ import annotations

import sys

from pipelines import prefect_setup

if "prefect" not in sys.modules:  # its settings are read when it is imported
    prefect_setup.apply(verbose=True)

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from pipelines import prediction, steps

__all__ = ["evaluate", "export", "flow", "ingest", "judge", "plan", "predict", "publish", "report", "train"]

ingest = task(steps.ingest, name="ingest", cache_policy=NO_CACHE)
plan = task(steps.plan, name="plan", cache_policy=NO_CACHE)
train = task(steps.train, name="train", cache_policy=NO_CACHE)
evaluate = task(steps.evaluate, name="evaluate", cache_policy=NO_CACHE)
export = task(steps.export, name="export", cache_policy=NO_CACHE)
judge = task(steps.judge, name="judge", cache_policy=NO_CACHE)
publish = task(steps.publish, name="publish", cache_policy=NO_CACHE)
report = task(steps.report, name="report", cache_policy=NO_CACHE)
predict = task(prediction.predict, name="predict", cache_policy=NO_CACHE)
