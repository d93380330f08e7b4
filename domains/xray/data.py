"""Prepared films by number: the table, the folds, and the tf.data examples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domains.xray.config import XrayConfig
from shared import files
from shared.contract import SPLITS, Fold, Source, Split
from shared.errors import CasebookError, InputError
from shared.evaluation import splits

FULL = np.float32(65535.0)


@dataclass(frozen=True)
class Prepared:
    """What ingest wrote.

    Attributes:
        films: uint16 ``[rows, size, size]``, read from disk as it is asked for.
        rows: int64 ``[n]``: which film is example i's.
        keys, patients: str ``[n]``, pseudonyms.
        truth: float32 ``[n, labels]`` of 0, 1, NaN.
        acquisition: str ``[n]``: format, syntax, photometric interpretation, bits, view.
        sizes: int64 ``[n, 2]``: height and width of the original.
        labels: Names of the labels.
    """

    folder: Path
    films: np.ndarray
    rows: np.ndarray
    keys: np.ndarray
    patients: np.ndarray
    truth: np.ndarray
    acquisition: np.ndarray
    sizes: np.ndarray
    labels: tuple[str, ...]
    fingerprint: str

    @property
    def size(self) -> int:
        return int(self.films.shape[1])

    def film(self, example: int) -> np.ndarray:
        """Film of an example, float32 ``[size, size]`` in 0..1."""
        return np.asarray(self.films[self.rows[example]], "float32") / FULL


def opened(prepared: Path) -> Prepared:
    """The prepared folder, read lazily."""
    meta = files.read_json(prepared / "meta.json")
    shape = (meta["rows"], meta["size"], meta["size"])
    films = np.memmap(prepared / "films.u16", dtype="<u2", mode="r", shape=shape)
    with np.load(prepared / "table.npz", allow_pickle=False) as table:
        columns = {name: table[name] for name in table.files}
    return Prepared(
        prepared,
        films,
        columns["rows"],
        columns["keys"],
        columns["patients"],
        columns["labels"],
        columns["acquisition"],
        columns["sizes"],
        tuple(meta["labels"]),
        meta["fingerprint"],
    )


def folds(prepared: Path, config: XrayConfig) -> list[Fold]:
    """One fold: patients divided by a permanent hash of their pseudonym.

    Raises:
        InputError: Too few patients, or no label has both answers in train, validation and test.
    """
    data = opened(prepared)
    divided = splits.by_group(data.patients, salt=config.split.salt, shares=config.split.shares)
    _require_disjoint(data.patients, divided)
    both = {
        split: {
            name
            for column, name in enumerate(data.labels)
            if {0.0, 1.0} <= set(np.unique(data.truth[divided[split], column]).tolist())
        }
        for split in SPLITS
    }
    if not both["train"] & both["test"] & both["validation"]:
        raise InputError(
            "No label has both a yes and a no in each of train, validation and test: "
            + ", ".join(f"{split} {sorted(names) or 'none'}" for split, names in both.items())
            + f" ({len(data.rows)} films of {len(set(data.patients))} patients).",
            "Bring more patients, or change split.shares or split.salt.",
        )
    about = {
        "labels": list(data.labels),
        "split by": f"hash of the patient's pseudonym, salt {config.split.salt!r}",
        "patients": {split: len(np.unique(data.patients[divided[split]])) for split in SPLITS},
        "films": {split: len(divided[split]) for split in SPLITS},
    }
    return [Fold("patients", divided, data.keys, groups=data.patients, about=about)]


def _require_disjoint(patients: np.ndarray, divided: Any) -> None:
    seen: dict[str, str] = {}
    for split, numbers in divided.items():
        for patient in np.unique(patients[numbers]):
            if seen.setdefault(patient, split) != split:
                raise CasebookError(f"Patient {patient} is in {seen[patient]} and in {split}.")


def examples(prepared: Path, config: XrayConfig, fold: Fold, split: Split) -> Source:
    """Films float32 ``[size, size, 1]`` in 0..1 with labels float32 ``[labels]``, NaN where unknown."""
    import tensorflow as tf

    from domains.xray import augmentation

    data = opened(prepared)
    numbers = np.asarray(fold.splits[split], "int64")
    shape = (data.size, data.size, 1)

    def read(number: np.ndarray) -> np.ndarray:
        return data.film(int(number))[..., np.newaxis]

    def example(number: Any, truth: Any) -> tuple[Any, Any]:
        film = tf.numpy_function(read, [number], tf.float32, stateful=False)
        return tf.ensure_shape(film, shape), truth

    dataset = tf.data.Dataset.from_tensor_slices((numbers, data.truth[numbers])).map(example)
    augment = augmentation.augment if config.model.augment else None
    return Source(len(numbers), dataset=dataset, augment=augment)
