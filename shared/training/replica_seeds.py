"""Each replica draws masks of its own.

The state of a Keras seed generator is mirrored, so all replicas draw the same numbers: the first
example of every replica's share would lose the same units, and a dropout over four replicas
would have a quarter of the masks. Here the replica's id is mixed into what is drawn, and never into
what is stored: the states stay equal on all replicas, and a checkpoint resumes to the bit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

_STRIDE = 0x9E3779B1
"""Odd, near 2^32 / golden ratio: the seeds of neighbouring replicas lie far apart (Knuth, TAOCP 3, 6.4)."""

_lock = threading.Lock()
_active = 0
_plain = keras.random.SeedGenerator.next


@contextmanager
def distinct_on_replicas() -> Iterator[None]:
    """While it is open, a seed drawn by a Keras seed generator depends on the replica that draws it.

    Open it inside the function that is traced, around ``strategy.run``: the graph keeps what was
    traced. Outside a replica's context, under one replica, and on the first of several, what is
    drawn stays as it was. It holds for every seed generator and touches no layer, so that models save,
    export and copy as ever; Mirrored replicas are traced in threads, so it holds in all threads.
    """
    global _active
    with _lock:
        _active += 1
        keras.random.SeedGenerator.next = _next
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if _active == 0:
                keras.random.SeedGenerator.next = _plain


@contextmanager
def as_replica(index: int) -> Iterator[None]:
    """Draws outside of any strategy what replica ``index`` would draw: to look at its share alone."""
    previous = getattr(_assumed, "index", None)
    _assumed.index = index
    try:
        with distinct_on_replicas():
            yield
    finally:
        _assumed.index = previous


_assumed = threading.local()


def _next(generator: Any, ordered: bool = True) -> Any:
    seed = _plain(generator, ordered)
    replica = _replica()
    if replica is None:
        return seed
    # On TPUs the id is a tensor. The second number counts the draws and stays as it is.
    shift = tf.cast(replica, seed.dtype) * tf.cast(_STRIDE, seed.dtype)
    return seed + tf.stack([shift, tf.zeros_like(shift)])


def _replica() -> Any:
    """The id to mix in; None where there is nothing to tell apart."""
    assumed = getattr(_assumed, "index", None)
    if assumed is not None:
        return assumed or None
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return None
    return context.replica_id_in_sync_group
