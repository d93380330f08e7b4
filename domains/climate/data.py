"""Prepared data: every map in one array, numbered, and the examples made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from domains.climate import moments
from domains.climate.config import ClimateConfig
from domains.climate.grid import Grid
from domains.climate.moments import Frequency
from shared import files
from shared.errors import InputError

FIELDS, INDEX, META = "fields.npy", "index.npz", "meta.json"


@dataclass(frozen=True, eq=False)
class Prepared:
    """All maps of all scenarios, scenario by scenario and ascending in time.

    Attributes:
        fields: float32 ``[n, lat, lon]``, memory-mapped.
        scenario: Number of each map's scenario, int64 ``[n]``.
        parts: Year, month, day, hour, int64 ``[n, 4]``.
        steps: Number of its step within the scenario, int64 ``[n]``.
        meta: What ingest wrote: names, units, calendar, ...
    """

    fields: np.ndarray
    scenario: np.ndarray
    parts: np.ndarray
    steps: np.ndarray
    meta: dict[str, Any]

    @classmethod
    def load(cls, prepared: Path) -> Prepared:
        fields = np.load(prepared / FIELDS, mmap_mode="r", allow_pickle=False)
        with np.load(prepared / INDEX, allow_pickle=False) as index:
            return cls(
                fields,
                index["scenario"],
                index["parts"],
                index["steps"],
                files.read_json(prepared / META),
            )

    def save(self, out: Path) -> None:
        with files.atomic(out / FIELDS) as temporary:
            np.save(temporary, self.fields)
        files.write_npz(out / INDEX, scenario=self.scenario, parts=self.parts, steps=self.steps)
        files.write_json(out / META, self.meta)

    @property
    def grid(self) -> Grid:
        return Grid.from_dict(self.meta["grid"])

    @property
    def frequency(self) -> Frequency:
        return Frequency(**self.meta["frequency"])

    @property
    def scenarios(self) -> list[str]:
        return list(self.meta["scenarios"])

    def labels(self) -> np.ndarray:
        """``"E1/2010"`` of each map, str ``[n]``."""
        names = moments.labels(self.parts, self.frequency)
        return np.array([f"{self.scenarios[s]}/{name}" for s, name in zip(self.scenario, names, strict=True)])

    def until(self, moment: str) -> Prepared:
        """What was known at an ISO date: later maps are gone."""
        kept = moments.dates(self.parts) <= np.datetime64(moment)
        return replace(
            self,
            fields=self.fields[kept],
            scenario=self.scenario[kept],
            parts=self.parts[kept],
            steps=self.steps[kept],
        )


@dataclass(frozen=True, eq=False)
class Examples:
    """The numbered examples of a task.

    Attributes:
        target: Row of the map to predict, int64 ``[n]``.
        start: First row of its history, int64 ``[n]``; for downscaling the target itself.
        history: Rows of history; 1 for downscaling.
        keys: str ``[n]``.
    """

    target: np.ndarray
    start: np.ndarray
    history: int
    keys: np.ndarray


def numbered(data: Prepared, config: ClimateConfig) -> Examples:
    """Every example that the data hold, in the order of the maps.

    Raises:
        InputError: No scenario is as long as one window.
    """
    labels = data.labels()
    rows = np.arange(len(labels))
    if config.task == "downscaling":
        return Examples(rows, rows, 1, labels)
    history = data.frequency.steps(config.forecast.history)
    lead = data.frequency.steps(config.forecast.lead)
    reach = history + lead - 1
    target = rows[reach:]
    start = target - reach
    # Rows ascend in steps of 1 at least: the same distance in rows and steps means no gap.
    exact = (data.scenario[target] == data.scenario[start]) & (
        data.steps[target] - data.steps[start] == reach
    )
    if not exact.any():
        raise InputError(
            f"No scenario has {reach + 1} maps in a row, which a history of {config.forecast.history} and a "
            f"lead of {config.forecast.lead} need.",
            "Set a shorter forecast.history, or give longer series.",
        )
    target, start = target[exact], start[exact]
    ahead = data.frequency.duration(lead)
    # The lead is part of the name: the same year downscaled is another example.
    return Examples(target, start, history, np.array([f"{labels[row]} ({ahead} ahead)" for row in target]))
