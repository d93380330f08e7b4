"""A run's steps in a process that kills itself (SIGKILL) at every point of its work, once each.

``python self_killing.py RUN LEDGER`` goes on with a run, as ``casebook resume`` would, without Prefect.
At each of its points the process writes the point's name into the ledger, if it is not there yet, and
dies. Called again and again it comes a point further each time, and at last to the end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines import steps
from shared import files
from shared.runs import export, registry

STEPS = ("ingest", "plan", "train", "evaluate", "export", "judge", "publish", "report")

_seen: Counter[str] = Counter()


def die_once(ledger: Path, point: str, *others: int) -> None:
    """Kills this process, after ``others``, unless it has died at ``point`` before."""
    _seen[point] += 1
    name = f"{point} #{_seen[point]}"
    known = ledger.read_text().splitlines() if ledger.exists() else []
    if name in known:
        return
    with ledger.open("a") as file:
        file.write(name + "\n")
    for process in (*others, os.getpid()):
        os.kill(process, signal.SIGKILL)


def armed(ledger: Path, step: str, *others: int) -> None:
    """Dies before anything gets its final name in ``step``."""
    for owner, name in ((os, "replace"), (Path, "rename")):
        true = getattr(getattr(owner, name), "true", getattr(owner, name))

        def dying(*args: Any, true: Callable[..., Any] = true, **options: Any) -> Any:
            if Path(args[1]).name != "manifest.json":  # written between all the others, which are points
                die_once(ledger, f"{step}: before {Path(args[1]).name}", *others)
            return true(*args, **options)

        dying.true = true  # type: ignore[attr-defined]
        setattr(owner, name, dying)


def registry_armed(ledger: Path) -> None:
    client = registry._client

    def dying(method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            answer = method(*args, **kwargs)
            die_once(ledger, f"registry: after {name}")
            return answer

        return call

    def dying_client(uri: str) -> Any:
        found = client(uri)
        for name in (
            "create_run",
            "log_batch",
            "set_terminated",
            "create_registered_model",
            "create_model_version",
            "set_registered_model_tag",
            "set_registered_model_alias",
        ):
            if not hasattr(getattr(found, name), "armed"):
                method = dying(getattr(found, name), name)
                method.armed = True  # type: ignore[attr-defined]
                setattr(found, name, method)
        return found

    registry._client = dying_client  # type: ignore[assignment]


def export_that_dies(ledger: str, parent: int, *args: Any) -> Any:
    """The export's child: it takes the run's process with it."""
    armed(Path(ledger), "export's child", parent)
    return export.export(*args)


def main(run: str, ledger: Path) -> None:
    call = steps.worker.call

    def dying_call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if function is export.export:
            return call(export_that_dies, str(ledger), os.getpid(), *args, **options)
        return call(function, *args, **options)

    steps.worker.call = dying_call  # type: ignore[assignment]
    registry_armed(ledger)
    decide = steps.gate.decide
    # So that a champion is made, too: what this tiny model is worth is not the question here.
    steps.gate.decide = lambda *args, **options: replace(decide(*args, **options), verdict="promote")
    begun = files.read_json(Path(run) / "manifest.json")
    with steps.opened(begun["domain"], run=run) as this:
        for name in STEPS:
            if name in ("export", "judge", "publish", "report"):
                armed(ledger, name)
            getattr(steps, name)(this)
            die_once(ledger, f"after {name}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
