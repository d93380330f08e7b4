"""Commands that work: ``run``, ``resume``, ``plan``, ``predict``."""

from __future__ import annotations

import json as jsonlib
import time
from pathlib import Path
from typing import Any, Literal

from pipelines import release
from pipelines.cli import HELD
from pipelines.commands.options import QUIET, Screen, Settings, Switch, configured
from shared.config import AcceleratorSection
from shared.errors import CasebookError, InputError
from shared.fingerprint import check_source

_RUN_WORDS = (
    "config",
    "source",
    "fail-on-hold",
    "price-per-hour",
    "replan",
    "guards",
    "workers",
    "profile",
    "verbose",
    "debug",
    "json",
)
_PLAN_WORDS = ("config", "source", "replan", "verbose", "debug", "json")
_PREDICT_WORDS = ("source", "stdin", "out", "config", "verbose", "debug", "json")


def run(
    domain: str,
    /,
    *settings: Settings,
    config: Path | None = None,
    source: str | None = None,
    fail_on_hold: Switch = False,
    price_per_hour: float | None = None,
    replan: Switch = False,
    guards: Literal["standard", "full"] | None = None,
    workers: int | None = None,
    profile: Switch = False,
    screen: Screen = QUIET,
) -> int:
    """Train, judge and register a domain's model. Settings go as dotted flags: --train.epochs 5.

    `casebook run DOMAIN --help` lists them all.

    Parameters
    ----------
    domain
        Name of the domain.
    config
        TOML file with what differs from the domain's defaults.
    source
        Folder or file of data, or the name of an embedded source; `synthetic` makes some up.
    fail_on_hold
        Exit with 3 when the gate holds the model.
    price_per_hour
        What an hour of this machine costs, for the cost line.
    replan
        Measure the plan again even where one is kept for this device.
    guards
        `full` also trains on shuffled labels, which must teach nothing.
    workers
        Train with this many processes on this machine. Over several machines: start the command on
        each with its own TF_CONFIG, and CASEBOOK_RUNS on a folder that all share.
    profile
        Write a TensorFlow profile of a few calls of each phase; the report names the dearest ops.
    """
    options = {
        "source": source,
        "run.price_per_hour": price_per_hour,
        "plan.replan": replan,
        "gate.guards": guards,
        "accelerator.workers": workers,
        "run.profile": profile,
    }
    _, resolved = configured(domain, settings, config=config, options=options, words=_RUN_WORDS)
    if _is_hand(resolved.accelerator):
        return _train_along(resolved.accelerator)
    check_source(resolved.source)  # before Prefect starts and a run's folder is made
    with release.at_the_end(resolved.accelerator):
        return _train(
            domain, resolved.model_dump(mode="json"), None, fail_on_hold=fail_on_hold, screen=screen
        )


def _is_hand(section: AcceleratorSection) -> bool:
    """Whether this is one of several workers, and not the chief: it trains along, and makes no run."""
    from shared import cluster

    size = cluster.size(section)  # refuses what cannot be, before a run's folder is made
    return section.workers == 1 and size > 1 and cluster.of_environment().index > 0


def _train_along(section: AcceleratorSection) -> int:
    """Trains each member that the chief announces, until the chief's run is over."""
    from pipelines.terminal import messages, showing
    from shared import worker
    from shared.settings import runs_root
    from shared.training import workers

    worker.warm_up()
    console = messages()
    with release.at_the_end(section), showing(console):
        trained = workers.follow(runs_root(), seconds=section.worker_seconds)
    console.print(f"Trained {trained} member(s) along with the chief, whose run is over.", markup=False)
    return 0


def resume(run: str = "last", /, *, fail_on_hold: Switch = False, screen: Screen = QUIET) -> int:
    """Go on with a run that was stopped or killed: finished steps are kept, training goes on from its checkpoint.

    Parameters
    ----------
    run
        Id or folder of the run, or `last`.
    fail_on_hold
        Exit with 3 when the gate holds the model.
    """
    from shared.runs.folder import Run

    stopped = Run.open(run)
    if _is_hand(stopped.config.accelerator):
        return _train_along(stopped.config.accelerator)
    if stopped.manifest["state"] == "done" and (stopped.path / "report.html").is_file():
        from pipelines.terminal import messages

        messages().print(f"Run {stopped.id} is done; there is nothing to go on with.", markup=False)
        return _show(stopped.path, fail_on_hold=fail_on_hold, screen=screen)
    with release.at_the_end(stopped.config.accelerator):
        return _train(stopped.domain.name, {}, str(stopped.path), fail_on_hold=fail_on_hold, screen=screen)


