"""Prepared data, kept by the fingerprint of source, settings and the code that made it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shared import files, fingerprint, worker
from shared.config import DomainConfig
from shared.contract import Domain, find
from shared.errors import CasebookError
from shared.runs.folder import Run, code_version
from shared.settings import prepared_root

log = logging.getLogger("casebook.steps")

_STALE_SECONDS = 86400
NOT_DATA = set(DomainConfig.model_fields) - {"source"}
"""Sections that every domain has, and that cannot change what ingest makes."""


def prepared(domain: Domain, config: DomainConfig) -> Path:
    """The prepared folder of ``config``'s source, made now or kept from before."""
    name = _name(domain, config)
    final = prepared_root(domain.name) / name
    if (final / "card.json").is_file():
        log.info("Prepared data %s is kept from before", name)
        return final
    building = final.with_name(f".{name}-{os.getpid()}-{secrets.token_hex(2)}")
    building.mkdir(parents=True)
    _sweep(final.parent)
    try:
        worker.call(_ingest, domain.name, config.source, config.model_dump(), str(building))
        try:
            building.rename(final)
        except OSError:
            if not (final / "card.json").is_file():
                raise
            # another run prepared the same in the meantime
        files.sync_folder(final.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return final


def again(this: Run, folder: Path) -> Path:
    """``folder``, the data that a run was begun with; where it was deleted since, they are prepared again.

    Raises:
        CasebookError: The same data can no longer be prepared.
    """
    if (folder / "card.json").is_file():
        return folder
    log.warning("The prepared data %s of run %s are gone and are prepared again.", folder.name, this.id)
    begun = this.manifest["inputs"]
    name = _name(this.domain, this.config)
    if name != begun["prepared"] and code_version(this.domain) == this.manifest["code_version"]:
        raise _other_data(this, f"the source {this.config.source} has changed since")
    made = prepared(this.domain, this.config)
    if files.read_json(made / "card.json")["fingerprint"] != begun["data"]:
        raise _other_data(this, f"what {this.config.source} and today's code make is something else")
    return made


def _other_data(this: Run, why: str) -> CasebookError:
    return CasebookError(
        f"Run {this.id} cannot go on: its prepared data were deleted, and {why}.",
        f"Start a new run: `casebook run {this.domain.name}`.",
    )


def _sweep(folder: Path) -> None:
    """Removes what killed preparations left, once nothing in it has changed for a day."""
    for left in folder.glob(".*"):
        with contextlib.suppress(OSError):  # another run sweeps, too
            changed = max(path.stat().st_mtime for path in (left, *left.rglob("*")))
            if left.is_dir() and changed < time.time() - _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _name(domain: Domain, config: DomainConfig) -> str:
    """The fingerprint of everything that makes the prepared data."""
    data = {key: value for key, value in config.model_dump().items() if key not in NOT_DATA}
    return fingerprint.of(domain.name, fingerprint.of_source(config.source), data, code_version(domain))


def still_known(domain: Domain, config: Mapping[str, Any]) -> dict[str, Any]:
    """A kept configuration without sections that this version of the domain no longer has."""
    return {key: value for key, value in config.items() if key in domain.Config.model_fields}


def _ingest(domain: str, source: str, config: Mapping[str, Any], out: str) -> None:
    body = find(domain)
    card = body.ingest(source, body.Config.model_validate(config), Path(out))
    files.write_json(Path(out) / "card.json", asdict(card))
