"""The TFDS builder holds the same films and split as the pipeline, and needs no network."""

from __future__ import annotations

import numpy as np
import pytest

from domains.xray import data, domain
from domains.xray.config import XrayConfig


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_records_hold_the_same_films_labels_and_split(tmp_path):
    from domains.xray.films.builder import Films

    config = XrayConfig.model_validate({"film": {"size": 32}, "synthetic": {"films": 60, "size": 48}})
    (tmp_path / "prepared").mkdir()
    domain.ingest("synthetic", config, tmp_path / "prepared")
    builder = Films(prepared=tmp_path / "prepared", settings=config, data_dir=str(tmp_path / "tfds"))
    builder.download_and_prepare()
    films, fold = data.opened(tmp_path / "prepared"), domain.folds(tmp_path / "prepared", config)[0]
    for split, numbers in fold.splits.items():
        records = list(builder.as_dataset(split=split).as_numpy_iterator())
        assert [record["key"].decode() for record in records] == fold.keys[numbers].tolist()
        stored = np.stack([record["film"][..., 0] for record in records])
        assert np.array_equal(stored, films.films[films.rows[numbers]])
        labels = np.stack([record["labels"] for record in records])
        assert np.array_equal(labels, films.truth[numbers], equal_nan=True)
