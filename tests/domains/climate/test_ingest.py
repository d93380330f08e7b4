"""Scenarios put together; what cannot be used is set aside with its reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domains.climate.data import Prepared
from shared.errors import InputError

from .conftest import ingested, maps, save, years


def test_the_real_runs(tmp_path: Path) -> None:
    card, _ = ingested("iris", tmp_path / "prepared")
    assert card.examples == 480
    assert not card.synthetic
    assert card.facts["calendar"] == "360_day"
    assert card.facts["unit"] == "K"
    assert "identical 1860 to 1999 (140 maps)" in card.facts["shared history"]
    assert card.fingerprint


def test_a_corrupt_file_among_good_ones_is_set_aside(tmp_path: Path) -> None:
    good = save(maps(), tmp_path / "in" / "good.nc")
    (tmp_path / "in" / "cut.nc").write_bytes(good.read_bytes()[:3000])
    (tmp_path / "in" / "empty.nc").touch()
    (tmp_path / "in" / "text.nc").write_text("not a map")
    save(maps(longitude=np.arange(10.0, 18.0)), tmp_path / "in" / "elsewhere.nc")
    save(maps(), tmp_path / "in" / "other.nc", tas={"dtype": "float64"})
    card, _ = ingested(tmp_path / "in", tmp_path / "prepared")
    reasons = {one.item: one.reason for one in card.quarantine}
    assert sorted(reasons) == ["cut.nc", "elsewhere.nc", "empty.nc", "text.nc"]
    assert "empty" in reasons["empty.nc"]
    assert "10 to 17 E" in reasons["elsewhere.nc"]
    assert card.examples == 24


def test_nothing_usable_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "text.nc").write_text("not a map")
    with pytest.raises(InputError, match=r"text\.nc: It is neither NetCDF nor Zarr"):
        ingested(tmp_path / "text.nc", tmp_path / "prepared")
    with pytest.raises(InputError, match="no source 'irish'"):
        ingested("irish", tmp_path / "prepared")


def test_mixed_calendars_name_the_files_and_the_way_out(tmp_path: Path) -> None:
    save(maps(), tmp_path / "in" / "a.nc")
    save(maps(times=years(1990, 12, "noleap")), tmp_path / "in" / "b.nc")
    with pytest.raises(InputError, match=r"360_day: a\.nc; noleap: b\.nc") as caught:
        ingested(tmp_path / "in", tmp_path / "prepared")
    assert "--calendar" in caught.value.remedy
    card, _ = ingested(tmp_path / "in", tmp_path / "prepared", calendar="360_day")
    assert card.examples == 24


def test_the_same_map_twice_is_counted_once_another_is_refused(tmp_path: Path) -> None:
    save(maps(), tmp_path / "in" / "a" / "1.nc")
    save(maps().isel(time=slice(6, None)), tmp_path / "in" / "a" / "2.nc")
    card, _ = ingested(tmp_path / "in", tmp_path / "prepared")
    assert card.examples == 12
    assert any("came twice" in warning for warning in card.warnings)
    save(maps(seed=1).isel(time=slice(6, None)), tmp_path / "in" / "a" / "2.nc")
    with pytest.raises(InputError, match="two different maps of 1996-07-01"):
        ingested(tmp_path / "in", tmp_path / "prepared")


def test_a_gap_is_told_and_an_empty_map_set_aside(tmp_path: Path) -> None:
    dataset = maps().isel(time=[0, 1, 2, 4, 5, 6, 7])
    dataset["tas"][5] = np.nan
    card, _ = ingested(save(dataset, tmp_path / "gap.nc"), tmp_path / "prepared")
    assert card.warnings == [
        "gap is not contiguous: missing 1 between 1992 and 1994; 1 between 1995 and 1997."
    ]
    assert [one.item for one in card.quarantine] == ["gap/1996-07-01"]
    assert card.examples == 6


def test_scenarios_take_the_files_own_word(tmp_path: Path) -> None:
    save(maps(experiment_id="ssp126"), tmp_path / "in" / "tas_ssp126_1990.nc")
    save(maps(times=years(2002, 4), experiment_id="ssp126"), tmp_path / "in" / "tas_ssp126_2002.nc")
    save(maps(seed=3), tmp_path / "in" / "plain.nc")
    ingested(tmp_path / "in", tmp_path / "prepared")
    data = Prepared.load(tmp_path / "prepared")
    assert data.scenarios == ["plain", "ssp126"]
    assert (data.scenario == 1).sum() == 16


def test_the_fingerprint_follows_the_values(tmp_path: Path) -> None:
    path = tmp_path / "maps.nc"
    first, _ = ingested(save(maps(), path), tmp_path / "one")
    again, _ = ingested(path, tmp_path / "two")
    changed = maps()
    changed["tas"][3, 3, 3] += 0.01
    other, _ = ingested(save(changed, path), tmp_path / "three")
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_maps_of_one_value_are_refused(tmp_path: Path) -> None:
    save(maps(np.full((12, 8, 8), 280.0)), tmp_path / "in" / "flat.nc")
    with pytest.raises(InputError, match="the same value, 280"):
        ingested(str(tmp_path / "in"), tmp_path / "prepared")
