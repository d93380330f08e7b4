"""Windows: exactly those there are, of one ticker, on neighbouring sessions, never padded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from domains.stocks import data, domain
from domains.stocks.config import DataSection, StocksConfig, WindowSection
from domains.stocks.features import WARM_UP
from domains.stocks.panel import Panel, build, examples_of, too_short, window_ends, windows
from domains.stocks.prices import clean
from domains.stocks.reading import read
from shared.config import build as configured
from shared.errors import InputError

from .conftest import NOW, bars

WINDOW = WindowSection(sessions=8, horizon=3)


def panel_of(folder: Path, *tables: pd.DataFrame) -> Panel:
    pd.concat(tables).to_csv(folder / "panel.csv", index=False)
    prices = clean(read(str(folder / "panel.csv"), DataSection()), DataSection(), now=NOW)
    return build(prices.table, prices.adjusted)


def test_the_number_of_windows_and_their_labels(tmp_path: Path) -> None:
    """n - L - h + 1 windows; window [t-L+1..t] has its label at t+h."""
    count = 60
    panel = panel_of(tmp_path, bars(count, "A"))
    found = examples_of(panel, WINDOW)
    assert len(found.rows) == (count - WARM_UP) - 8 - 3 + 1
    assert found.rows[0] == WARM_UP + 8 - 1
    assert found.rows[-1] == count - 1 - 3, "the last one is not dropped"
    close, opens = bars(count)["close"].to_numpy(), bars(count)["open"].to_numpy()
    for row, key, (up, earned), end in zip(
        found.rows, found.keys, found.truth, found.label_ends, strict=True
    ):
        assert key == f"A/{panel.session[row]}"
        assert up == (close[row + 3] > close[row])
        assert earned == pytest.approx(opens[row + 2] / opens[row + 1] - 1, rel=1e-4)
        assert end == panel.session[row + 3]
    x = windows(panel, found.rows, 8)
    assert np.array_equal(x[0], panel.inputs[WARM_UP : WARM_UP + 8])
    assert np.isfinite(x).all()


def test_a_tie_is_not_up(tmp_path: Path) -> None:
    flat = bars(60, "A").assign(open=1.0, high=1.0, low=1.0, close=1.0, adj_close=1.0)
    assert not examples_of(panel_of(tmp_path, flat), WINDOW).truth[:, 0].any()


def test_what_the_next_session_earns_is_unknown_at_the_end(tmp_path: Path) -> None:
    found = examples_of(panel_of(tmp_path, bars(60, "A")), WindowSection(sessions=8, horizon=1))
    assert np.isnan(found.truth[-1, 1])
    assert np.isfinite(found.truth[:-1]).all()


def test_windows_do_not_cross_tickers_and_late_starters_have_theirs(tmp_path: Path) -> None:
    late = bars(50, "LATE", seed=1, first="2010-03-01")
    panel = panel_of(tmp_path, bars(90, "EARLY"), late)
    found = examples_of(panel, WINDOW)
    for row in found.rows:
        span = slice(row - 7, row + 4)
        assert len(np.unique(panel.ticker[span])) == 1
    counts = {name: sum(key.startswith(f"{name}/") for key in found.keys) for name in ("EARLY", "LATE")}
    assert counts == {"EARLY": 90 - WARM_UP - 10, "LATE": 50 - WARM_UP - 10}
    assert (np.diff(found.sessions.astype(int)) >= 0).all(), "numbered by session"


def test_a_hole_is_not_bridged(tmp_path: Path) -> None:
    """A missing session begins a new stretch, with a warm-up of its own."""
    table = bars(100, "A").drop(index=50)
    panel = panel_of(tmp_path, table)
    found = examples_of(panel, WINDOW)
    expected = (50 - WARM_UP - 10) + (49 - WARM_UP - 10)
    assert len(found.rows) == expected
    sessions = pd.DatetimeIndex(bars(100)["date"]).to_numpy("datetime64[D]")
    for row in found.rows:
        place = np.searchsorted(sessions, panel.session[row - 7 : row + 4])
        assert (np.diff(place) == 1).all()


def test_a_ticker_that_is_too_short_is_named(tmp_path: Path) -> None:
    tiny = bars(WARM_UP + 10, "SHORT", seed=2)
    panel = panel_of(tmp_path, bars(90, "LONG"), tiny)
    assert list(too_short(panel, WINDOW, labelled=True)) == ["SHORT"]
    assert "has 30 sessions, 31 are needed" in too_short(panel, WINDOW, labelled=True)["SHORT"]
    assert not too_short(panel, WINDOW, labelled=False), "28 are enough for a window without a label"
    config = configured(StocksConfig, base={"window": {"sessions": 8, "horizon": 3}})
    card = data.ingest(str(tmp_path / "panel.csv"), config, tmp_path, now=NOW)
    assert [item.item for item in card.quarantine] == ["SHORT"]
    with pytest.raises(InputError, match=r"No ticker of .* has enough history; LONG"):
        data.ingest(
            str(tmp_path / "panel.csv"),
            configured(StocksConfig, base={"window": {"sessions": 200}}),
            tmp_path,
            now=NOW,
        )


def test_windows_without_a_label_reach_the_last_bar(tmp_path: Path) -> None:
    panel = panel_of(tmp_path, bars(60, "A"))
    assert window_ends(panel, WINDOW)[-1] == 59


def test_the_panel_survives_disk(tmp_path: Path) -> None:
    panel = panel_of(tmp_path, bars(60, "A"))
    panel.save(tmp_path / "panel.npz")
    again = Panel.load(tmp_path / "panel.npz")
    assert again.fingerprint() == panel.fingerprint()
    assert again.tickers.tolist() == ["A"]


def test_a_final_bar_replaces_a_partial_one(tmp_path: Path) -> None:
    """What is prepared again after the close holds the final bar, and another fingerprint."""
    config = configured(StocksConfig, base={"window": {"sessions": 8, "horizon": 3}})
    table = bars(60, "A")
    prints = []
    for close, now in ((1.001, "2010-03-30 18:00"), (1.0, "2010-03-30 21:30")):
        changed = table.copy()
        changed.loc[59, ["close", "adj_close"]] *= close
        changed.to_csv(tmp_path / "A.csv", index=False)
        assert table["date"].iloc[59] == "2010-03-30"
        out = tmp_path / now.replace(" ", "-")
        out.mkdir()
        card = data.ingest(str(tmp_path / "A.csv"), config, out, now=pd.Timestamp(now, tz="UTC"))
        prints.append((card.facts["to"], card.fingerprint))
    assert [day for day, _ in prints] == ["2010-03-29", "2010-03-30"]
    assert prints[0][1] != prints[1][1]


def test_inputs_as_of_are_those_of_the_examples(prepared: Path, config: StocksConfig) -> None:
    fold = domain.folds(prepared, config)[-1]
    keys, inputs = domain.inputs_as_of(prepared, config, None)
    where = dict(zip(keys, range(len(keys)), strict=True))
    x, _ = data.arrays(prepared, config, fold, "test")
    assert np.array_equal(inputs[[where[key] for key in fold.keys[fold.splits["test"]]]], x)
    moment = str(fold.spans[fold.splits["test"][0], 0])
    some, then = domain.inputs_as_of(prepared, config, moment)
    assert max(key.split("/")[1] for key in some) == moment
    assert np.array_equal(then, inputs[[where[key] for key in some]])
