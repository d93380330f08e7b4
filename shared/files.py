"""Writing files so that a reader never meets half of one: temp file, fsync, rename."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; on success it is synced and renamed over it.

    The temporary name keeps the suffix, because writers choose their format by it.
    On an exception the temporary file is removed and ``path`` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes a rename in ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes ``value`` as indented JSON. NaN becomes null: JSON has no NaN."""
    write_text(path, json.dumps(plain(value), indent=2, sort_keys=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    """Writes arrays without pickle: object arrays are refused by numpy on reading."""
    import numpy as np

    with atomic(path) as temporary:
        np.savez(temporary, **arrays)  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """``value`` in JSON's own types (numpy scalars, arrays, paths, tuples, NaN are converted)."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's arrays and scalars, without importing numpy
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (str, int, bool)) or value is None:
        return value
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    return str(value)
