"""Stocks: will a stock's adjusted close be higher ``horizon`` sessions from now?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domains.stocks.config import StocksConfig
from shared.contract import (
    Answerer,
    DataCard,
    Domain,
    Evaluation,
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

if TYPE_CHECKING:
    import numpy as np


class Stocks(Domain):
    """Daily bars to the probability of a higher close, by an LSTM, walking forward in time."""

    name = "stocks"
    title = "Trend of stocks from daily bars: the probability of a higher close some sessions ahead (LSTM)"
    Config = StocksConfig

    def ingest(self, source: str, config: StocksConfig, out: Path) -> DataCard:
        from domains.stocks import data

        return data.ingest(source, config, out)

    def folds(self, prepared: Path, config: StocksConfig) -> list[Fold]:
        from domains.stocks import data

        return data.folds(prepared, config)

    def examples(self, prepared: Path, config: StocksConfig, fold: Fold, split: Split) -> Source:
        from domains.stocks import data

        return data.examples(prepared, config, fold, split)

    def phases(self, prepared: Path, config: StocksConfig, fold: Fold) -> list[Phase]:
        from domains.stocks import model

        return model.phases(prepared, config, fold)

    def baselines(self, prepared: Path, config: StocksConfig, fold: Fold) -> dict[str, Predictions]:
        from domains.stocks import baselines

        return baselines.baselines(prepared, config, fold)

    def score(self, prepared: Path, config: StocksConfig) -> Score:
        from domains.stocks import data, score

        return score.score(data.folds(prepared, config), config)

    def evaluate(self, results: Sequence[FoldResult], config: StocksConfig, out: Path) -> Evaluation:
        from domains.stocks import evaluate

        return evaluate.evaluate(results, config, out)

    def predict(self, model: Published, source: str, config: StocksConfig, out: Path) -> Summary:
        from domains.stocks import predict

        return predict.predict(model, source, config, out)

    def answerer(self, model: Published, config: StocksConfig) -> Answerer:
        from domains.stocks import answer

        return answer.answerer(model, config)

    def synthesize(self, out: Path, config: StocksConfig, seed: int, *, strength: float = 1.0) -> None:
        from domains.stocks import synthetic

        synthetic.synthesize(out, config, seed, strength=strength)

    def tiny(self) -> dict[str, Any]:
        return {
            "source": "synthetic",
            "synthetic": {"tickers": 2, "sessions": 600},
            "window": {"sessions": 16},
            "folds": {"count": 2, "test_sessions": 80, "validation_sessions": 60},
            "model": {"units": 8},
            "train": {"epochs": 2},
            "plan": {"batch_size": 64, "precision": "float32", "xla": "off"},
            "gate": {"resamples": 200},
        }

    def inputs_as_of(
        self, prepared: Path, config: StocksConfig, moment: str | None
    ) -> tuple[np.ndarray, np.ndarray]:
        from domains.stocks import data

        return data.inputs_as_of(prepared, config, moment)


domain = Stocks()
