"""Chest films: DICOM and PNG in, a worklist out, most urgent first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from domains.xray.config import XrayConfig
from shared.contract import (
    Answerer,
    DataCard,
    Domain,
    Evaluation,
    Figure,
    Fold,
    FoldResult,
    Phase,
    Predictions,
    Published,
    Score,
    Source,
    Split,
    Summary,
)


class Xray(Domain):
    """Finds what a label table names on chest films, and orders them by urgency."""

    name = "xray"
    title = "Chest films (DICOM, PNG): findings as calibrated probabilities, and a worklist"
    Config = XrayConfig

    def ingest(self, source: str, config: XrayConfig, out: Path) -> DataCard:
        from domains.xray import ingest

        return ingest.ingest(source, config, out)

    def folds(self, prepared: Path, config: XrayConfig) -> list[Fold]:
        from domains.xray import data

        return data.folds(prepared, config)

    def examples(self, prepared: Path, config: XrayConfig, fold: Fold, split: Split) -> Source:
        from domains.xray import data

        return data.examples(prepared, config, fold, split)

    def phases(self, prepared: Path, config: XrayConfig, fold: Fold) -> list[Phase]:
        from domains.xray import model

        return model.phases(prepared, config, fold)

    def baselines(self, prepared: Path, config: XrayConfig, fold: Fold) -> dict[str, Predictions]:
        from domains.xray import baselines

        return baselines.baselines(prepared, config, fold)

    def score(self, prepared: Path, config: XrayConfig) -> Score:
        from shared.evaluation.metrics import auroc

        return Score("AUROC", auroc, higher_is_better=True, chance=0.5)

    def evaluate(self, results: Sequence[FoldResult], config: XrayConfig, out: Path) -> Evaluation:
        from domains.xray import evaluate

        return evaluate.evaluate(results, config, out)

    def explain(
        self, model: Any, prepared: Path, config: XrayConfig, result: FoldResult, out: Path
    ) -> list[Figure]:
        """Figures that need the model itself: Grad-CAM over confident hits and misses.

        Args:
            model: The trained Keras model of one member.
        """
        from domains.xray import explain

        return explain.figures(model, prepared, config, result, out)

    def predict(self, model: Published, source: str, config: XrayConfig, out: Path) -> Summary:
        from domains.xray import predict

        return predict.predict(model, source, config, out)

    def answerer(self, model: Published, config: XrayConfig) -> Answerer:
        from domains.xray import answer

        return answer.answerer(model, config)

    def synthesize(self, out: Path, config: XrayConfig, seed: int, *, strength: float = 1.0) -> None:
        from domains.xray import synthetic

        section = config.synthetic
        synthetic.write(out, films=section.films, size=section.size, seed=seed, strength=strength)

    def tiny(self) -> dict[str, Any]:
        return {
            "source": "synthetic",
            "film": {"size": 64},
            "synthetic": {"films": 90, "size": 64},
            "model": {
                "backbone": "tiny",
                "weights": "none",
                "unfreeze": 2,
                "head_epochs": 3,
                "tune_epochs": 2,
            },
            "read": {"overlays": 2},
        }


domain = Xray()
