"""Configuration of the climate domain: the shared sections with other defaults, and its own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.config import DomainConfig, PlanSection, Section, TrainSection


class SplitSection(Section):
    """Which scenario and which years go where; all three empty: by a rule that the data card states."""

    train: tuple[str, ...] = Field(
        (), description='Scenarios with years to train on, e.g. ["A1B", "E1 -1999", "E1 2005-2010"].'
    )
    validation: tuple[str, ...] = Field((), description="Scenarios with years for early stopping and tuning.")
    test: tuple[str, ...] = Field((), description="Scenarios with years for the judgement.")


class DownscalingSection(Section):
    factor: int = Field(4, ge=2, le=16, description="Fine cells per coarse cell, along each side.")
    width: int = Field(96, ge=4, description="Channels of the convolutions on the coarse grid.")
    depth: int = Field(2, ge=0, le=8, description="Convolutions; each looks one coarse cell further.")
    features: int = Field(64, ge=1, description="Features from which each cell's detail is composed.")
    dropout: float = Field(0.3, ge=0, lt=1, description="Share of channels dropped in training.")


class ForecastSection(Section):
    history: str = Field("10 years", description="How far back the model looks, with its unit.")
    lead: str = Field("1 year", description="How far ahead it forecasts, with its unit.")
    width: int = Field(16, ge=2, description="Channels of the convolutions.")
    depth: int = Field(2, ge=1, le=8, description="Convolutions.")
    dropout: float = Field(0.2, ge=0, lt=1, description="Share of channels dropped in training.")


class ClimateConfig(DomainConfig):
    """Settings of a climate run.

    Two defaults differ from the other domains' for a reason. The largest batch is 32, because
    a scenario run has a few hundred maps: larger batches would leave a handful of steps an
    epoch. Weight decay is on and three members are averaged, because that is what keeps a
    network from learning 240 maps by heart.
    """

    source: str = Field(
        "iris",
        description="NetCDF or Zarr file, a folder of them, `iris` (the A1B and E1 runs), or `synthetic`.",
    )
    task: Literal["downscaling", "forecast"] = Field(
        "downscaling", description="Fine maps from coarse ones, or the map of a coming year from past ones."
    )
    variable: str = Field("", description="Name or standard_name; empty: the only gridded one in the files.")
    units: str = Field("", description="Units of the variable where a file doesn't state them.")
    calendar: Literal["", "standard", "proleptic_gregorian", "noleap", "360_day"] = Field(
        "", description="Calendar that every file is converted to; empty: they must agree."
    )
    latitude: tuple[float, float] | None = Field(
        None, description="Southern and northern edge of the region, degrees; default: all."
    )
    longitude: tuple[float, float] | None = Field(
        None, description="Western and eastern edge, degrees east, -180..180 or 0..360; default: all."
    )
    split: SplitSection = SplitSection()
    downscaling: DownscalingSection = DownscalingSection()
    forecast: ForecastSection = ForecastSection()
    plan: PlanSection = PlanSection(max_batch_size=32, seconds=30.0)
    train: TrainSection = TrainSection(members=3, weight_decay=0.03, patience=12)
