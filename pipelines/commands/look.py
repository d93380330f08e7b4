"""Commands that look and change nothing: ``status``, ``report``, ``config``."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Any

from pipelines.commands.options import QUIET, Screen, Settings, configured


def status(
    run: str | None = None, /, *, domain: str | None = None, limit: int = 15, screen: Screen = QUIET
) -> None:
    """List the newest runs, or show one.

    Parameters
    ----------
    run
        Id or folder of a run, or `last`; every run where none is given.
    domain
        Only runs of this domain.
    limit
        How many to list.
    """
    from pipelines.summary import of_run, show
    from pipelines.terminal import output
    from shared.runs.folder import Run, list_runs

    if run is not None:
        summary = of_run(Run.open(run).path)
        print(jsonlib.dumps(summary, indent=2)) if screen.json else show(summary, output())
        return
    runs = list_runs(domain)[:limit]
    if screen.json:
        print(jsonlib.dumps(runs, indent=2))
    elif not runs:
        output().print("No runs yet. `casebook run DOMAIN` starts one.")
    else:
        _list(runs)


def _list(runs: list[dict[str, Any]]) -> None:
    from pipelines.summary import read, state_of
    from pipelines.terminal import output, table

    rows = []
    for manifest in runs:
        gate = read(Path(manifest["path"]), "gate.json") or {}
        rows.append(
            (
                manifest["run"],
                manifest["domain"],
                state_of(Path(manifest["path"]), manifest),
                gate.get("verdict", ""),
                "SYNTHETIC" if manifest.get("synthetic") else str(manifest.get("source", "")),
                str(manifest["started"]).replace("T", " ")[:16],
            )
        )
    output().print(table(("run", "domain", "state", "gate", "data", "started (UTC)"), rows))


def report(run: str = "last", /, *, screen: Screen = QUIET) -> None:
    """Write a run's report anew from its folder, and say where it is.

    Parameters
    ----------
    run
        Id or folder of a run, or `last`.
    """
    from shared.runs.folder import Run
    from shared.runs.report import write

    path = write(Run.open(run).path)
    print(jsonlib.dumps({"report": str(path)}) if screen.json else path)


def config(domain: str, /, *settings: Settings, config: Path | None = None) -> None:
    """Print a domain's settings as commented TOML; save it, keep what differs, give it as --config.

    Parameters
    ----------
    domain
        Name of the domain.
    config
        A TOML file to resolve first; settings given as flags go over it.
    """
    from shared.config import to_toml

    _, resolved = configured(domain, settings, config=config, options={}, words=("config",))
    print(to_toml(resolved, commented=True), end="")
