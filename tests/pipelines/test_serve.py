"""Schedules as a person writes them, and what Prefect is told of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines import cli, embedded
from pipelines.schedules import EXAMPLE, read
from shared.contract import domain_names
from shared.errors import CasebookError, InputError


@pytest.fixture
def schedules(tmp_path: Path) -> Any:
    """``schedules(text)`` reads a schedules file with that text; returns {name: schedule}."""

    def reading(text: str) -> Any:
        file = tmp_path / "schedules.toml"
        file.write_text(text)
        return {schedule.name: schedule for schedule in read(file)}

    return reading


def test_every_flow_of_every_domain_is_served_by_hand_at_least() -> None:
    names = [schedule.name for schedule in read(None)]
    assert names == [f"{domain}-{kind}" for domain in domain_names() for kind in ("train", "predict")]
    assert {schedule.when for schedule in read(None)} == {"by hand"}


def test_cron_interval_zone_settings_and_source(schedules: Any) -> None:
    found = schedules(
        """
        timezone = "Europe/Berlin"
        [stocks.train]
        cron = "0 22 * * 1-5"
        timezone = "America/New_York"
        source = "sp500"
        config.train.epochs = 3
        [stocks.predict]
        minutes = 30
        seconds = 15
        source = "incoming"
        out = "scored"
        [xray.train]
        cron = "0 3 * * 6"
        """
    )
    train, predict = found["stocks-train"], found["stocks-predict"]
    assert (train.cron, train.timezone) == ("0 22 * * 1-5", "America/New_York")
    assert train.parameters == {"config": {"train": {"epochs": 3}, "source": "sp500"}}
    assert predict.seconds == 1815.0
    assert predict.parameters == {"config": {}, "source": "incoming", "out": "scored"}
    assert found["xray-train"].timezone == "Europe/Berlin"
    assert found["xray-train"].when == "cron 0 3 * * 6 (Europe/Berlin)"
    assert found["climate-train"].when == "by hand"


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("[stock.train]\nhours = 1", "no domain 'stock'", "'stocks'"),
        ("[stocks.trian]\nhours = 1", "[stocks.trian]", "'train'"),
        ("[stocks.train]\nhour = 1", "Unknown key 'hour' in [stocks.train]", "'hours'"),
        ("stocks = 3", "stocks must be tables", ""),
        ("[stocks.train]\nhours = 0", "above 0", ""),
        ("[stocks.train]\nhours = true", "above 0", ""),
        ("[stocks.train]\nhours = nan", "above 0", ""),
        ("[stocks.train]\nhours = inf", "inf seconds", "ten years"),
        ("[stocks.train]\nseconds = 1e-9", "1e-09 seconds", "a second"),
        ("[stocks.predict]\nhours = 1\nsource = ''", "[stocks.predict] has no source", "source ="),
        ("[stocks.train]\nhours = 1\ncron = '0 0 * * *'", "a cron line and an interval", "one of them"),
        ("[stocks.train]\ncron = 'at noon'", "'at noon'", "Five fields"),
        ("[stocks.train]\ncron = '0 0 * * *'\ntimezone = 'Mars/Base'", "Mars/Base", "IANA"),
        (
            "[stocks.train]\nconfig.train.epoch = 3",
            "[stocks.train]: Unknown setting 'train.epoch'",
            "train.epochs",
        ),
        ("[stocks.train]\nconfig.train.epochs = 'x'", "train.epochs", ""),
        ("[stocks.train]\nconfig = 3", "config in [stocks.train]", ""),
        ("[stocks.train]\nout = 'x'", "only predict takes", ""),
        ("[stocks.predict]\nhours = 1", "[stocks.predict] has no source", "source ="),
        ("[stocks", "not valid TOML", ""),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(
    schedules: Any, text: str, message: str, remedy: str
) -> None:
    with pytest.raises(InputError) as caught:
        schedules(text)
    assert message in caught.value.message
    assert remedy in caught.value.remedy


def test_the_example_is_valid(schedules: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["serve", "--example"]) == 0
    text = capsys.readouterr().out
    assert text == EXAMPLE.format(domain=domain_names()[0])
    assert schedules(text)[f"{domain_names()[0]}-predict"].when == "every 30 minutes"


def test_deployments_run_once_at_a_time_and_cancel_what_overlaps(schedules: Any) -> None:
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy

    from pipelines.runner import DEPLOYMENT, deployments

    found = schedules("[stocks.train]\nseconds = 90\n[stocks.predict]\ncron = '0 3 * * *'\nsource = 'x'")
    train, predict = deployments([found["stocks-train"], found["stocks-predict"]])
    for made in (train, predict):
        assert made.name == DEPLOYMENT
        assert made.concurrency_limit == 1
        assert made.concurrency_options.collision_strategy is ConcurrencyLimitStrategy.CANCEL_NEW
    assert train.entrypoint == "pipelines.stocks.train"
    assert train.flow_name == "stocks-train"
    assert train.schedules[0].schedule.interval.total_seconds() == 90
    assert predict.parameters == {"config": {}, "source": "x"}
    assert (predict.schedules[0].schedule.cron, predict.schedules[0].schedule.timezone) == (
        "0 3 * * *",
        "UTC",
    )


def test_a_domain_from_outside_is_told_apart_by_its_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines import any_domain, flows, runner
    from pipelines.schedules import Schedule

    outside = flows.Flows(
        any_domain.train.with_options(name="digits-train"),
        any_domain.predict.with_options(name="digits-predict"),
        {"domain": "digits"},
    )
    monkeypatch.setattr(flows, "of", lambda domain: outside)
    (made,) = runner.deployments([Schedule("digits", "train", parameters={"config": {}})])
    assert (made.flow_name, made.entrypoint) == ("digits-train", "pipelines.any_domain.train")
    assert made.parameters == {"domain": "digits", "config": {}}


def test_a_server_that_does_not_answer_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert cli.run(["serve"]) == 1
    assert "unset it" in capsys.readouterr().err


def test_a_second_serve_on_the_same_runs_is_refused(runs: Path) -> None:
    from pipelines.serve import _alone

    with _alone(), pytest.raises(CasebookError, match="Another `casebook serve`"), _alone():
        pass


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(InputError, match="is taken"):
            embedded.Server(tmp_path / "log", other.getsockname()[1])
