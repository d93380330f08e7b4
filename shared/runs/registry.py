"""Which version of a domain's model is champion: MLflow's registry is the truth about that.

A published run becomes a version of the registered model ``casebook-<domain>``; the alias
``champion`` names the one that predicts. The model itself stays in the run's folder when
the registry is a local SQLite file, and is uploaded when a server is named by
``MLFLOW_TRACKING_URI``. MLflow is imported on first use: it costs seconds.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared import files
from shared.contract import Published
from shared.errors import CasebookError, InputError
from shared.runs import registry_file
from shared.settings import runs_root, tracking_uri

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlflow import MlflowClient

CHAMPION = "champion"
MODEL_CARD = "casebook.json"
"""In every exported model's folder: what ``predict`` must know, beside the weights."""


@dataclass(frozen=True)
class Version:
    """A registered version.

    Attributes:
        number: Counts up in a domain, from 1.
        run: Id of the run that made it.
        path: Folder of the export, on the machine that registered it.
        champion: Whether it is the one that predicts.
        created: When it was registered, in seconds since 1970.
        score: For people, e.g. ``"AUROC 0.92"``.
    """

    domain: str
    number: int
    run: str
    path: Path
    champion: bool
    created: float
    score: str
    synthetic: bool


def track(
    domain: str,
    run: str,
    *,
    settings: Mapping[str, Any],
    metrics: Mapping[str, float],
    epochs: Iterable[tuple[str, int, float]] = (),
    tags: Mapping[str, str],
) -> str:
    """Shows a run in MLflow's tracking; a run of the same name is shown once.

    Args:
        epochs: (metric, step, value) along training.

    Returns:
        MLflow's id of the run.
    """
    from mlflow import entities

    with _reached() as client:
        experiment = _experiment(client, domain)
        found = client.search_runs([experiment], filter_string=f"tags.casebook_run = '{run}'", max_results=1)
        if found and found[0].info.status == "FINISHED":
            return str(found[0].info.run_id)
        if found:  # by a process that was killed: what it had told is told once more, and kept once
            tracked = found[0].info.run_id
        else:
            tagged = {**tags, "casebook_run": run}
            tracked = client.create_run(experiment, run_name=run, tags=tagged).info.run_id
        measured = [(name, 0, value) for name, value in metrics.items()] + list(epochs)
        points = [
            entities.Metric(_allowed(name), value, 0, step)
            for name, step, value in measured
            if math.isfinite(value)
        ]
        parameters = [entities.Param(key, str(value)[:500]) for key, value in settings.items()]
        for start in range(0, len(points), 1000):
            client.log_batch(tracked, metrics=points[start : start + 1000])
        for start in range(0, len(parameters), 100):
            client.log_batch(tracked, params=parameters[start : start + 100])
        client.set_terminated(tracked)
        return str(tracked)


def register(
    domain: str, run: str, model: Path, *, tracked: str, score: str, synthetic: bool, promote_it: bool
) -> Version:
    """Adds a version for ``run`` (once), and makes it champion where ``promote_it``."""
    from mlflow.exceptions import MlflowException

    with _reached() as client:
        name = _name(domain)
        try:
            client.create_registered_model(name, tags={"casebook_domain": domain})
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = [v for v in client.search_model_versions(f"name='{name}'") if v.tags.get("run") == run]
        if found:
            number = int(found[0].version)
        else:
            source = model.absolute().as_uri()
            if not _is_local():
                client.log_artifacts(tracked, str(model), "model")
                source = f"runs:/{tracked}/model"
            number = int(
                client.create_model_version(
                    name,
                    source=source,
                    run_id=tracked,
                    tags={
                        "run": run,
                        "path": str(model),
                        "score": score,
                        "synthetic": str(synthetic).lower(),
                    },
                ).version
            )
    if promote_it:
        promote(domain, number)
    return next(version for version in history(domain) if version.number == number)


def history(domain: str) -> list[Version]:
    """All versions of a domain, newest first; empty where none was registered."""
    if _untouched():
        return []
    with _reached() as client:
        aliases = _aliases(client, domain)
        versions = client.search_model_versions(f"name='{_name(domain)}'")
        return sorted(
            (
                Version(
                    domain=domain,
                    number=int(version.version),
                    run=version.tags.get("run", ""),
                    path=Path(version.tags.get("path", "")),
                    champion=aliases.get(CHAMPION) == int(version.version),
                    created=version.creation_timestamp / 1000,
                    score=version.tags.get("score", ""),
                    synthetic=version.tags.get("synthetic") == "true",
                )
                for version in versions
            ),
            key=lambda version: -version.number,
        )


def promote(domain: str, number: int) -> Version:
    """Makes version ``number`` the champion and remembers the one before, for rollback."""
    version = _version(domain, number)
    with _reached() as client:
        line = _line(client, domain)
        if not line or line[-1] != number:
            client.set_registered_model_tag(_name(domain), "champions", json.dumps([*line, number]))
        client.set_registered_model_alias(_name(domain), CHAMPION, str(number))
    return version


