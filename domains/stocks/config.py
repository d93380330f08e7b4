"""The settings of the stocks domain, with the defaults behind ``casebook run stocks``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.config import DomainConfig, Section, TrainSection


class DataSection(Section):
    tickers: tuple[str, ...] = Field((), description="Use only these tickers of the source; empty: all.")
    calendar: str = Field(
        "XNYS", description="Exchange whose sessions count, as exchange-calendars names it."
    )
    date_format: str = Field(
        "", description="Format of dates as strptime takes it, e.g. %d/%m/%Y; empty: ISO, e.g. 2010-03-01."
    )
    decimal: Literal[".", ","] = Field(".", description="Decimal mark; the other one may separate thousands.")
    adjust: Literal["auto", "adj_close", "none"] = Field(
        "auto",
        description="Where adjusted prices come from; auto: the adjusted close where there is one, else as they are.",
    )


class WindowSection(Section):
    sessions: int = Field(40, ge=2, description="Sessions that the network looks back on.")
    horizon: int = Field(5, ge=1, description="Sessions ahead: will the close be higher than today's?")


class FoldsSection(Section):
    count: int = Field(4, ge=1, description="Folds, walking forward; the last one's model is published.")
    test_sessions: int | None = Field(
        None, ge=1, description="Sessions of a fold's test; default: an eighth of all, at most 378."
    )
    validation_sessions: int | None = Field(
        None, ge=1, description="Sessions of a fold's validation; default: a twelfth of all, at most 252."
    )
    train_sessions: int | None = Field(
        None, ge=1, description="Sessions of a fold's training; default: everything before its validation."
    )
    embargo: int = Field(0, ge=0, description="Further sessions left out before validation and test.")


class ModelSection(Section):
    units: int = Field(24, ge=1, description="Units of the LSTM.")
    layers: int = Field(1, ge=1, le=4, description="LSTM layers.")
    dropout: float = Field(0.2, ge=0, lt=1, description="Dropout before the head.")


class BacktestSection(Section):
    cost_bps: float = Field(5.0, ge=0, description="Cost of a trade in basis points of what is traded.")
    threshold: float = Field(0.5, gt=0, lt=1, description="Long where the probability of up is above this.")
    short: bool = Field(False, description="Short, instead of flat, below the threshold.")


class SyntheticSection(Section):
    tickers: int = Field(8, ge=1, le=500, description="Tickers of the synthetic panel.")
    sessions: int = Field(2000, ge=50, description="Sessions of the synthetic panel.")
    strength: float = Field(1.0, ge=0, le=1, description="Strength of the planted signal; 0: a random walk.")
    seed: int = Field(0, ge=0, description="Seed of the synthetic panel.")


class StocksConfig(DomainConfig):
    source: str = Field(
        "bokeh",
        description=(
            "CSV or Parquet file, folder of them, or an embedded source: "
            "bokeh (5 stocks), sp500, nasdaq, synthetic."
        ),
    )
    data: DataSection = DataSection()
    window: WindowSection = WindowSection()
    folds: FoldsSection = FoldsSection()
    model: ModelSection = ModelSection()
    backtest: BacktestSection = BacktestSection()
    synthetic: SyntheticSection = SyntheticSection()
    train: TrainSection = TrainSection(patience=4)
