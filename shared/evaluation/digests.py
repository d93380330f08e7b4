"""Which inputs are the same: a hash of each example's x."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shared.contract import Source


def digests(source: Source, batch: int = 256) -> np.ndarray:
    """A hash of each example's input, str ``[count]``, in order; empty for an input without variation.

    A constant input (a stale price, an empty picture) tells nothing of its neighbour, so
    that two of them are no copies. Needs TensorFlow, which the source brings along.
    """
    found = [_digest(x) for x in _inputs(source, batch)]
    return np.array(found, dtype=str)


def _inputs(source: Source, batch: int) -> Iterator[Any]:
    if source.dataset is not None:
        for example in source.dataset.as_numpy_iterator():
            yield example[0]
        return
    gather = source.gather
    assert gather is not None
    for start in range(0, source.count, batch):
        positions = np.arange(start, min(start + batch, source.count), dtype=np.int64)
        x = gather(positions)[0]
        parts = (
            {name: np.asarray(part) for name, part in x.items()} if isinstance(x, Mapping) else np.asarray(x)
        )
        for row in range(len(positions)):
            yield {name: part[row] for name, part in parts.items()} if isinstance(parts, dict) else parts[row]


def _digest(x: Any) -> str:
    parts = [x[name] for name in sorted(x)] if isinstance(x, Mapping) else [x]
    arrays = [np.ascontiguousarray(part) for part in parts]
    if all(array.size == 0 or bool((array == array.flat[0]).all()) for array in arrays):
        return ""
    hashed = hashlib.blake2b(digest_size=16)
    for array in arrays:
        hashed.update(array.tobytes())
    return hashed.hexdigest()
