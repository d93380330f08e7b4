"""Answers line by line, for those who need them in real time: an object of JSON in, one out, at once.

Not through Prefect: it would cost a second and rows in a database for an answer of milliseconds,
and there is nothing to retry, since whoever asked is waiting. And in this process, not in a
child: a child's pipe would be one more way for every answer. So this is the one command whose
own process loads TensorFlow, after ``--help`` and every check of what was given.
"""

from __future__ import annotations

import gc
import io
import json
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, BinaryIO

from shared.contract import Answerer, Published, find
from shared.errors import CasebookError, InputError, of_the_machine
from shared.files import plain
from shared.words import number

LONGEST = 64 << 20
"""Bytes of a line; a film in base64 has some 30 million."""

_REMEMBERED = 100_000
"""Latencies that the summary is of: the latest, so that a process of months stays as small as it began."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Tally:
    """How many lines were answered, and how fast.

    Attributes:
        lines: All but empty ones.
        errors: Lines among them whose answer is an error.
        seconds: From a line's end to its answer's, of the latest lines.
    """

    lines: int = 0
    errors: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def __str__(self) -> str:
        said = f"{self.lines} line{'' if self.lines == 1 else 's'}, {self.errors} of them errors"
        if not self.seconds:
            return said + "."
        import numpy as np

        middle, high = (number(float(value)) for value in np.percentile(self.seconds, [50, 95]) * 1000)
        return f"{said}; median {middle} ms, 95th percentile {high} ms."


def serve(domain: str, config: Mapping[str, Any], *, verbose: bool = False, debug: bool = False) -> None:
    """Answers stdin on stdout until it ends; says on stderr when it is ready and, at the end, how it went.

    Args:
        config: Nested differences to the configuration that the model was trained with.

    Raises:
        InputError: The domain does not answer line by line, or has no model; stdin or stdout is closed.
        KeyboardInterrupt: SIGINT or SIGTERM, between two lines.
        BrokenPipeError: Nobody reads the answers any more.
    """
    from pipelines.prediction import chosen_model, settings_of

    body = find(domain)
    for name in ("stdin", "stdout"):
        if getattr(sys, name) is None:  # started with `<&-` or `>&-`
            raise InputError(
                f"{name} is closed.", "Leave it open: lines come from stdin, answers go to stdout."
            )
    tally = Tally()
    with _answers_only() as out, _stoppable() as stop:
        with _quiet(verbose=verbose or debug):
            _leave_accelerators(config)
            model = chosen_model(domain)
            answerer = body.answerer(model, settings_of(body, model, config))
        # What is loaded stays: without this, each full collection walks through all of it.
        gc.collect()
        gc.freeze()
        print(_ready(model, answerer), file=sys.stderr, flush=True)
        try:
            answer_lines(sys.stdin.buffer, out, model, answerer, tally, stop=stop, debug=debug)
        except BrokenPipeError:
            raise  # quietly: whoever read has what they wanted
        except BaseException:
            print(tally, file=sys.stderr, flush=True)
            raise
        print(tally, file=sys.stderr, flush=True)


class Stop:
    """Lets SIGINT and SIGTERM through while the next line is awaited, and holds them back in an answer.

    A second one goes through at once: an answer may hang.
    """

    def __init__(self) -> None:
        self.waiting = True
        self._held: int | None = None
        self._handlers: dict[int, Any] = {}

    def install(self) -> None:
        self._handlers = {one: signal.signal(one, self._signalled) for one in _SIGNALS}

    def remove(self) -> None:
        for one, handler in self._handlers.items():
            signal.signal(one, handler)

    def _signalled(self, received: int, frame: FrameType | None) -> None:
        if self.waiting or self._held is not None:
            self._handlers[received](received, frame)
        self._held = received

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Within the block a signal waits; after it, it takes its way."""
        self.waiting = False
        yield
        self.waiting = True
        if self._held is not None:
            self._handlers[self._held](self._held, None)


