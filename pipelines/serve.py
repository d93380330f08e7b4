"""``casebook serve``: the train and predict flows of every domain, on schedules.

One process a run, started by Prefect's runner. A flow that is still running, or waiting,
when its next time comes is not started again: the new run is cancelled by the server. The
runner itself has no limit of runs, on purpose: behind such a limit missed runs would pile up
unseen by that rule and be made up for one after another (prefect#15886, #16984). What may
not happen twice at once, work on the accelerator, is kept apart by the accelerator's own lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pipelines.commands.options import Switch
from pipelines.schedules import EXAMPLE, Schedule, read
from shared.errors import CasebookError

if TYPE_CHECKING:
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.deployments.runner import RunnerDeployment
    from prefect.states import State

DEPLOYMENT = "casebook"
"""Every flow has one deployment of this name: ``prefect deployment run DOMAIN-train/casebook``."""

RETRY_SECONDS = 15.0
ACTIVE = ("PENDING", "RUNNING", "CANCELLING")

log = logging.getLogger("casebook.serve")


def serve(
    *,
    config: Path | None = None,
    example: Switch = False,
    port: int | None = None,
    poll_seconds: Annotated[float, Parameter(show=False)] = 5.0,
    quiet: Switch = False,
    debug: Switch = False,
) -> None:
    """Run the train and predict flows of every domain on schedules, until Ctrl-C.

    On a Prefect server of its own, or on the one that PREFECT_API_URL names.

    Parameters
    ----------
    config
        TOML file with the schedules; without it flows run only when triggered by hand.
    example
        Print a schedules file to start from, and leave.
    port
        Port of the server of its own; default 4200, or a free one.
    quiet
        Do not print the log of the runs.
    debug
        Print everything.
    """
    if example:
        from shared.contract import domain_names

        print(EXAMPLE.format(domain=next(iter(domain_names()), "digits")), end="")
        return
    from pipelines import prefect_setup

    prefect_setup.apply(verbose=not quiet, debug=debug)
    os.environ.setdefault("PREFECT_SERVER_LOGGING_LEVEL", "ERROR")
    schedules = read(config)
    with _alone(), _server(port) as own:
        serve_until_stopped(schedules, poll_seconds=poll_seconds, own_server=own)


def serve_until_stopped(schedules: Sequence[Schedule], *, poll_seconds: float, own_server: bool) -> None:
    """Keeps the runner going on the server that PREFECT_API_URL names; returns at SIGTERM or Ctrl-C.

    The runner gives up when the server is away for some minutes. Then it is started again.
    """
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        os.kill(os.getpid(), signal.SIGINT)  # which asyncio turns into an orderly end

    signal.signal(signal.SIGTERM, stop)
    made = deployments(schedules)
    _announce(schedules)
    while not stopping:
        try:
            asyncio.run(_serve(made, poll_seconds=poll_seconds, own_server=own_server))
        except KeyboardInterrupt:
            break
        except CasebookError:
            raise
        except Exception as error:
            cause = _first(error)
            print(
                f"The runner stopped: {type(cause).__name__}: {cause}. Again in {RETRY_SECONDS:.0f} s.",
                file=sys.stderr,
            )
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(RETRY_SECONDS)
                continue
            break
    print("Stopped. The schedules are not paused: `casebook serve` goes on with them.", file=sys.stderr)


async def _serve(made: Sequence[RunnerDeployment], *, poll_seconds: float, own_server: bool) -> None:
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
    # The runner would take SIGTERM for itself, and return as if nothing were the matter.
    handler = signal.getsignal(signal.SIGTERM)
    running = asyncio.ensure_future(runner.start())
    await asyncio.sleep(0)
    signal.signal(signal.SIGTERM, handler)
    await running


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


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One `serve` for a runs folder: two would start every run twice."""
    from filelock import FileLock, Timeout

    from shared.settings import runs_root

    folder = runs_root() / ".serve"
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise CasebookError(
            f"Another `casebook serve` is at work on {folder.parent}.",
            "End that one first, or set CASEBOOK_RUNS to another folder.",
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _server(port: int | None) -> Iterator[bool]:
    """The server to run on, named in PREFECT_API_URL for us and every run; yields whether it is our own."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from shared.settings import runs_root

    named = PREFECT_API_URL.value()
    if named:
        _reach(named)
        yield False
        return
    from pipelines.embedded import Server

    print("Starting a Prefect server of our own.", file=sys.stderr)
    server = Server(runs_root() / ".serve" / "server.log", port, schedules=True)
    # Prefect read its settings when the schedules were checked; every run gets these from the runner.
    with server, temporary_settings({PREFECT_API_URL: server.url}):
        yield True


def _reach(url: str) -> None:
    import httpx

    key = os.environ.get("PREFECT_API_KEY")
    try:
        httpx.get(
            f"{url.rstrip('/')}/health", timeout=20, headers={"Authorization": f"Bearer {key}"} if key else {}
        )
    except httpx.HTTPError as error:
        raise CasebookError(
            f"The Prefect server {url} (PREFECT_API_URL) does not answer: {error}.",
            "Start it, correct PREFECT_API_URL, or unset it to use a server of our own.",
        ) from error


def _announce(schedules: Sequence[Schedule]) -> None:
    from prefect.settings import PREFECT_API_URL

    from pipelines.terminal import messages, table

    url = PREFECT_API_URL.value() or ""
    console = messages()
    rows = [(f"{schedule.name}/{DEPLOYMENT}", schedule.when) for schedule in schedules]
    console.print(table(("flow", "runs"), rows))
    console.print(f"Prefect: {url.removesuffix('/api')}", markup=False)
    console.print(
        f"By hand: PREFECT_API_URL={url} prefect deployment run {schedules[0].name}/{DEPLOYMENT}"
        if schedules
        else "No domain is installed.",
        markup=False,
        style="dim",
    )


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
