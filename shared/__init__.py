"""What every domain stands on: the measured plan, the training loop, leak-free evaluation, runs.

The names below are the public surface. They are loaded on first use, so that
``import shared`` costs milliseconds and imports no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared import plan as plan
    from shared import training as training
    from shared.config import DomainConfig as DomainConfig
    from shared.contract import Answerer as Answerer
    from shared.contract import DataCard as DataCard
    from shared.contract import Domain as Domain
    from shared.contract import Evaluation as Evaluation
    from shared.contract import Fold as Fold
    from shared.contract import Phase as Phase
    from shared.contract import Predictions as Predictions
    from shared.contract import Score as Score
    from shared.contract import Source as Source
    from shared.contract import Summary as Summary

_HOME = {
    "Answerer": "shared.contract",
    "DataCard": "shared.contract",
    "Domain": "shared.contract",
    "DomainConfig": "shared.config",
    "Evaluation": "shared.contract",
    "Fold": "shared.contract",
    "Phase": "shared.contract",
    "Predictions": "shared.contract",
    "Score": "shared.contract",
    "Source": "shared.contract",
    "Summary": "shared.contract",
}
_MODULES = ("plan", "training")

__all__ = [*_HOME, *_MODULES]  # noqa: PLE0604  (every item is a string)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"shared.{name}")
    raise AttributeError(f"module 'shared' has no attribute {name!r}; it has {', '.join(__all__)}")