def plan(
    domain: str,
    /,
    *settings: Settings,
    config: Path | None = None,
    source: str | None = None,
    replan: Switch = False,
    screen: Screen = QUIET,
) -> None:
    """Measure how to train on this machine (batch size, precision, XLA), and stop there.

    Parameters
    ----------
    domain
        Name of the domain.
    config
        TOML file with what differs from the domain's defaults.
    source
        Folder or file of data, or the name of an embedded source.
    replan
        Measure again even where a plan is kept for this device.
    """
    from pipelines import prefect_setup

    options = {"source": source, "plan.replan": replan}
    body, resolved = configured(domain, settings, config=config, options=options, words=_PLAN_WORDS)
    check_source(resolved.source)
    prefect_setup.apply(verbose=screen.verbose, debug=screen.debug)
    from pipelines.preparation import prepared as prepare
    from pipelines.summary import show_plan
    from pipelines.terminal import output, showing
    from shared import worker
    from shared.plan import for_domain
    from shared.settings import plans_root

    worker.warm_up()
    with release.at_the_end(resolved.accelerator), showing():
        prepared = prepare(body, resolved)
        found = for_domain(body.name, prepared, resolved, plans=plans_root())
    if screen.json:
        print(jsonlib.dumps(found.to_dict(), indent=2))
    else:
        show_plan(found, output())


def predict(
    domain: str,
    /,
    *settings: Settings,
    source: str | None = None,
    stdin: Switch = False,
    out: Path | None = None,
    config: Path | None = None,
    screen: Screen = QUIET,
) -> None:
    """Score new input with the champion, or with the newest candidate where there is none.

    Parameters
    ----------
    domain
        Name of the domain.
    source
        Folder or file of new data.
    stdin
        Instead: answer in real time, a line of JSON in, a line of JSON out, until stdin ends.
    out
        Folder for the output; default: runs/DOMAIN/predictions/TIME.
    config
        TOML file with what differs from the configuration that the model was trained with.
    """
    from pipelines.knobs import parse
    from shared.config import differences

    body, _ = configured(domain, settings, config=config, options={}, words=_PREDICT_WORDS)
    given = differences(config, parse(settings, body.Config))
    if stdin:
        from pipelines import lines

        if source is not None or out is not None:
            raise InputError("--stdin takes neither --source nor --out.", "Answers go to stdout.")
        lines.serve(domain, given, verbose=screen.verbose, debug=screen.debug)
        return
    if source is None:
        raise InputError("predict needs --source PATH, or --stdin.", "Name the new data.")
    check_source(source)
    target = None if out is None else str(out.expanduser().absolute())
    result = _in_flow(domain, "predict", screen, source=source, config=given, out=target)
    if screen.json:
        print(jsonlib.dumps(result, indent=2))
        return
    from pipelines.summary import show_prediction
    from pipelines.terminal import output

    show_prediction(result, output())


def _train(
    domain: str, config: dict[str, Any], run: str | None, *, fail_on_hold: bool, screen: Screen
) -> int:
    """Runs the train flow, shows the summary of the run's folder, returns the exit code."""
    started = time.time()
    try:
        folder = Path(_in_flow(domain, "train", screen, config=config, run=run)["path"])
    except CasebookError:
        raise
    except Exception as error:
        folder = _finished_all_the_same(domain, run, started, error)
    return _show(folder, fail_on_hold=fail_on_hold, screen=screen)


def _show(folder: Path, *, fail_on_hold: bool, screen: Screen) -> int:
    from pipelines.summary import of_run, show
    from pipelines.terminal import output

    summary = of_run(folder)
    if screen.json:
        print(jsonlib.dumps(summary, indent=2))
    else:
        show(summary, output())
    return HELD if fail_on_hold and summary["verdict"] == "hold" else 0


def _in_flow(
    domain: str, which: Literal["train", "predict"], screen: Screen, **arguments: Any
) -> dict[str, Any]:
    """Runs one of the domain's two Prefect flows with its progress shown."""
    from pipelines import prefect_setup

    prefect_setup.apply(verbose=screen.verbose, debug=screen.debug)
    from pipelines.terminal import messages, showing
    from shared import worker

    worker.warm_up()  # TensorFlow loads in the fork server while Prefect starts here
    console = messages()
    with showing(console):
        console.print("Starting the flow (Prefect).", style="dim")
        from pipelines import embedded

        server = embedded.for_this_process()
        from pipelines import flows  # takes seconds, in which the server starts

        found = flows.of(domain)
        if server is not None:
            server.wait()
        return (found.run_train if which == "train" else found.run_predict)(**arguments)


def _finished_all_the_same(domain: str, run: str | None, started: float, error: Exception) -> Path:
    """The run's folder, where the run itself was done and only Prefect's server went away.

    Everything was written before the flow returned; Prefect then fails to say so.
    """
    from datetime import UTC, datetime

    from pipelines.terminal import messages
    from shared.runs.folder import Run, list_runs

    manifest: dict[str, Any] | None
    if run is not None:
        manifest = {**Run.open(run).manifest, "path": run}
    else:
        since = datetime.fromtimestamp(started - 1, UTC).isoformat(timespec="seconds")
        manifest = next((found for found in list_runs(domain) if found["started"] >= since), None)
    if manifest is None or manifest["state"] != "done":
        raise error
    messages().print(
        f"The run is done and its files are written, but Prefect could not record that: {error}",
        style="yellow",
        markup=False,
    )
    return Path(manifest["path"])
