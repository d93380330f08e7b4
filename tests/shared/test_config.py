"""Layers of configuration, unknown keys, and TOML out and in."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from shared.config import DomainConfig, Section, build, knobs, merge, to_toml
from shared.errors import InputError


class Data(Section):
    horizon: int = Field(5, ge=1, description="Sessions ahead.")
    tickers: tuple[str, ...] = Field((), description="Empty: all.")


class Config(DomainConfig):
    data: Data = Data()
    note: str = ""


def test_flags_beat_file_beats_base_beats_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[train]\nseed = 2\npatience = 9\n[data]\nhorizon = 3\n")
    config = build(Config, file, {"train.seed": "3", "plan.batch_size": "64"}, base={"train": {"epochs": 7}})
    assert (config.train.seed, config.train.patience, config.train.epochs) == (3, 9, 7)
    assert (config.data.horizon, config.plan.batch_size) == (3, 64)
    assert config.train.clip_norm == 1.0


def test_dashes_in_flags_are_underscores() -> None:
    assert build(Config, flags={"plan.batch-size": "8"}).plan.batch_size == 8


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"train.epoch": "3"}, ["train.epoch", "Did you mean 'train.epochs'"]),
        ({"tarin.epochs": "3"}, ["tarin", "Did you mean"]),
        ({"data.horizon": "0"}, ["data.horizon", "greater than or equal to 1", "'0'"]),
        ({"train.seed": "many"}, ["train.seed", "integer", "'many'"]),
        ({"train": "5"}, ["train is a group", "train.epochs"]),
        ({"plan.batch_size": "0"}, [" plan.batch_size: ", "equal to 1 or ", "'auto'", "'0'"]),
        ({"gate.margin": "inf"}, ["gate.margin", "finite", "'inf'"]),
    ],
)
def test_what_cannot_be_used_is_named_with_its_remedy(flags: dict[str, str], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        build(Config, flags=flags)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_broken_or_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("[train\n")
    for name in ("broken.toml", "missing.toml"):
        with pytest.raises(InputError, match=name):
            build(Config, tmp_path / name)


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False), st.lists(st.text(max_size=5), max_size=3))
def test_toml_reads_back_equal(note: str, hours: float, tickers: list[str]) -> None:
    given_ = {"note": note, "train": {"hours": abs(hours) + 1e-9}, "data": {"tickers": tickers}}
    config = build(Config, base=given_)
    for commented in (False, True):
        again = Config.model_validate(tomllib.loads(to_toml(config, commented=commented)))
        assert again == config


def test_every_knob_explains_itself() -> None:
    unexplained = [key for key, info in knobs(DomainConfig) if not info.description]
    assert unexplained == []


def test_merge_goes_table_by_table_and_leaves_its_arguments() -> None:
    below = {"a": {"b": 1, "c": 2}, "d": 3}
    assert merge(below, {"a": {"b": 9}, "e": 4}) == {"a": {"b": 9, "c": 2}, "d": 3, "e": 4}
    assert below == {"a": {"b": 1, "c": 2}, "d": 3}
