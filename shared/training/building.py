"""Networks built over the phases of a training, without the training: seeded alike, whatever ran before."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from shared import files
from shared.contract import Domain, Fold, Phase
from shared.training import checkpoint, warm_start


def rebuild(domain: Domain, prepared: Path, config: Any, fold: Fold, folder: Path) -> keras.Model:
    """See :func:`shared.training.member.rebuild`."""
    seed = int(files.read_json(folder / "done.json")["seed"])
    model = untrained(domain.phases(prepared, config, fold), seed)
    checkpoint.read_weights(folder / "weights.npz", model)
    warm_start.settle(model)
    return model


def untrained(phases: Iterable[Phase], seed: int) -> keras.Model:
    """The last phase's model, built over those of the phases before, untrained."""
    model: keras.Model | None = None
    for index, phase in enumerate(phases):
        reseed(seed, index)
        model = phase.build(model)
    assert model is not None
    return model


def reseed(seed: int, phase: int) -> None:
    """Seeds Python, numpy and TensorFlow for building phase ``phase``, whatever ran before it."""
    keras.utils.set_random_seed(int(np.random.SeedSequence([seed, phase]).generate_state(1)[0]))
    random.seed(seed * 1009 + phase)
