"""New input, scored with the model that stands."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipelines.preparation import still_known
from shared import files, fingerprint, worker
from shared.config import DomainConfig, build, merge
from shared.contract import Domain, Published, Summary, find
from shared.errors import InputError
from shared.runs import registry
from shared.settings import runs_root, writable

log = logging.getLogger("casebook.steps")


def predict(
    domain: str, source: str, config: Mapping[str, Any] | None = None, out: str | None = None
) -> dict[str, Any]:
    """Scores new input with the champion, or with the newest candidate where there is none.

    Args:
        config: Nested differences to the configuration that the model was trained with.
        out: Folder for the output; default ``runs/<domain>/predictions/<time>``.
    """
    body = find(domain)
    model = chosen_model(domain)
    settings = settings_of(body, model, {**(config or {}), "source": source})
    fingerprint.of_source(source)  # a missing path is said before anything is made
    stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = Path(out) if out else runs_root() / domain / "predictions" / stamp
    writable(folder, "The output folder", "Give another --out.")
    log.info("Predicting with %s", model.label)
    summary = worker.call(_predict, domain, model, source, settings.model_dump(), str(folder))
    result = {**files.plain(asdict(summary)), "model": model.label, "synthetic_model": model.synthetic}
    files.write_json(folder / "summary.json", result)
    return result


def settings_of(body: Domain, model: Published, config: Mapping[str, Any]) -> DomainConfig:
    """The configuration that a model was trained with, and over it nested differences."""
    return build(body.Config, base=merge(still_known(body, model.config), config))


def chosen_model(domain: str) -> Published:
    """The champion, or the newest candidate, labelled as such.

    Raises:
        InputError: Nothing was trained yet.
    """
    versions = registry.history(domain)
    standing = next((version for version in versions if version.champion), None)
    if standing is not None:
        return registry.published(standing)
    if not versions:
        raise InputError(
            f"There is no trained {domain} model in {runs_root(create=False)}.",
            f"Train one: `casebook run {domain}`.",
        )
    newest = versions[0]
    found = registry.published(newest)
    return registry.opened(found.path, f"{domain} v{newest.number} (held candidate: there is no champion)")


def _predict(domain: str, model: Published, source: str, config: Mapping[str, Any], out: str) -> Summary:
    body = find(domain)
    return body.predict(model, source, body.Config.model_validate(config), Path(out))
