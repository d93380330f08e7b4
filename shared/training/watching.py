"""What watches a phase of training, and may stop it; nothing of it changes the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import keras

from shared.training.stopping import Stop


@dataclass(frozen=True)
class Watch:
    """See the module.

    Attributes:
        callbacks: The person's Keras callbacks.
        stop: Asked, the training writes a checkpoint after its next call into the graph, and leaves.
    """

    callbacks: Sequence[keras.callbacks.Callback] = ()
    stop: Stop = field(default_factory=Stop)
