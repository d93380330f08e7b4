"""Answers line by line: every line gets its own, whatever the one before it was; and the end is clean."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines import cli, lines
from shared import files
from shared.contract import Answerer, Published
from shared.errors import InputError
from shared.runs import registry

MODEL = Published(Path("nowhere"), {}, {}, "echo v1 (champion)", synthetic=True)


def double(line: Mapping[str, Any]) -> dict[str, Any]:
    if "number" not in line:
        raise InputError("A line needs a number.", "Give one.")
    if line["number"] == "bug":
        raise KeyError("Doe^Jane")
    return {"double": np.float32(line["number"]) * 2}


def answered(text: str | bytes, answer: Callable[[Any], Any] = double) -> tuple[list[Any], lines.Tally]:
    out, tally = io.BytesIO(), lines.Tally()
    given = io.BytesIO(text.encode() if isinstance(text, str) else text)
    lines.answer_lines(given, out, MODEL, Answerer(answer, '{"number": 1}'), tally)
    assert out.getvalue().isascii()
    return [json.loads(line) for line in out.getvalue().splitlines()], tally


def test_every_line_gets_its_answer_in_order_and_with_its_id() -> None:
    said, tally = answered('{"id": 7, "number": 1}\n\n  \n{"number": 2.5}\n{"id": {"a": [1]}, "number": 3}')
    about = {"model": "echo v1 (champion)", "synthetic_model": True}
    assert said == [
        {"id": 7, "double": 2.0, **about},
        {"double": 5.0, **about},
        {"id": {"a": [1]}, "double": 6.0, **about},
    ]
    assert (tally.lines, tally.errors, len(tally.seconds)) == (3, 0, 3)


def test_a_bad_line_is_told_with_its_id_and_the_next_is_answered() -> None:
    bad = [
        b'{"id": "x"}',
        b"garbage",
        b"[1]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"number": ' + b"1" * 5000 + b"}",
        b'{"id": NaN, "number": "bug"}',
        b'{"id": "\\ud800"}',
    ]
    said, tally = answered(b"\n".join([*bad, b'{"number": 1}']))
    *errors, last = said
    assert last["double"] == 2.0
    assert all(set(error) - {"id"} == {"error", "remedy"} for error in errors)
    assert all(error["error"] and error["remedy"] for error in errors)
    assert errors[0] == {"id": "x", "error": "A line needs a number.", "remedy": "Give one."}
    assert "no JSON" in errors[1]["error"]
    assert '{"number": 1}' in errors[1]["remedy"], "what a line looks like"
    assert "received a list" in errors[2]["error"]
    assert errors[7]["id"] is None, "JSON has no NaN"
    assert (tally.lines, tally.errors) == (len(bad) + 1, len(bad))


def test_an_unexpected_error_is_named_but_not_quoted(capfd: pytest.CaptureFixture[str]) -> None:
    (said,), _ = answered('{"number": "bug"}')
    assert said["error"] == "An unexpected KeyError."
    assert "Doe" not in str(said) + capfd.readouterr().err


def test_numbers_that_json_has_not_are_null() -> None:
    (said,), _ = answered("{}", lambda line: {"values": np.array([1.0, np.nan, np.inf])})
    assert said["values"] == [1.0, None, None]


def test_a_line_without_end_costs_no_memory_and_not_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 1 << 20)
    long = b'{"number": "' + b"9" * (3 << 20) + b'"}\n'
    said, _ = answered(long + b'{"number": 1}\n' + long.strip())
    assert ["error" in answer for answer in said] == [True, False, True]
    assert "at most 1 MiB" in said[0]["error"]


def test_each_answer_is_out_before_the_next_line_is_read() -> None:
    out = io.BytesIO()
    seen: list[int] = []

    class Lines(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            seen.append(out.getvalue().count(b"\n"))
            return super().readline(size)

    given = Lines(b'{"number": 1}\n' * 3)
    lines.answer_lines(given, out, MODEL, Answerer(double, ""), lines.Tally())
    assert seen == [0, 1, 2, 3]


def test_a_long_answer_passes_a_slow_pipe_whole() -> None:
    reading, writing = os.pipe()
    got: list[bytes] = []

    def read() -> None:
        with open(reading, "rb") as file:
            got.append(file.read())

    reader = threading.Thread(target=read)
    reader.start()
    with io.FileIO(writing, "wb") as out:
        given = io.BytesIO(b"{}\n")
        lines.answer_lines(
            given, out, MODEL, Answerer(lambda line: {"text": "x" * 3_000_000}, ""), lines.Tally()
        )
    reader.join()
    assert len(json.loads(got[0])["text"]) == 3_000_000


def test_the_summary_counts_and_times() -> None:
    assert str(lines.Tally()) == "0 lines, 0 of them errors."
    tally = lines.Tally(lines=3, errors=1)
    tally.seconds.extend([0.001, 0.002, 0.012])
    assert str(tally) == "3 lines, 1 of them errors; median 2.000 ms, 95th percentile 11.000 ms."
    tally.seconds.extend([0.5] * 200_000)
    assert len(tally.seconds) == 100_000


def test_a_signal_waits_for_the_answer_and_no_longer() -> None:
    before = signal.getsignal(signal.SIGINT)
    stop = lines.Stop()
    stop.install()
    try:
        done = False
        with pytest.raises(KeyboardInterrupt), stop.held_back():  # noqa: PT012
            signal.raise_signal(signal.SIGINT)
            done = True
        assert done, "the answer was finished first"
    finally:
        stop.remove()
    assert signal.getsignal(signal.SIGINT) is before
    stop = lines.Stop()
    stop.install()
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)  # while a line is awaited
    finally:
        stop.remove()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stdin", "--source", "x.csv"], "neither --source nor --out"),
        (["--stdin", "--out", "here"], "neither --source nor --out"),
        ([], "--source PATH, or --stdin"),
        (["--stdin"], "no trained stocks model"),
    ],
)
def test_misuse_is_told(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["predict", "stocks", *words]) == cli.WRONG_INPUT
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_a_closed_stream_is_told(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, name, None)  # as Python has it where the command was started with `<&-`
    assert cli.run(["predict", "stocks", "--stdin"]) == cli.WRONG_INPUT
    assert f"{name} is closed" in capsys.readouterr().err


# --- the command itself, with an outside domain that needs no TensorFlow ---------------------

DOMAIN = """
import sys, time
from shared import Answerer, Domain, DomainConfig
from shared.errors import InputError


