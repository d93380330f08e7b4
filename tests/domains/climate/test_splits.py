"""Splits by scenario and year, and the guards that must catch a leaking one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domains.climate import domain
from domains.climate.config import ClimateConfig
from domains.climate.data import Prepared, numbered
from shared.contract import SPLITS
from shared.errors import InputError, LeakError
from shared.evaluation import guards
from shared.evaluation.digests import digests

from .conftest import ingested, maps, save, settings, years

FORECAST = {"task": "forecast"}


def copies(prepared: Path, config: ClimateConfig) -> guards.GuardResult:
    fold = domain.folds(prepared, config)[0]
    held = {split: digests(domain.examples(prepared, config, fold, split)) for split in SPLITS}
    return guards.no_copies(iter([(fold, held)]))


def test_the_protocol_of_the_real_runs(iris: tuple[Path, ClimateConfig]) -> None:
    fold = domain.folds(*iris)[0]
    assert {name: len(rows) for name, rows in fold.splits.items()} == {
        "train": 240,
        "validation": 10,
        "test": 90,
    }
    assert fold.keys[fold.splits["test"]][[0, -1]].tolist() == ["E1/2010", "E1/2099"]
    assert fold.groups is not None
    assert fold.groups[fold.splits["train"]][0] == "A1B/1860"
    assert fold.spans is None


@pytest.mark.slow
@pytest.mark.parametrize("base", [{}, FORECAST])
def test_the_default_split_shares_no_input(iris: tuple[Path, ClimateConfig], base: dict[str, str]) -> None:
    assert copies(iris[0], settings(source="iris", **base)).passed


@pytest.mark.slow
@pytest.mark.parametrize("base", [{}, FORECAST])
def test_a_split_with_the_shared_history_on_both_sides_fails_the_guard(
    iris: tuple[Path, ClimateConfig], base: dict[str, str]
) -> None:
    leak = {"train": ("A1B",), "validation": ("E1 2000-2009",), "test": ("E1 1990-1999", "E1 2010-")}
    found = copies(iris[0], settings(source="iris", split=leak, **base))
    assert found.passed is False
    assert found.key.startswith(("E1/199", "E1/2000"))
    with pytest.raises(LeakError, match="no input is copied"):
        guards.require([found])


def test_without_a_protocol_time_is_cut_in_all_scenarios_at_once(tmp_path: Path) -> None:
    save(maps(times=years(1980, 20)), tmp_path / "in" / "a.nc")
    save(maps(times=years(1980, 20), seed=1), tmp_path / "in" / "b.nc")
    _, config = ingested(tmp_path / "in", tmp_path / "prepared")
    fold = domain.folds(tmp_path / "prepared", config)[0]
    assert [len(fold.splits[name]) for name in SPLITS] == [28, 6, 6]
    assert fold.spans is not None
    assert guards.apart("apart", fold).passed
    assert guards.undivided("undivided", fold).passed
    assert str(fold.spans[fold.splits["test"], 0].min()) == "1997-07-01"


def test_a_persons_selection(iris: tuple[Path, ClimateConfig]) -> None:
    own = {"train": ("A1B -1950", "A1B 1960"), "validation": ("A1B 1961-1970",), "test": ("E1 2090-",)}
    fold = domain.folds(iris[0], settings(source="iris", split=own))[0]
    assert [len(fold.splits[name]) for name in SPLITS] == [92, 10, 10]
    assert fold.about["train"] == "A1B 1860 to 1960 (92)"


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"train": ("B2",)}, "scenario 'B2'"),
        ({"train": ("A1B 2200-",)}, "selects no map"),
        (
            {"train": ("A1B",), "validation": ("A1B 2000",), "test": ("E1",)},
            "A1B/2000 is selected for train and",
        ),
        ({"train": ("A1B",), "test": ("E1 2010-",)}, "validation split is empty"),
    ],
)
def test_selections_that_cannot_be(
    iris: tuple[Path, ClimateConfig], own: dict[str, tuple[str, ...]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        domain.folds(iris[0], settings(source="iris", split=own))


def test_windows_are_exact_and_skip_gaps(tmp_path: Path) -> None:
    times = [time for time in years(1950, 30) if time.year != 1965]
    save(maps(times=times), tmp_path / "in" / "a.nc")
    save(maps(times=years(1950, 8), seed=1), tmp_path / "in" / "b.nc")
    _, config = ingested(tmp_path / "in", tmp_path / "prepared", forecast={"history": "5 years"}, **FORECAST)
    data = Prepared.load(tmp_path / "prepared")
    examples = numbered(data, config)
    # By hand: a has 1955-1964 and 1971-1979, b has 1955-1957; none crosses the gap or the scenarios.
    expected = [f"a/{y}" for y in (*range(1955, 1965), *range(1971, 1980))] + [
        f"b/{y}" for y in range(1955, 1958)
    ]
    assert [key.split(" (")[0] for key in examples.keys] == expected
    assert examples.keys[0].endswith("(1 year ahead)")
    assert (data.parts[examples.target, 0] - data.parts[examples.start, 0] == 5).all()


def test_train_windows_that_look_at_held_out_years_are_left_out(tmp_path: Path) -> None:
    save(maps(times=years(1900, 60)), tmp_path / "a.nc")
    own = {"train": ("a -1929", "a 1940-"), "validation": ("a 1930-1934",), "test": ("a 1935-1939",)}
    _, config = ingested(
        tmp_path / "a.nc", tmp_path / "prepared", split=own, forecast={"history": "5 years"}, **FORECAST
    )
    fold = domain.folds(tmp_path / "prepared", config)[0]
    train = [int(key[2:6]) for key in fold.keys[fold.splits["train"]]]
    assert train == [*range(1905, 1930), *range(1945, 1960)]
    assert fold.about["windows left out of train"].startswith("5")


def test_a_window_longer_than_the_series_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No scenario has 13 maps in a row"):
        ingested(
            save(maps(), tmp_path / "a.nc"), tmp_path / "out", forecast={"history": "12 years"}, **FORECAST
        )


def test_the_future_changes_no_input(tmp_path: Path) -> None:
    save(maps(times=years(1900, 40)), tmp_path / "a.nc")
    _, config = ingested(tmp_path / "a.nc", tmp_path / "prepared", **FORECAST)
    found = guards.prefix_invariant(
        domain, tmp_path / "prepared", config, domain.folds(tmp_path / "prepared", config)
    )
    assert found.passed, found
    cut = domain.inputs_as_of(tmp_path / "prepared", config, "1920-12-31")
    assert cut is not None
    assert cut[0][-1] == "a/1920 (1 year ahead)"
    assert domain.inputs_as_of(tmp_path / "prepared", settings(source=config.source), None) is None


def test_climatology_knows_the_training_years_only(iris: tuple[Path, ClimateConfig], tmp_path: Path) -> None:
    prepared, config = iris[0], settings(source="iris", **FORECAST)
    fold = domain.folds(prepared, config)[0]
    data = Prepared.load(prepared)
    said = domain.baselines(prepared, config, fold)["climatology"]
    train = numbered(data, config).target[fold.splits["train"]]
    assert np.allclose(said.values[0], data.fields[train].astype(np.float64).mean(axis=0), atol=1e-4)
    # Other test years, the same climatology and the same network constants.
    changed = Prepared.load(prepared)
    rows = numbered(data, config).target[fold.splits["test"]]
    fields = np.array(changed.fields)
    fields[rows] += 5.0
    Prepared(fields, data.scenario, data.parts, data.steps, data.meta).save(tmp_path)
    again = domain.baselines(tmp_path, config, fold)["climatology"]
    assert np.array_equal(again.values, said.values)
