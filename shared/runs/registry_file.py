"""The registry's own SQLite file, made whole or not at all.

MLflow makes its tables in dozens of migrations, each committed by itself: killed in their midst it
leaves a file that no later start can open ("duplicate column name"). So they are made in a file beside
it, which gets its name when it is done.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from filelock import FileLock

from shared import files


def make(file: Path) -> None:
    """Makes MLflow's database in ``file``, unless it is there."""
    if file.is_file():
        return
    from mlflow import MlflowClient

    with FileLock(file.with_name(f".{file.stem}.lock")):  # which dies with its holder
        if file.is_file():
            return
        for left in file.parent.glob(f".{file.stem}-*.db*"):
            left.unlink(missing_ok=True)
        # Another name each time: MLflow keeps what it knows of an address for the life of the process.
        building = file.with_name(f".{file.stem}-{secrets.token_hex(4)}.db")
        MlflowClient(f"sqlite:///{building}").search_experiments(max_results=1)
        os.replace(building, file)
        files.sync_folder(file.parent)
