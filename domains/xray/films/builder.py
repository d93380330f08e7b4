"""Prepared films as sharded records of TensorFlow Datasets, for who wants to train elsewhere.

The pipeline itself reads ``films.u16``, which is faster on one machine. These records hold the same
films and the same patient split, in files of a size that a cluster reads in parallel::

    builder = Films(prepared=prepared, settings=XrayConfig(), data_dir="/data/tfds")
    builder.download_and_prepare()
    train = builder.as_dataset(split="train")  # {"film": uint16 [s, s, 1], "labels": float32 [l], "key": text}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds

from domains.xray import data
from domains.xray.config import XrayConfig


class Films(tfds.core.GeneratorBasedBuilder):
    """Chest films with labels (NaN where unknown), split by patient.

    Args:
        prepared: Folder that ingest filled; nothing identifying is in it.
        settings: The configuration it was made with, for the split.
        data_dir: Where the records go.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "Films of 16 bits with labels and pseudonymous keys."}
    # Nothing is downloaded. TFDS would look for a file of checksums beside this one, by way of a package
    # (importlib_resources) that it does not require.
    url_infos: ClassVar[dict[str, Any]] = {}

    def __init__(self, *, prepared: Path, settings: XrayConfig, data_dir: str, **rest: Any) -> None:
        self._prepared = data.opened(Path(prepared))
        self._fold = data.folds(Path(prepared), settings)[0]
        super().__init__(data_dir=data_dir, **rest)

    def _info(self) -> tfds.core.DatasetInfo:
        size = self._prepared.size
        return self.dataset_info_from_configs(
            description="Chest films as Casebook prepared them, without names, ids or dates.",
            features=tfds.features.FeaturesDict(
                {
                    "film": tfds.features.Image(
                        shape=(size, size, 1), dtype=np.uint16, encoding_format="png"
                    ),
                    "labels": tfds.features.Tensor(shape=(len(self._prepared.labels),), dtype=np.float32),
                    "key": tfds.features.Text(),
                }
            ),
            supervised_keys=("film", "labels"),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        return {name: self._generate_examples(numbers) for name, numbers in self._fold.splits.items()}

    def _generate_examples(self, numbers: np.ndarray) -> Iterator[tuple[int, dict[str, Any]]]:
        films = self._prepared
        for number in numbers:
            yield (
                int(number),
                {
                    "film": np.asarray(films.films[films.rows[number]], "uint16")[..., np.newaxis],
                    "labels": films.truth[number],
                    "key": str(films.keys[number]),
                },
            )
