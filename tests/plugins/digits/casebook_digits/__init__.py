"""Handwritten digits: a whole domain in one file, in a package of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from shared import (
    Answerer,
    DataCard,
    Domain,
    DomainConfig,
    Evaluation,
    Fold,
    Phase,
    Predictions,
    Score,
    Source,
    Summary,
)
from shared.errors import InputError


class DigitsConfig(DomainConfig):
    source: str = Field(
        "digits", description="digits (scikit-learn's 1,797 scans), synthetic, or an .npz file."
    )
    units: int = Field(64, ge=1, description="Units of the hidden layer.")


class Digits(Domain):
    name = "digits"
    title = "Handwritten digits, 8 x 8, with a dense network"
    Config = DigitsConfig

    def ingest(self, source: str, config: DigitsConfig, out: Path) -> DataCard:
        if source == "synthetic":
            self.synthesize(out, config, config.train.seed)
            source = str(out / "digits.npz")
        if source == "digits":
            from sklearn.datasets import load_digits

            bunch = load_digits()
            images, labels, synthetic = bunch.images / 16, bunch.target, False
        elif Path(source).suffix == ".npz":
            with np.load(source, allow_pickle=False) as file:
                images, labels, synthetic = file["images"], file["labels"], bool(file["synthetic"])
        else:
            raise InputError(
                f"Expected digits, synthetic or an .npz file, received {source!r}.", "Check --source."
            )
        np.savez(out / "prepared.npz", images=images.astype(np.float32), labels=labels.astype(np.int64))
        return DataCard("Handwritten digits", synthetic, len(labels), facts={"classes": 10})

    def folds(self, prepared: Path, config: DigitsConfig) -> list[Fold]:
        from shared.evaluation.splits import by_group

        keys = np.array([f"digit/{number:05d}" for number in range(len(_read(prepared)[1]))])
        return [Fold("hash", by_group(keys, salt="digits"), keys)]

    def examples(self, prepared: Path, config: DigitsConfig, fold: Fold, split: Any) -> Source:
        import tensorflow as tf

        images, labels = (array[fold.splits[split]] for array in _read(prepared))
        return Source(count=len(labels), dataset=tf.data.Dataset.from_tensor_slices((images, labels)))

    def phases(self, prepared: Path, config: DigitsConfig, fold: Fold) -> list[Phase]:
        import keras

        def build(previous: keras.Model | None) -> keras.Model:
            return keras.Sequential(
                [
                    keras.Input((8, 8)),
                    keras.layers.Flatten(),
                    keras.layers.Dense(config.units, activation="relu"),
                    keras.layers.Dropout(0.2),
                    keras.layers.Dense(10, activation="softmax", dtype="float32"),
                ]
            )

        return [
            Phase("dense", build, keras.losses.sparse_categorical_crossentropy, epochs=30, learning_rate=3e-3)
        ]

    def baselines(self, prepared: Path, config: DigitsConfig, fold: Fold) -> dict[str, Predictions]:
        from sklearn.linear_model import LogisticRegression

        images, labels = _read(prepared)
        flat, train, test = images.reshape(len(labels), -1), fold.splits["train"], fold.splits["test"]
        truth = labels[test].astype(np.float32)
        rate = np.bincount(labels[train], minlength=10) / len(train)
        linear = LogisticRegression(max_iter=200).fit(flat[train], labels[train])
        said = {
            "majority": np.tile(rate, (len(test), 1)),
            "logistic regression": linear.predict_proba(flat[test]),
        }
        return {name: Predictions(fold.keys[test], p.astype(np.float32), truth) for name, p in said.items()}

    def score(self, prepared: Path, config: DigitsConfig) -> Score:
        from shared.evaluation.metrics import accuracy

        return Score("accuracy", accuracy, higher_is_better=True, chance=0.1)

    def evaluate(self, results: Any, config: DigitsConfig, out: Path) -> Evaluation:
        from shared.evaluation.metrics import collapse

        flag = collapse(results[-1].test)
        return Evaluation(flags=[flag] if flag else [], limits=["Eight by eight pixels, one digit an image."])

    def predict(self, model: Any, source: str, config: DigitsConfig, out: Path) -> Summary:
        from shared.runs.predictor import Predictor

        self.ingest(source, config, out)
        values = Predictor.load(model.path)(_read(out)[0])
        np.savetxt(out / "digits.csv", values.argmax(axis=1), fmt="%d", header="digit", comments="")
        return Summary(out / "digits.csv", len(values), f"{len(values)} digits read with {model.label}.")

    def answerer(self, model: Any, config: DigitsConfig) -> Answerer:
        from shared.runs.predictor import Predictor

        predictor = Predictor.load(model.path, warm=True)

        def answer(line: Any) -> dict[str, Any]:
            chances = predictor.one(line.get("image"))
            return {"digit": int(chances.argmax()), "probability": round(float(chances.max()), 6)}

        return Answerer(answer, '{"id": 1, "image": [[0.0, 0.3, ... 8 numbers in 0..1], ... 8 rows]}')

    def synthesize(self, out: Path, config: DigitsConfig, seed: int, *, strength: float = 1.0) -> None:
        draw = np.random.default_rng(seed)
        labels = draw.integers(0, 10, 900)
        # A shape or its negative is the same class: a network can learn that, a line cannot.
        shapes = draw.choice([-1.0, 1.0], (10, 8, 8))[labels] * draw.choice([-1.0, 1.0], (900, 1, 1))
        images = draw.normal(0, 0.6, (900, 8, 8)) + strength * shapes
        out.mkdir(parents=True, exist_ok=True)
        np.savez(out / "digits.npz", images=images, labels=labels, synthetic=True)

    def tiny(self) -> dict[str, Any]:
        return {"source": "synthetic", "units": 32, "train": {"epochs": 3}, "plan": {"batch_size": 32}}


def _read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / "prepared.npz", allow_pickle=False) as file:
        return file["images"], file["labels"]


domain = Digits()
