"""What watches a phase of training, and may stop it; nothing of it changes the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from shared.training.profiling import Profile
from shared.training.recorder import Recorder
from shared.training.sampling import Sampler
from shared.training.stopping import Stop

PROFILED = {"first": 2, "calls": 3}
"""Calls into the graph that a profile shows: not the first ones, which compile and fill buffers."""


@dataclass(frozen=True)
class Watch:
    """See the module.

    Attributes:
        callbacks: The person's Keras callbacks.
        recorder: Writes the history; its rows before the phase are kept.
        sampler: Of host and device; opened by the caller.
        profile: Of a few calls.
        stop: Asked, the training writes a checkpoint after its next call into the graph, and leaves.
    """

    callbacks: Sequence[keras.callbacks.Callback] = ()
    recorder: Recorder = field(default_factory=lambda: Recorder(None, every_steps=0, tensorboard=False))
    sampler: Sampler = field(default_factory=lambda: Sampler(0.0))
    profile: Profile = field(default_factory=lambda: Profile(None, first=0, calls=0))
    stop: Stop = field(default_factory=Stop)


def allocator_peak(device: str, replicas: int) -> Callable[[], int] | None:
    """TensorFlow's account of a GPU's memory, for the sampler; None where there is no GPU.

    Returns:
        A function that gives the peak on the fullest GPU since its last call, in bytes.
    """
    if device not in ("gpu", "gpus"):
        return None

    def peak() -> int:
        import tensorflow as tf

        names = [f"GPU:{index}" for index in range(replicas)]
        infos: list[Any] = [tf.config.experimental.get_memory_info(name) for name in names]
        for name in names:
            tf.config.experimental.reset_memory_stats(name)
        return int(max(info["peak"] for info in infos))

    return peak
