"""Climate: fine maps from coarse ones (downscaling), or the coming year's map (forecast).

Reads NetCDF and Zarr with CF names, splits by scenario and year without leaking, trains a
small convolutional network beside honest baselines and writes CF NetCDF.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domains.climate.config import ClimateConfig
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


class Climate(Domain):
    name = "climate"
    title = "Downscale climate maps, or forecast the next year's, with a CNN on NetCDF or Zarr."
    Config = ClimateConfig

    def ingest(self, source: str, config: ClimateConfig, out: Path) -> DataCard:
        from domains.climate.ingest import ingest

        return ingest(source, config, out)

    def folds(self, prepared: Path, config: ClimateConfig) -> list[Fold]:
        from domains.climate.data import Prepared
        from domains.climate.splits import fold

        return [fold(Prepared.load(prepared), config)]

    def examples(self, prepared: Path, config: ClimateConfig, fold: Fold, split: Split) -> Source:
        from domains.climate.data import Prepared
        from domains.climate.model import source

        return source(Prepared.load(prepared), config, fold, split)

    def phases(self, prepared: Path, config: ClimateConfig, fold: Fold) -> list[Phase]:
        from domains.climate.data import Prepared
        from domains.climate.model import phases

        return phases(Prepared.load(prepared), config, fold)

    def baselines(self, prepared: Path, config: ClimateConfig, fold: Fold) -> dict[str, Predictions]:
        from domains.climate import baselines
        from domains.climate.data import Prepared, numbered

        data = Prepared.load(prepared)
        rows = numbered(data, config).target[fold.splits["test"]]
        if config.task == "downscaling":
            said = baselines.downscaling(data, config, fold)
            truth = baselines.pairs(data, config, rows)[0].fine
        else:
            said = baselines.forecast(data, config, fold)
            truth = data.fields[rows]
        return baselines.as_predictions(said, fold, truth)

    def score(self, prepared: Path, config: ClimateConfig) -> Score:
        from domains.climate.data import Prepared
        from domains.climate.evaluate import score_on

        data = Prepared.load(prepared)
        grid = data.grid
        if config.task == "downscaling":
            grid = grid.cropped(config.downscaling.factor)
        return score_on(grid, data.meta["unit"])

    def evaluate(self, results: Sequence[FoldResult], config: ClimateConfig, out: Path) -> Evaluation:
        from domains.climate.evaluate import evaluate

        return evaluate(results, config, out)

    def predict(self, model: Published, source: str, config: ClimateConfig, out: Path) -> Summary:
        from domains.climate.predict import predict

        return predict(model, source, config, out)

    def answerer(self, model: Published, config: ClimateConfig) -> Answerer:
        from domains.climate.answer import answerer

        return answerer(model, config)

    def synthesize(self, out: Path, config: ClimateConfig, seed: int, *, strength: float = 1.0) -> None:
        from domains.climate.synthetic import write

        write(out, seed=seed, strength=strength)

    def tiny(self) -> dict[str, Any]:
        return {
            "source": "synthetic",
            "train": {"epochs": 25, "members": 1},
            "plan": {"seconds": 5.0, "max_batch_size": 16},
            "downscaling": {"width": 16, "depth": 1, "features": 8},
            "gate": {"resamples": 200},
        }

    def inputs_as_of(
        self, prepared: Path, config: ClimateConfig, moment: str | None
    ) -> tuple[np.ndarray, np.ndarray] | None:
        if config.task == "downscaling":
            return None  # each map is its own input; nothing is computed along time
        import numpy as np

        from domains.climate.data import Prepared, numbered

        data = Prepared.load(prepared)
        known = data if moment is None else data.until(moment)
        examples = numbered(known, config)
        rows = examples.start[:, None] + np.arange(examples.history)
        return examples.keys, np.asarray(known.fields[rows])


domain = Climate()