class Echo(Domain):
    name = "echo"
    title = "Says what it is given"
    Config = DomainConfig

    def answerer(self, model, config):
        print("a library talks on stdout")
        print("and on stderr", file=sys.stderr)

        def answer(line):
            print("it goes on talking")
            if "echo" not in line:
                raise InputError("A line needs echo.", "Give one.")
            print("answering", file=sys.stderr, flush=True)
            time.sleep(line.get("seconds", 0))
            return {"echo": line["echo"], "epochs": config.train.epochs}

        return Answerer(answer, '{"echo": 1}')


Echo.__abstractmethods__ = frozenset()
domain = Echo()
"""


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a process that has the domain installed and a model of it registered."""
    site = tmp_path_factory.mktemp("site")
    (site / "echo.py").write_text(DOMAIN)
    information = site / "echo-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: echo\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[casebook]\necho = echo:domain\n")
    runs = tmp_path_factory.mktemp("runs")
    card = {"decision": {}, "config": {"train": {"epochs": 3}}, "synthetic": False}
    files.write_json(runs / "model" / registry.MODEL_CARD, card)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASEBOOK_RUNS", str(runs))
        tracked = registry.track("echo", "a", settings={}, metrics={}, tags={})
        registry.register(
            "echo", "a", runs / "model", tracked=tracked, score="", synthetic=False, promote_it=True
        )
    return {**os.environ, "PYTHONPATH": str(site), "CASEBOOK_RUNS": str(runs)}


@pytest.fixture
def start(echo: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> subprocess.Popen[bytes]:
        """The command, ready for its first line."""
        command = [str(Path(sys.executable).with_name("casebook")), "predict", "echo", "--stdin", *words]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=echo, stdin=pipe, stdout=pipe, stderr=pipe)
        started.append(process)
        assert process.stderr is not None
        ready = process.stderr.readline().decode()
        assert ready == (
            'echo v1 (champion) is ready: a line of JSON in, a line of JSON out. A line: {"echo": 1}\n'
        )
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_the_command_answers_at_once_and_only_answers_are_on_stdout(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    process = start("--train.epochs", "5")
    assert process.stdin is not None
    assert process.stdout is not None
    about = {"epochs": 5, "model": "echo v1 (champion)", "synthetic_model": False}
    for number in range(3):
        process.stdin.write(json.dumps({"id": number, "echo": "é"}).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"id": number, "echo": "é", **about}
    out, err = process.communicate(b"no JSON\n")
    assert process.returncode == 0
    assert "no JSON" in json.loads(out)["error"]
    *talk, summary = err.decode().splitlines()
    assert set(talk) == {"it goes on talking", "answering"}
    assert summary.startswith("4 lines, 1 of them errors; median ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, cli.TERMINATED), (signal.SIGINT, cli.INTERRUPTED)]
)
def test_a_signal_ends_it_between_two_lines(
    start: Callable[..., subprocess.Popen[bytes]], number: int, code: int
) -> None:
    """While it answers for SIGTERM, while it waits for SIGINT."""
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    seconds = 1.0 if number == signal.SIGTERM else 0.0
    process.stdin.write(json.dumps({"echo": 1, "seconds": seconds}).encode() + b'\n{"echo": 2}\n')
    process.stdin.flush()
    while process.stderr.readline() != b"answering\n":
        pass
    if not seconds:
        process.stdout.readline()
        process.stdout.readline()
        time.sleep(0.2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"Traceback" not in err
    assert b"Interrupted." in err
    if seconds:
        assert [json.loads(line)["echo"] for line in out.splitlines()] == [1], "finished, and no other begun"
        assert b"1 line, 0 of them errors; median" in err
    else:
        assert b"2 lines, 0 of them errors; median" in err


@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_quietly(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.write(b'{"echo": 1}\n')
    process.stdin.flush()
    assert process.wait(timeout=60) == 0
    assert set(process.stderr.read().decode().split("\n")) == {"it goes on talking", "answering", ""}
