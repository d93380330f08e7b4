"""Small panels for the tests of the stocks domain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from domains.stocks import domain
from domains.stocks.config import StocksConfig
from domains.stocks.dates import calendar
from shared.config import build

NOW = pd.Timestamp("2025-06-02 12:00", tz="UTC")


def sessions(count: int, first: str = "2010-01-04") -> pd.DatetimeIndex:
    """``count`` sessions of New York from ``first`` on."""
    return calendar("XNYS", first, "2024-12-31").sessions[:count]


def bars(count: int, ticker: str | None = None, *, seed: int = 0, first: str = "2010-01-04") -> pd.DataFrame:
    """A random walk as a person's table has it: date, open, high, low, close, adj_close, volume."""
    rng = np.random.default_rng(seed)
    most = 200  # drawn whatever the count, so that a shorter table is the head of a longer one
    close = 50 * np.exp(np.cumsum(0.01 * rng.standard_normal(most)))
    opens = close * np.exp(0.003 * rng.standard_normal(most))
    table = pd.DataFrame(
        {
            "date": sessions(most, first).strftime("%Y-%m-%d"),
            "open": opens,
            "high": np.maximum(opens, close) * 1.004,
            "low": np.minimum(opens, close) * 0.996,
            "close": close,
            "adj_close": close,
            "volume": rng.integers(1_000, 9_000, most).astype(float),
        }
    ).iloc[:count]
    if ticker is not None:
        table.insert(0, "ticker", ticker)
    return table


@pytest.fixture(scope="session")
def config() -> StocksConfig:
    return build(StocksConfig, base=domain.tiny())


@pytest.fixture(scope="session")
def prepared(config: StocksConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared")
    domain.ingest("synthetic", config, out)
    return out


@pytest.fixture
def csv(tmp_path: Path) -> Callable[..., str]:
    """Writes text as a file and returns its path."""

    def write(text: str, name: str = "AAPL.csv") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write
