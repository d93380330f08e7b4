"""Prefect's runner for our flows: what each deployment is, kept going until told to stop.

One process a run, started by the runner. A flow that is still running, or waiting, when its
next time comes is not started again: the server cancels the new run. The runner itself has
no limit of runs, on purpose: behind such a limit missed runs would pile up unseen by that
rule and be made up for one after another (prefect#15886, #16984). What may not happen
twice at once, work on the accelerator, is kept apart by the accelerator's own lock.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pipelines.schedules import Schedule

if TYPE_CHECKING:
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.deployments.runner import RunnerDeployment
    from prefect.states import State

DEPLOYMENT = "casebook"
"""Every flow has one deployment of this name: ``prefect deployment run DOMAIN-train/casebook``."""

RETRY_SECONDS = 15.0
ACTIVE = ("PENDING", "RUNNING", "CANCELLING")

log = logging.getLogger("casebook.serve")


def run_until_stopped(made: Sequence[RunnerDeployment], *, poll_seconds: float, own_server: bool) -> None:
    """Keeps the runner going on the server that Prefect is set to; returns at SIGTERM or Ctrl-C.

    The runner gives up when the server is away for some minutes. Then it is started again.

    Args:
        poll_seconds: How often the server is asked for runs that are due.
        own_server: Nobody else uses that server: what an earlier one left there may be cleared away.
    """
    while True:
        try:
            asyncio.run(_run(made, poll_seconds=poll_seconds, own_server=own_server))
            return
        except Exception as error:
            cause = _first(error)
            again = f"Again in {RETRY_SECONDS:.0f} s."
            print(f"The runner stopped: {type(cause).__name__}: {cause}. {again}", file=sys.stderr)
            time.sleep(RETRY_SECONDS)


async def _run(made: Sequence[RunnerDeployment], *, poll_seconds: float, own_server: bool) -> None:
    from prefect.runner import Runner

    runner = Runner(
        name="casebook",
        query_seconds=poll_seconds,
        # A run taken up before its time would hold its flow's only slot while it waits, and the
        # run before it, though ended in time, would have made the server cancel it.
        prefetch_seconds=0,
        limit=None,
        pause_on_shutdown=False,
    )
    for deployment in made:
        identity = await runner.aadd_deployment(deployment)
        if own_server:
            await _settle(identity)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    running = asyncio.ensure_future(runner.start())
    await asyncio.sleep(0)  # in which the runner takes SIGTERM for itself
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        waiting.cancel()
        running.result()
        raise ConnectionError("the runner ended by itself")
    print("Stopping: runs in progress are ended. Again: at once.", file=sys.stderr)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    if runner.started:
        # Runs get SIGTERM and half a minute: for their manifest, and to release their machine.
        await runner.astop()
    else:
        running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def deployments(schedules: Sequence[Schedule]) -> list[RunnerDeployment]:
    """Prefect's deployment of every flow: at most one run of each at a time, a second is cancelled."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.deployments.runner import EntrypointType
    from prefect.schedules import Cron, Interval

    from pipelines import flows

    made = []
    for schedule in schedules:
        found = flows.of(schedule.domain)
        flow: Any = found.train if schedule.kind == "train" else found.predict
        when = None
        if schedule.cron:
            when = Cron(schedule.cron, timezone=schedule.timezone)
        elif schedule.seconds:
            when = Interval(timedelta(seconds=schedule.seconds))
        made.append(
            flow.to_deployment(
                name=DEPLOYMENT,
                schedule=when,
                parameters={**found.given, **schedule.parameters},
                concurrency_limit=ConcurrencyLimitConfig(
                    limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW
                ),
                tags=["casebook", schedule.domain, schedule.kind],
                entrypoint_type=EntrypointType.MODULE_PATH,
            )
        )
    return made


async def _settle(deployment: Any) -> None:
    """Clears away what an earlier `serve` left in a server that only we use.

    Runs whose process died with it would stay "running" for ever and, holding their flow's
    slot, make the server cancel every later one. Runs that were missed under other settings
    than today's would be made up for under those.
    """
    from prefect import get_client
    from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
    from prefect.states import Cancelled, Crashed

    async with get_client() as client:
        settings = (await client.read_deployment(deployment)).parameters
        ours = DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))
        for run in await client.read_flow_runs(deployment_filter=ours, flow_run_filter=_unfinished()):
            due = run.expected_start_time
            state: State[Any]
            if run.state_type in ACTIVE:
                log.warning("Run %s was left behind by an earlier serve", run.name)
                state = Crashed(message="Left behind when an earlier `casebook serve` ended.")
            elif run.parameters != settings and due is not None and due < datetime.now(UTC):
                state = Cancelled(message="Missed, and the settings have changed since.")
            else:
                continue
            await client.set_flow_run_state(run.id, state, force=True)
        for limit in await client.read_global_concurrency_limits(limit=200, offset=0):
            if limit.name == f"deployment:{deployment}" and limit.active_slots:
                free = GlobalConcurrencyLimitUpdate(active_slots=0)
                await client.update_global_concurrency_limit(limit.name, free)


def _unfinished() -> FlowRunFilter:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    types = [StateType(name) for name in (*ACTIVE, "SCHEDULED")]
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=types)))


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
