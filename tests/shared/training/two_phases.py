"""A domain of two phases, a head on frozen features and then all of it, small enough to train in a second.

Run as a program it trains one member: ``python two_phases.py FOLDER [MILLISECONDS]``; with the second
argument every report of progress takes that long, so that there is time to kill it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from shared import contract, progress
from shared.config import DomainConfig
from shared.contract import Fold, Phase, Source, Split
from shared.plan import ExecutionPlan

COUNT = 60
PLAN = ExecutionPlan(batch_size=8, steps_per_call=2)


class TwoPhases(contract.Domain):
    name = "two-phases"
    title = "A head on frozen features, then all of it"
    Config = DomainConfig

    def folds(self, prepared: Path, config: Any) -> list[Fold]:
        positions = np.arange(COUNT)
        splits: dict[Split, np.ndarray] = {
            "train": positions[:40],
            "validation": positions[40:50],
            "test": positions[50:],
        }
        keys = np.array([f"case-{number:02d}" for number in positions])
        groups = np.array([f"patient-{number // 2}" for number in positions])
        return [Fold("only", splits, keys, groups)]

    def examples(self, prepared: Path, config: Any, fold: Fold, split: Split) -> Source:
        import tensorflow as tf

        rng = np.random.default_rng(0)
        x = rng.normal(size=(COUNT, 4)).astype(np.float32)
        y = (x[:, :1] > 0).astype(np.float32)
        chosen = fold.splits[split]
        return Source(
            len(chosen),
            dataset=tf.data.Dataset.from_tensor_slices((x[chosen], y[chosen])),
            augment=lambda x, seed: x + 0.1 * tf.random.stateless_normal([4], seed),
        )

    def phases(self, prepared: Path, config: Any, fold: Fold) -> list[Phase]:
        import keras

        def head(previous: keras.Model | None) -> keras.Model:
            features = keras.Sequential(
                [keras.layers.Input((4,)), keras.layers.Dense(6, activation="relu")], name="features"
            )
            features.trainable = False
            inputs = keras.Input((4,))
            x = keras.layers.Dropout(0.2)(features(inputs))
            return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))

        def everything(previous: keras.Model | None) -> keras.Model:
            assert previous is not None
            previous.get_layer("features").trainable = True
            return previous

        loss = keras.losses.binary_crossentropy
        return [
            Phase("head", head, loss, epochs=2, learning_rate=0.02),
            Phase("all", everything, loss, epochs=3, learning_rate=0.01),
        ]

    def ingest(self, *args, **kwargs): ...
    def baselines(self, *args, **kwargs): ...
    def score(self, *args, **kwargs): ...
    def evaluate(self, *args, **kwargs): ...
    def predict(self, *args, **kwargs): ...
    def synthesize(self, *args, **kwargs): ...


class Entry:
    """Stands for the entry point."""

    value = "two_phases:domain"

    def load(self) -> contract.Domain:
        return TwoPhases()


def register() -> None:
    contract._registered = lambda: {"two-phases": Entry()}  # type: ignore[assignment]


def train(folder: Path, **kwargs) -> dict[str, Any]:
    from shared.training.member import train_member

    settings = {"accelerator": {"device": "cpu"}}
    return train_member("two-phases", ".", settings, 0, 7, PLAN.to_dict(), str(folder), **kwargs)


if __name__ == "__main__":
    register()
    pause = float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.0

    def tell(report: progress.Progress) -> None:
        print(report.label, report.done, flush=True)
        time.sleep(pause)

    with progress.listening(tell):
        train(Path(sys.argv[1]))
