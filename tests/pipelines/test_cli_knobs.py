"""Settings as flags."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import Field

from pipelines.knobs import listing, parse
from shared.config import DomainConfig, Section, TrainSection, build
from shared.errors import InputError


class WindowSection(Section):
    sessions: int = Field(40, description="Sessions that the network looks back on.")
    names: tuple[str, ...] = Field((), description="Only these.")
    limit: float | None = Field(None, description="A limit, or none.")


class Config(DomainConfig):
    train: TrainSection = TrainSection(epochs=7)
    task: Literal["up", "down"] = Field("up", description="Which way.")
    window: WindowSection = WindowSection()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["--train.epochs", "5"], {"train.epochs": "5"}),
        (["--train.epochs=5"], {"train.epochs": "5"}),
        (["--train.learning-rate", "1e-3"], {"train.learning_rate": "1e-3"}),
        (["--plan.replan"], {"plan.replan": True}),
        (["--plan.replan", "false"], {"plan.replan": False}),
        (["--no-plan.replan"], {"plan.replan": False}),
        (["--plan.no-replan"], {"plan.replan": False}),
        (["--plan.replan", "--task", "down"], {"plan.replan": True, "task": "down"}),
        (["--window.names", "a,b"], {"window.names": ["a", "b"]}),
        (["--window.names", '["a"]'], {"window.names": ["a"]}),
        (["--window.limit", "none"], {"window.limit": None}),
        (["--window.limit", "-1"], {"window.limit": "-1"}),
        (["--source", "a=b"], {"source": "a=b"}),
    ],
)
def test_flags_become_dotted_keys(tokens: list[str], expected: dict[str, Any]) -> None:
    assert parse(tokens, Config) == expected
    build(Config, None, expected)  # and the configuration takes them


@pytest.mark.parametrize(
    ("tokens", "message", "remedy"),
    [
        (["--train.epoch", "5"], "Unknown setting --train.epoch.", "--train.epochs"),
        (["--epochs", "5"], "Unknown setting --epochs.", "--train.epochs"),
        (["--fail-on-hol"], "Unknown setting --fail-on-hol.", "--fail-on-hold"),
        (["epochs"], "received 'epochs'", "domain comes first"),
        (["--train.epochs"], "--train.epochs needs a value", "INT"),
        (["--train.epochs", "--plan.replan"], "--train.epochs needs a value", "INT"),
        (["--plan.replan=perhaps"], "takes true or false, received 'perhaps'", ""),
    ],
)
def test_what_is_no_flag_is_refused_with_a_remedy(tokens: list[str], message: str, remedy: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(tokens, Config, words=("fail-on-hold",))
    assert message in caught.value.message
    assert remedy in caught.value.remedy


def test_listing_tells_every_knob_with_its_default_the_domains_own_first() -> None:
    text = listing(Config)
    assert "--window.sessions INT             Sessions that the network looks back on. [40]" in text
    assert "--train.epochs INT" in text
    assert "[7]" in text, "the domain's default, not the section's"
    assert "--task up|down" in text
    assert text.index("window:") < text.index("accelerator:")