def rollback(domain: str) -> Version:
    """Makes the champion before this one champion again.

    Raises:
        InputError: There was none.
    """
    with _reached() as client:
        line = _line(client, domain)
        if len(line) < 2:
            raise InputError(
                f"There is no earlier champion of {domain} to go back to.",
                f"`casebook model history {domain}` lists the versions; promote one by its number.",
            )
        version = _version(domain, line[-2])
        client.set_registered_model_alias(_name(domain), CHAMPION, str(version.number))
        client.set_registered_model_tag(_name(domain), "champions", json.dumps(line[:-1]))
    return version


def champion(domain: str) -> Version | None:
    """The version that predicts, or None."""
    return next((version for version in history(domain) if version.champion), None)


def published(version: Version) -> Published:
    """A registered version, opened for prediction; fetched from the server where it isn't here."""
    path = version.path
    if not (path / MODEL_CARD).is_file():
        if _is_local():
            raise CasebookError(
                f"{version.domain} v{version.number} was registered from {path}, which is gone.",
                f"Promote another version (`casebook model history {version.domain}`) or train again.",
            )
        path = _fetched(version)
    role = "champion" if version.champion else "not champion"
    return opened(path, f"{version.domain} v{version.number} ({role})")


def opened(path: Path, label: str) -> Published:
    """The exported model in folder ``path``, whatever the registry says of it."""
    try:
        card = files.read_json(path / MODEL_CARD)
        return Published(
            path=path,
            decision=card["decision"],
            config=card["config"],
            label=label,
            synthetic=card["synthetic"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, error) from error


def damaged(model: Path, error: Exception) -> CasebookError:
    """A published model that can no longer be loaded, with the first line of why."""
    why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return CasebookError(
        f"The published model in {model} is damaged or incomplete: {why}",
        "Bring the folder back from a copy, promote another version (`casebook model history DOMAIN`), or train again.",
    )


def _fetched(version: Version) -> Path:
    import mlflow

    target = runs_root() / ".models" / version.domain / str(version.number)
    if not (target / MODEL_CARD).is_file():
        with _reached() as client:
            source = client.get_model_version(_name(version.domain), str(version.number)).source
        target.parent.mkdir(parents=True, exist_ok=True)
        mlflow.artifacts.download_artifacts(source, dst_path=str(target), tracking_uri=tracking_uri())
    found = next(target.rglob(MODEL_CARD), None)
    if found is None:
        raise CasebookError(f"Version {version.number} of {version.domain} holds no {MODEL_CARD}.")
    return found.parent


def _version(domain: str, number: int) -> Version:
    versions = history(domain)
    for version in versions:
        if version.number == number:
            return version
    known = ", ".join(str(version.number) for version in versions) or "none"
    raise InputError(f"{domain} has no version {number}.", f"Versions: {known}.")


def _line(client: MlflowClient, domain: str) -> list[int]:
    """Numbers of the champions so far, the present one last."""
    from mlflow.exceptions import MlflowException

    try:
        text = client.get_registered_model(_name(domain)).tags.get("champions", "[]")
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return []
        raise
    return list(json.loads(text))


def _aliases(client: MlflowClient, domain: str) -> dict[str, int]:
    from mlflow.exceptions import MlflowException

    try:
        return {key: int(value) for key, value in client.get_registered_model(_name(domain)).aliases.items()}
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return {}
        raise


def _experiment(client: MlflowClient, domain: str) -> str:
    name = f"casebook/{domain}"
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    place = (runs_root() / ".mlflow").as_uri() if _is_local() else None
    return str(client.create_experiment(name, artifact_location=place))


@contextmanager
def _reached() -> Iterator[MlflowClient]:
    """The client, with what it raises turned into an error that names the address."""
    client = _client(tracking_uri())
    from mlflow.exceptions import MlflowException

    try:
        yield client
    except MlflowException as error:
        raise CasebookError(
            f"MLflow at {tracking_uri()} did not do what it was asked: {error.message}",
            "Check MLFLOW_TRACKING_URI; unset it to use the SQLite file in the runs folder.",
        ) from error


@cache
def _client(uri: str) -> MlflowClient:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    import logging

    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        registry_file.make(runs_root() / "mlflow.db")
    return MlflowClient(uri)


def _allowed(metric: str) -> str:
    """A metric's name in the characters that MLflow takes.

    >>> _allowed("RMSE (K), 95%")
    'RMSE K 95'
    """
    return re.sub(r"[^\w\-. :/]", "", metric)


def _name(domain: str) -> str:
    return f"casebook-{domain}"


def _is_local() -> bool:
    return tracking_uri().startswith("sqlite:")


def _untouched() -> bool:
    """No registry was ever made here: asking MLflow would create one, for seconds."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return False
    return not (runs_root(create=False) / "mlflow.db").is_file()
