"""``casebook serve``: the train and predict flows of every domain, on schedules."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pipelines.commands.options import Switch
from pipelines.schedules import EXAMPLE, Schedule, read
from shared.errors import CasebookError


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
    from pipelines.runner import deployments, run_until_stopped

    with _alone(), _server(port) as own:
        made = deployments(schedules)
        _announce(schedules)
        run_until_stopped(made, poll_seconds=poll_seconds, own_server=own)
    print("Stopped. The schedules are not paused: `casebook serve` goes on with them.", file=sys.stderr)


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

    from pipelines.runner import DEPLOYMENT
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
