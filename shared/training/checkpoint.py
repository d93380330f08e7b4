"""Checkpoints: every variable of model and optimizer in one npz, found again by path.

Keras's own formats leave out the state of its seed generators (dropout, augmentation layers), so
that a resumed training diverges; ``model.variables`` has it, so this has it. A file is written
beside, synced and renamed; the last two are kept, and one that cannot be read falls back to the
one before.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from shared import files
from shared.errors import CasebookError

log = logging.getLogger("casebook.training")

_META = "meta.json"
UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
"""What numpy raises for a file that is cut, empty, damaged or something else."""


def named(variables: Iterable[Any]) -> dict[str, Any]:
    """Variables by path, in order. Equal paths, of twin sub-models, are told apart as ``path#2``."""
    found: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for variable in variables:
        seen[variable.path] += 1
        count = seen[variable.path]
        found[variable.path if count == 1 else f"{variable.path}#{count}"] = variable
    return found


def values(variables: Iterable[Any]) -> dict[str, np.ndarray]:
    """Copies of the variables' values, by path."""
    return {path: np.array(variable.numpy()) for path, variable in named(variables).items()}


def assign(variables: Iterable[Any], arrays: Mapping[str, np.ndarray], what: str) -> None:
    """Sets the variables to ``arrays``, on every replica.

    Found by path. Where the paths differ, because Keras counted its automatic names on, the
    order decides, if shapes and the names without their counts agree.

    Args:
        what: Where the arrays come from, for the error.

    Raises:
        CasebookError: They belong to another model; names the first difference.
    """
    targets = named(variables)
    if set(targets) == set(arrays):
        pairs = [(path, variable, arrays[path]) for path, variable in targets.items()]
    else:
        theirs = list(arrays.items())
        for (path, variable), (other, array) in zip(targets.items(), theirs, strict=False):
            if _uncounted(path) != _uncounted(other) or tuple(variable.shape) != array.shape:
                raise _another_model(what, f"{path} {tuple(variable.shape)}", f"{other} {array.shape}")
        if len(theirs) != len(targets):
            raise _another_model(what, f"{len(targets)} variables", f"{len(theirs)}")
        pairs = [
            (path, variable, array)
            for (path, variable), (_, array) in zip(targets.items(), theirs, strict=True)
        ]
    for path, variable, array in pairs:
        if tuple(variable.shape) != array.shape:
            raise _another_model(what, f"{path} {tuple(variable.shape)}", f"{path} {array.shape}")
    for _, variable, array in pairs:
        variable.assign(array)


def _uncounted(path: str) -> str:
    """``sequential_3/dense_6/kernel`` as ``sequential/dense/kernel``."""
    return re.sub(r"_\d+(?=[/_]|$)", "", path)


def _another_model(what: str, expected: str, received: str) -> CasebookError:
    return CasebookError(
        f"{what} belongs to another model: expected {expected}, received {received}.",
        "Start a new run: the model or its code has changed since.",
    )


def write_weights(path: Path, model: Any) -> None:
    """Writes every variable of the model into an npz, by variable path."""
    files.write_npz(path, **_storable(values(model.variables)))


def read_weights(path: Path, model: Any) -> None:
    """Sets the model's variables to what :func:`write_weights` wrote.

    Raises:
        CasebookError: The file cannot be read, or belongs to another model.
    """
    assign(model.variables, read_arrays(path), str(path))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What :func:`write_weights` wrote, by variable path.

    Raises:
        CasebookError: The file cannot be read.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return _restored({name: stored[name] for name in stored.files})
    except UNREADABLE as error:
        raise CasebookError(f"The weights {path} cannot be read: {_why(error)}.", "Train again.") from error


def _why(error: Exception) -> str:
    """What a person should know of it; numpy's advice for a file that it does not know is to trust it."""
    return "it is no npz file" if "pickle" in str(error) else str(error) or type(error).__name__


@dataclass(frozen=True)
class Checkpoint:
    """A moment of training.

    Attributes:
        groups: For ``"model"``, ``"optimizer"`` and ``"best"`` the arrays by variable path; ``best`` is
            absent where the model itself is the best so far.
        meta: Plain data: epoch, step, monitor, history and what else the loop keeps.
    """

    groups: Mapping[str, Mapping[str, np.ndarray]]
    meta: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of one phase: ``<name>-<epoch>-<step>.npz`` in a folder, the last two kept.

    Args:
        folder: Made when the first is saved.
        name: Of the phase, usable in a file's name.
        keep: How many are kept.
    """

    def __init__(self, folder: Path, name: str, keep: int = 2) -> None:
        self.folder, self.name, self.keep = folder, name, keep

    def save(self, checkpoint: Checkpoint) -> Path:
        epoch, step = int(checkpoint.meta["epoch"]), int(checkpoint.meta["step"])
        path = self.folder / f"{self.name}-{epoch:05d}-{step:08d}.npz"
        files.write_npz(path, **_flat(checkpoint))
        for old in self._paths()[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def newest(self) -> Checkpoint | None:
        """The newest that can be read; a warning names each that cannot, and says where none can.

        Those are set aside as ``.unreadable``: by name they are newer than what is saved next, which
        would be taken for old.
        """
        paths = self._paths()
        for path in paths:
            try:
                return _read(path)
            except UNREADABLE as error:
                log.warning(
                    "The checkpoint %s cannot be read (%s); trying the one before.", path.name, _why(error)
                )
                with contextlib.suppress(OSError):
                    path.rename(path.with_suffix(".unreadable"))
        if paths:
            log.warning("No checkpoint of %s is left that can be read: it begins anew.", self.name)
        return None

    def clear(self) -> None:
        for path in self._paths():
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        """Newest first: the names sort as the moments do."""
        return sorted(self.folder.glob(f"{self.name}-*.npz"), reverse=True)


def packed(checkpoint: Checkpoint) -> bytes:
    """The checkpoint as the bytes of its file, to send to another process."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **_flat(checkpoint))
    return buffer.getvalue()


def unpacked(data: bytes) -> Checkpoint:
    """The inverse of :func:`packed`."""
    return _read_from(io.BytesIO(data))


def _flat(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    arrays = {
        f"{group}/{name}": array
        for group, members in checkpoint.groups.items()
        for name, array in members.items()
    }
    meta = json.dumps(files.plain(checkpoint.meta), allow_nan=False)
    return {_META: np.frombuffer(meta.encode(), np.uint8), **_storable(arrays)}


def _read(path: Path) -> Checkpoint:
    with path.open("rb") as file:
        return _read_from(file)


def _read_from(file: IO[bytes]) -> Checkpoint:
    groups: dict[str, dict[str, np.ndarray]] = {}
    with np.load(file, allow_pickle=False) as stored:
        meta = json.loads(stored[_META].tobytes().decode())
        arrays = _restored({name: stored[name] for name in stored.files if name != _META})
    for name, array in arrays.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = array
    return Checkpoint(groups, meta)


_BFLOAT16 = "::bfloat16"


def _storable(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """npz knows no bfloat16: it is stored as its bits under a marked name."""
    return {
        name + _BFLOAT16 if array.dtype.name == "bfloat16" else name: (
            array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        )
        for name, array in arrays.items()
    }


def _restored(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    result = {}
    for name, array in arrays.items():
        if name.endswith(_BFLOAT16):
            import ml_dtypes

            name, array = name.removesuffix(_BFLOAT16), array.view(ml_dtypes.bfloat16)
        result[name] = array
    return result
