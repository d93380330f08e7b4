"""``casebook doctor``: what works on this machine, what does not, and how to mend it.

Every finding is a :class:`pipelines.installation.Check`. Devices are asked in children with
time limits, because a driver that hangs is one of the things that people call a doctor for.
"""

from __future__ import annotations

import json as jsonlib
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict

from pipelines.commands.options import Switch
from pipelines.installation import DISTRIBUTION, Check, State, ownership, python, versions
from shared.errors import CasebookError

PROBE_SECONDS = 180.0
TPU_SECONDS = 30.0
LOW_DISK_BYTES = 2 << 30


def doctor(*, json: Switch = False, verbose: Switch = False, debug: Switch = False) -> int:
    """Say what works on this machine, and how to mend the rest. Exit code 1 where something needed is broken.

    Parameters
    ----------
    json
        Print the findings as JSON.
    verbose
        Show the messages of Prefect and TensorFlow.
    debug
        Show everything.
    """
    from pipelines import prefect_setup

    prefect_setup.apply(verbose=verbose, debug=debug)
    checks = examine()
    broken = any(check.state == "broken" for check in checks)
    if json:
        print(jsonlib.dumps({"ok": not broken, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _show(checks)
    return 1 if broken else 0


def examine() -> list[Check]:
    """All checks, in the order of importance to somebody whose run does not start."""
    from shared import worker

    worker.warm_up()
    parts: tuple[Callable[[], Iterable[Check]], ...] = (
        python,
        ownership,
        versions,
        domains,
        places,
        machine,
        devices,
        tpu,
        services,
    )
    checks: list[Check] = []
    for part in parts:
        try:
            checks += part()
        except Exception as error:  # one broken part must not hide the others
            checks.append(Check(part.__name__, "broken", f"{type(error).__name__}: {error}", _remedy(error)))
    return checks


def domains() -> list[Check]:
    """Which domains are registered, and whether each can be loaded."""
    from shared.contract import domain_names, find

    checks, good = [], []
    for name in domain_names():
        try:
            find(name)
            good.append(name)
        except Exception as error:
            what = f"{name} is registered and cannot be loaded: {type(error).__name__}: {error}"
            checks.append(
                Check("domains", "broken", what, _remedy(error) or "Mend or uninstall its package.")
            )
    if good:
        return [Check("domains", "ok", ", ".join(good)), *checks]
    remedy = f"Reinstall {DISTRIBUTION}: its entry points are missing."
    return checks or [Check("domains", "broken", "No domain is registered.", remedy)]


def places() -> list[Check]:
    """The runs folder and the room on its disk."""
    from shared.settings import runs_root

    try:
        root = runs_root()
    except CasebookError as error:
        return [Check("runs folder", "broken", error.message, error.remedy)]
    free = shutil.disk_usage(root).free
    from shared.words import size

    low = free < LOW_DISK_BYTES
    remedy = "Remove old runs, or set CASEBOOK_RUNS to another disk." if low else ""
    return [Check("runs folder", "note" if low else "ok", f"{root}, {size(free)} free", remedy)]


def machine() -> list[Check]:
    """CPU, memory, GPUs as their driver sees them."""
    from shared import accelerator
    from shared.words import size

    here = accelerator.machine()
    flags = ", ".join(here.flags) or "none of those that matter"
    checks = [
        Check("system", "ok", here.system),
        Check("cpu", "ok", f"{here.cpu}, {here.cores} cores for us; {flags}"),
    ]
    short = here.memory_available_bytes < 2 << 30
    found = f"{size(here.memory_available_bytes)} free of {size(here.memory_bytes)}"
    remedy = "Close other programs: TensorFlow alone takes most of a GiB." if short else ""
    checks.append(Check("memory", "note" if short else "ok", found, remedy))
    for gpu in here.gpus:
        memory = size(gpu.memory_bytes) if gpu.memory_bytes else "memory unknown"
        capability = ".".join(map(str, gpu.compute_capability)) if gpu.compute_capability else "unknown"
        found = f"{gpu.name}, {memory}, compute capability {capability}, driver {gpu.driver or 'unknown'}"
        checks.append(Check("gpu", "ok", found))
    if not here.gpus:
        checks.append(Check("gpu", "ok", "the driver knows of none"))
    return checks


def devices() -> list[Check]:
    """Where a test product really ran, and which precision policies that device can use."""
    from shared import accelerator, mixed_precision, worker
    from shared.config import AcceleratorSection

    outcome = worker.run(accelerator.probe, AcceleratorSection(), timeout=PROBE_SECONDS)
    if outcome.verdict != "ok":
        said = str(outcome.error or outcome.message).strip() or str(outcome.verdict)
        remedy = "Reinstall TensorFlow; --debug shows all that it says."
        return [
            Check("device", "broken", f"TensorFlow could not be asked: {outcome.verdict}: {said}", remedy)
        ]
    seen = outcome.value
    checks = [
        Check("tensorflow", "ok", f"{seen.tensorflow} with Keras {seen.keras} sees {', '.join(seen.devices)}")
    ]
    for problem in seen.problems:
        state: State = "note" if seen.device else "broken"
        checks.append(Check("device", state, problem.message, problem.remedy))
    if seen.device:
        where = ", ".join(seen.placement) or "not tried: the other workers would have to answer"
        checks.append(Check("device", "ok", f"{seen.device}; a test product ran on {where}"))
        for policy in mixed_precision.candidates(accelerator.machine(), seen.device):
            verdict = "usable" if policy.usable else "not usable"
            checks.append(Check("precision", "ok", f"{policy.name}: {verdict}, {policy.reason}"))
    return checks


def tpu() -> list[Check]:
    """Whether a TPU answers. Detection that merely looks succeeds without one, and asking can hang."""
    from shared import accelerator, worker
    from shared.config import AcceleratorSection

    announced = accelerator.tpu_announced()
    section = AcceleratorSection(device="tpu")
    outcome = worker.run(accelerator.probe, section, timeout=TPU_SECONDS)
    if outcome.verdict == "ok" and outcome.value.device == "tpu":
        return [Check("tpu", "ok", outcome.value.tpu)]
    if outcome.verdict == "ok":
        what = outcome.value.tpu
    elif outcome.verdict == "timed out":
        what = f"no answer within {TPU_SECONDS:.0f} s"
    else:
        what = f"asking ended with {outcome.verdict}"
    if not announced:
        return [Check("tpu", "ok", f"none announced; asked all the same: {shortened(what)}")]
    return [Check("tpu", "note", f"announced, but does not answer: {what}", accelerator.TPU_REMEDY)]


def services() -> list[Check]:
    """Prefect's and MLflow's addresses, and whether they answer."""
    from prefect.settings import PREFECT_API_URL

    from shared.settings import tracking_uri

    checks = []
    prefect = PREFECT_API_URL.value()
    if prefect:
        remedy = "Start it, correct PREFECT_API_URL, or unset it to use a server of the run's own."
        checks.append(_address("prefect", prefect, f"{prefect.rstrip('/')}/health", remedy))
    else:
        checks.append(Check("prefect", "ok", "a server of the run's own, started and ended with it"))
    tracking = tracking_uri()
    if tracking.startswith(("http://", "https://")):
        remedy = "Start it, correct MLFLOW_TRACKING_URI, or unset it to use a file in the runs folder."
        checks.append(_address("tracking", tracking, f"{tracking.rstrip('/')}/health", remedy))
    else:
        checks.append(Check("tracking", "ok", tracking))
    return checks


def _address(name: str, address: str, health: str, remedy: str) -> Check:
    import httpx

    try:
        status = httpx.get(health, timeout=10, follow_redirects=True).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Check(name, "broken", f"{address} does not answer: {error}", remedy)
    # 401 and the like are the answer of a server that is there; the key is the client's business.
    return Check(
        name,
        "ok" if status < 500 else "broken",
        f"{address} answers ({status})",
        remedy if status >= 500 else "",
    )


def shortened(text: str, length: int = 90) -> str:
    """The beginning of a long text, cut between words."""
    return text if len(text) <= length else text[:length].rpartition(" ")[0] + " …"


def _remedy(error: Exception) -> str:
    return str(getattr(error, "remedy", ""))


def _show(checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    from pipelines.terminal import output

    styles = {"ok": "green", "note": "yellow", "broken": "bold red"}
    grid = Table(box=None, show_header=False, pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for check in checks:
        found = Text(check.found)
        if check.remedy:
            found.append(f"\nRemedy: {check.remedy}", style="green")
        grid.add_row(Text(check.state, style=styles[check.state]), check.name, found)
    console = output()
    console.print(grid)
    broken = sum(check.state == "broken" for check in checks)
    console.print(f"\n{broken} broken." if broken else "\nNothing needed is broken.", style="bold")
