"""Hashes that decide whether kept work may be used again.

A kept result is valid only for the data, the settings and the *code* that made it. A
task's own body is not its code: a changed helper must change the key too (prefect#23062).
So whole packages are hashed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

from shared.errors import InputError
from shared.files import plain

LENGTH = 16


def of(*values: Any) -> str:
    """Hash of plain values (dicts, lists, numbers, text), 16 hex digits."""
    text = json.dumps([plain(value) for value in values], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def of_file(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:LENGTH]


def of_source(source: str) -> str:
    """Hash of what a source holds: names, sizes and times of its files; a name stands for itself.

    Content is not read: a hospital's folder has terabytes. A changed file changes its time.

    Raises:
        InputError: The source is empty, or looks like a path and nothing is there.
    """
    check_source(source)
    path = Path(source).expanduser()
    if path.is_file():
        status = path.stat()
        return of(str(path.absolute()), status.st_size, status.st_mtime_ns)
    if path.is_dir():
        digest = hashlib.sha256(str(path.absolute()).encode())
        for file in sorted(path.rglob("*")):
            if file.is_file():
                status = file.stat()
                digest.update(f"{file.relative_to(path)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:LENGTH]
    return of(source)


def check_source(source: str) -> None:
    """Refuses at once what can be no source; a word may be the name of an embedded one.

    Raises:
        InputError: The source is empty, or looks like a path and nothing is there.
    """
    if not source.strip():  # a script's unset variable, which as a path would be the current folder
        raise InputError("The source is empty.", "Give --source a file, a folder or the name of a source.")
    path = Path(source).expanduser()
    if not path.exists() and ("/" in source or "\\" in source or path.suffix):
        raise InputError(f"There is no file or folder {source}.", "Check --source.")


@cache
def of_package(name: str) -> str:
    """Hash of every ``.py`` file of the package that module ``name`` is, or belongs to.

    Kept for the life of the process: code that has been imported does not change in it.
    """
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is None and "." in name:
        spec = importlib.util.find_spec(name.rpartition(".")[0])
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}")
    if spec.submodule_search_locations:
        roots = [Path(location) for location in spec.submodule_search_locations]
        files = sorted(file for root in roots for file in root.rglob("*.py"))
    else:
        files = [Path(str(spec.origin))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:LENGTH]
