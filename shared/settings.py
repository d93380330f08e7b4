"""Machine settings: the few things that belong to a machine and not to a run.

They come from environment variables, and from nowhere else:

``CASEBOOK_RUNS``
    Folder of runs, prepared data, plans and the model registry. Default ``./runs``.
``CASEBOOK_PRICE_PER_HOUR``
    What an hour of this machine costs, for the cost line of a run's summary.
``CASEBOOK_LOCKS``
    Folder of the lock by which one run at a time holds the accelerator. Default: the system's
    temporary folder; runs that name another one do not wait for each other.
``CASEBOOK_DEBUG``
    1 shows what TensorFlow and child processes print; ``--debug`` sets it.
``MLFLOW_TRACKING_URI``, ``PREFECT_API_URL``
    As MLflow and Prefect define them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from shared.errors import InputError


def runs_root(*, create: bool = True) -> Path:
    """The folder that holds every run, absolute.

    Raises:
        InputError: The folder cannot be created or written.
    """
    root = Path(os.environ.get("CASEBOOK_RUNS") or "runs").expanduser().absolute()
    if not create:
        return root
    return writable(
        root, "The runs folder", "Set CASEBOOK_RUNS to a folder you may write, or start from another folder."
    )


def prepared_root(domain: str) -> Path:
    """Prepared data of a domain, one folder a fingerprint."""
    return runs_root() / ".prepared" / domain


def plans_root() -> Path:
    """Measured plans, one JSON file a fingerprint."""
    return runs_root() / ".plans"


def locks_root() -> Path:
    """Folder of the machine's locks; made where it is named and missing.

    Raises:
        InputError: The folder cannot be created or written.
    """
    return writable(
        Path(os.environ.get("CASEBOOK_LOCKS") or tempfile.gettempdir()),
        "The folder of locks",
        "Set CASEBOOK_LOCKS to a folder you may write, or unset it.",
    )


def writable(folder: Path, what: str, remedy: str) -> Path:
    """``folder``, made where it is missing, once a file could be written in it.

    Raises:
        InputError: It cannot be made or written; the message begins with ``what``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable-"):
            pass
    except OSError as error:
        raise InputError(f"{what} {folder} cannot be written: {error.strerror or error}.", remedy) from error
    return folder


def tracking_uri() -> str:
    """MLflow's tracking address: the environment's, or a SQLite file in the runs folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs_root() / 'mlflow.db'}"


def price_per_hour() -> float | None:
    """Price of an hour of this machine, or None where nobody set one."""
    text = os.environ.get("CASEBOOK_PRICE_PER_HOUR")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"CASEBOOK_PRICE_PER_HOUR must be a number, received {text!r}.",
            "Give the price of an hour of this machine, e.g. 3.20.",
        ) from None
