"""A run's folder: the truth about the run, step by step, whatever becomes of its process.

``runs/<domain>/<run-id>/`` holds ``config.toml``, ``manifest.json``, one JSON file for each
finished step's result and what the steps wrote. A step is finished when its state in the
manifest says ``done``; that is written last, so a killed step is simply done again.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from shared import files, fingerprint
from shared.config import DomainConfig, build, to_toml
from shared.contract import Domain, find
from shared.errors import BusyError, CasebookError, InputError, did_you_mean
from shared.settings import runs_root

log = logging.getLogger("casebook.runs")

STEPS = ("ingest", "plan", "train", "evaluate", "export", "gate", "publish", "report")
PACKAGES = (
    "tensorflow",
    "keras",
    "numpy",
    "scikit-learn",
    "xarray",
    "prefect",
    "mlflow",
    "casebook-pipelines",
)


class Run:
    """One run, new or opened again.

    Attributes:
        path: Its folder, absolute.
        domain: The domain's instance.
        config: Its resolved configuration.
        manifest: What ``manifest.json`` holds; change it through the methods only.
    """

    def __init__(self, path: Path, domain: Domain, config: DomainConfig, manifest: dict[str, Any]) -> None:
        self.path = path
        self.domain = domain
        self.config = config
        self.manifest = manifest

    @property
    def id(self) -> str:
        return self.path.name

    @classmethod
    def create(cls, domain: Domain, config: DomainConfig) -> Run:
        """A new folder with its configuration and an empty manifest."""
        now = datetime.now(UTC)
        # To the second for people, random for two runs in one second.
        path = runs_root() / domain.name / f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        path.mkdir(parents=True)
        files.write_text(path / "config.toml", to_toml(config))
        run = cls(path, domain, config, _new_manifest(path.name, domain, config, now))
        run._save()
        return run

    @classmethod
    def open(cls, run: str) -> Run:
        """An existing run by its id, its folder, or ``last`` (the newest of all).

        Raises:
            InputError: No such run, or its folder is not one of a run.
        """
        path = _locate(run)
        manifest = files.read_json(path / "manifest.json")
        domain = find(manifest["domain"])
        config = build(domain.Config, path / "config.toml")
        return cls(path, domain, config, manifest)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps a second process from working on the same run; the lock dies with its holder."""
        lock = _lock(self.path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BusyError(
                f"Run {self.id} is being worked on by another process.", "Wait for it, or end that process."
            ) from None
        try:
            yield
        finally:
            lock.release()

    def result(self, step: str) -> Any | None:
        """The result of a finished step, or None; one that cannot be read counts as not finished."""
        if self.manifest["steps"].get(step, {}).get("state") != "done":
            return None
        try:
            return files.read_json(self.path / "steps" / f"{step}.json")
        except (OSError, ValueError) as error:
            log.warning(
                "What step %r of run %s left cannot be read (%s): it is to be done again.",
                step, self.id, error,
            )  # fmt: skip
            return None

    def step(self, name: str, work: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The kept result of step ``name``, or that of doing ``work`` now.

        The result (plain data) is on disk before the manifest says ``done``. An exception
        is recorded with its message and raised on.
        """
        kept = self.result(name)
        if kept is not None:
            return dict(kept)
        started = time.time()
        self._mark(name, state="running", started=_iso(started))
        try:
            result = files.plain(dict(work()))
            files.write_json(self.path / "steps" / f"{name}.json", result)
        except BaseException as error:
            reason = error.message if isinstance(error, CasebookError) else f"{type(error).__name__}: {error}"
            state = "failed" if isinstance(error, Exception) else "interrupted"
            self._mark(name, state=state, seconds=round(time.time() - started, 3), reason=reason)
            raise
        self.manifest["steps"][name].pop("reason", None)  # of an earlier try
        self._mark(name, state="done", seconds=round(time.time() - started, 3))
        return dict(result)

    def note(self, **values: Any) -> None:
        """Adds facts to the manifest."""
        self.manifest.update(values)
        self._save()

    def set_state(self, state: str) -> None:
        """``running``, ``done``, ``failed`` or ``interrupted``; an end gets its time."""
        self.manifest["state"] = state
        self.manifest["ended"] = None if state == "running" else _iso(time.time())
        if state == "running":
            self.manifest.pop("error", None)  # of an earlier try
        self._save()

    def _mark(self, step: str, **values: Any) -> None:
        self.manifest["steps"].setdefault(step, {}).update(values)
        self._save()

    def _save(self) -> None:
        files.write_json(self.path / "manifest.json", self.manifest)


def is_held(folder: Path) -> bool:
    """Whether a process is working on the run in ``folder``, by its lock."""
    lock = _lock(folder)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    lock.release()
    return False


def _lock(folder: Path) -> FileLock:
    return FileLock(folder / ".lock")


def list_runs(domain: str | None = None) -> list[dict[str, Any]]:
    """Manifests of all runs (of one domain), newest first; ``path`` is added to each."""
    root = runs_root(create=False)
    found = []
    for path in root.glob(f"{domain or '[!.]*'}/*/manifest.json"):
        try:
            found.append({**files.read_json(path), "path": str(path.parent)})
        except ValueError:
            continue  # not ours: a run's manifest is never half-written
    return sorted(found, key=lambda manifest: (manifest["started"], manifest["run"]), reverse=True)


def _locate(run: str) -> Path:
    as_path = Path(run).expanduser()
    if (as_path / "manifest.json").is_file():
        return as_path.absolute()
    known = {manifest["run"]: Path(manifest["path"]) for manifest in list_runs()}
    if run == "last" and known:
        return next(iter(known.values()))
    if run in known:
        return known[run]
    remedy = did_you_mean(run, list(known)[:8]) if known else "Start one with `casebook run DOMAIN`."
    raise InputError(f"There is no run {run!r} under {runs_root(create=False)}.", remedy)


def _new_manifest(run: str, domain: Domain, config: DomainConfig, now: datetime) -> dict[str, Any]:
    return {
        "run": run,
        "domain": domain.name,
        "title": domain.title,
        "state": "running",
        "started": now.isoformat(timespec="seconds"),
        "ended": None,
        "source": config.source,
        "synthetic": None,
        "seeds": domain.members(config),
        "code_version": code_version(domain),
        "packages": {name: _version(name) for name in PACKAGES},
        "host": {"name_hash": fingerprint.of(socket.gethostname()), "cpus": os.cpu_count()},
        "device": {},
        "inputs": {},
        "cost": {},
        "steps": {},
    }


def code_version(domain: Domain) -> str:
    """Hash of the code that makes a domain's numbers: its package and the shared layer."""
    return fingerprint.of(fingerprint.of_package("shared"), fingerprint.of_package(type(domain).__module__))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
