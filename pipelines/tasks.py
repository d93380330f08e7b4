"""The steps as Prefect tasks: seen, timed and logged one by one in Prefect's interface.

Prefect's own cache stays off: its key holds a task's body but not the code it calls, so an
edited helper would give a stale result (prefect#23062). The run's folder knows what is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pipelines import prefect_setup

if "prefect" not in sys.modules:  # its settings are read when it is imported
    prefect_setup.apply(verbose=True)

from prefect import Task, flow, task
from prefect.cache_policies import NO_CACHE

from pipelines import prediction, steps

__all__ = ["evaluate", "export", "flow", "ingest", "judge", "plan", "predict", "publish", "report", "train"]


P = ParamSpec("P")
R = TypeVar("R")


def as_task(step: Callable[P, R]) -> Task[P, R]:
    """A step as a task of its name, never cached by Prefect."""
    return task(name=step.__name__, cache_policy=NO_CACHE)(step)


ingest = as_task(steps.ingest)
plan = as_task(steps.plan)
train = as_task(steps.train)
evaluate = as_task(steps.evaluate)
export = as_task(steps.export)
judge = as_task(steps.judge)
publish = as_task(steps.publish)
report = as_task(steps.report)
predict = as_task(prediction.predict)
