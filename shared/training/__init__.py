"""Training: the loop, its checkpoints, and ``fit`` for a person with a Keras model and a tf.data set.

Nothing here is imported before it is asked for: ``import shared.training`` imports no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.training.fitting import Trained as Trained
    from shared.training.fitting import fit as fit
    from shared.training.member import train_member as train_member

_HOME = {"Trained": "fitting", "fit": "fitting", "train_member": "member"}

__all__ = ["Trained", "fit", "train_member"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"shared.training.{_HOME[name]}"), name)
    raise AttributeError(f"module 'shared.training' has no attribute {name!r}; it has {', '.join(__all__)}")