def answer_lines(
    lines: BinaryIO,
    out: BinaryIO,
    model: Published,
    answerer: Answerer,
    tally: Tally,
    *,
    stop: Stop | None = None,
    debug: bool = False,
) -> None:
    """Answers each line, in its order, before the next is read; returns at the end of ``lines``.

    Args:
        out: Unbuffered; each answer is written whole.
        tally: Counts up.
        debug: Show the traceback of an error that is none of the line's.
    """
    stop = stop or Stop()
    while line := lines.readline(LONGEST + 1):
        started = time.perf_counter()
        with stop.held_back():
            if not line.strip():
                continue
            if len(line) > LONGEST:
                _skip_rest(lines, line)
            said, failed = _answered(line, model, answerer, debug=debug)
            _write(out, json.dumps(said, allow_nan=False).encode() + b"\n")
            tally.lines += 1
            tally.errors += failed
            tally.seconds.append(time.perf_counter() - started)


def _answered(
    line: bytes, model: Published, answerer: Answerer, *, debug: bool
) -> tuple[dict[str, Any], bool]:
    """The answer to a line, or what is wrong with it, with the line's own id; and whether it is an error."""
    identity: dict[str, Any] = {}
    try:
        given = _read(line, answerer)
        identity = {"id": plain(given["id"])} if "id" in given else {}
        answer = plain(dict(answerer.answer(given)))
        return {**identity, **answer, "model": model.label, "synthetic_model": model.synthetic}, False
    except CasebookError as error:
        return {**identity, **_error(error)}, True
    except Exception as error:  # the next line may be a good one
        if debug:
            traceback.print_exc()
        # Without its text, which may quote what must not be told: a header, a path.
        known = of_the_machine(error) or CasebookError(
            f"An unexpected {type(error).__name__}.", "--debug shows where it came from; please report it."
        )
        return {**identity, **_error(known)}, True


def _read(line: bytes, answerer: Answerer) -> dict[str, Any]:
    if len(line) > LONGEST:
        raise InputError(f"A line has at most {LONGEST >> 20} MiB.", "Send less in one line, or a path.")
    remedy = f"A line looks like this: {answerer.line}"
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise InputError(f"The line is no JSON: {why}.", remedy) from None
    if not isinstance(given, dict):
        raise InputError(f"A line is an object of JSON; received {_kind(given)}.", remedy)
    return given


def _error(error: CasebookError) -> dict[str, Any]:
    return {"error": error.message, "remedy": error.remedy}


def _kind(value: Any) -> str:
    return {list: "a list", str: "text", type(None): "null", bool: "true or false"}.get(
        type(value), "a number"
    )


def _skip_rest(lines: BinaryIO, piece: bytes) -> None:
    while piece and not piece.endswith(b"\n"):
        piece = lines.readline(1 << 20)


def _write(out: BinaryIO, data: bytes) -> None:
    """All of ``data``: a pipe may take a long answer in pieces."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) or 0 :]


def _ready(model: Published, answerer: Answerer) -> str:
    beware = ", trained on synthetic data," if model.synthetic else ""
    return f"{model.label}{beware} is ready: a line of JSON in, a line of JSON out. A line: {answerer.line}"


@contextmanager
def _answers_only() -> Iterator[BinaryIO]:
    """The real stdout; whatever else prints to it in this process goes to stderr within the block."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield io.FileIO(kept, "wb", closefd=False)
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _stoppable() -> Iterator[Stop]:
    stop = Stop()
    stop.install()
    try:
        yield stop
    finally:
        stop.remove()


@contextmanager
def _quiet(*, verbose: bool) -> Iterator[None]:
    """What libraries say on stderr while they load says nothing to a person; ``--verbose`` lets it through."""
    from pipelines import prefect_setup

    prefect_setup.apply(verbose=verbose)
    if verbose:
        yield
        return
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as unread:
        for descriptor in (1, 2):
            os.dup2(unread.fileno(), descriptor)
        try:
            yield
        finally:
            sys.stdout.flush()  # of what was printed, which goes where stderr goes
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.dup2(kept, 1)
            os.close(kept)


def _leave_accelerators(config: Mapping[str, Any]) -> None:
    """One example at a time is no work for a GPU, and a process that stays would keep it from training."""
    if config.get("accelerator", {}).get("device") not in ("gpu", "gpus"):
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
