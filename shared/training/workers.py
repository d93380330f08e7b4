"""A member trained in a child process: by one, by several on this machine, or by one on each of several.

On several machines every one starts the same command with its own ``TF_CONFIG``. The chief makes
the run, and announces each member that it trains in a file of the runs folder, which all of them
share; the others look for it there and train along (:func:`follow`). An announcement is kept young
while the chief lives, so that nobody takes up that of a run that was killed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shared import cluster, files, fingerprint, lock, progress, worker
from shared.config import AcceleratorSection
from shared.errors import DeviceError
from shared.training import member
from shared.training.stopping import GRACE_SECONDS
from shared.worker import Call, Outcome

log = logging.getLogger("casebook.training")

_BEAT_SECONDS = 2.0
_STALE_SECONDS = 15.0
"""An announcement that was not renewed for so long is of a chief that is no more."""


def train(
    domain: str,
    prepared: str,
    config: Mapping[str, Any],
    fold: int,
    seed: int,
    plan: Mapping[str, Any],
    folder: str,
    *,
    runs: Path,
    timeout: float | None = None,
    memory_bytes: int | None = None,
    **options: Any,
) -> Outcome:
    """How :func:`shared.training.member.train_member` went in a child, or in one of each worker.

    At its time-out, and where the caller is interrupted, it gets time to write a checkpoint.

    Args:
        runs: Folder that all machines share; announcements lie there.
        memory_bytes: As of :func:`shared.worker.run`; for one process only.
        options: Further keywords of ``train_member``.

    Raises:
        DeviceError: The workers cannot be had.
    """
    section = AcceleratorSection.model_validate(config["accelerator"])
    size = cluster.size(section)
    if size > 1:
        config = {**config, "accelerator": {**config["accelerator"], "device": "workers", "workers": 1}}
    arguments = (domain, prepared, config, fold, seed, plan, folder)
    if size == 1:
        return worker.run(
            member.train_member,
            *arguments,
            timeout=timeout,
            grace=GRACE_SECONDS,
            memory_bytes=memory_bytes,
            **options,
        )
    if section.workers > 1:
        return _on_this_machine(size, arguments, options, timeout)
    with _announced(runs, arguments, options):
        return worker.run(member.train_member, *arguments, timeout=timeout, grace=GRACE_SECONDS, **options)


def _on_this_machine(
    size: int, arguments: tuple[Any, ...], options: Mapping[str, Any], timeout: float | None
) -> Outcome:
    calls = [
        Call(member.train_member, arguments, {**options, "lent": True}, environment)
        for environment in cluster.environments(size)
    ]
    with lock.held():
        outcomes = worker.together(calls, timeout=timeout, grace=GRACE_SECONDS)
    first = worker.first_failure(outcomes)
    if first is None:
        return outcomes[0]
    failed = outcomes[first]
    return replace(failed, message=f"Worker {first} of {size}: {failed.message}")


def follow(runs: Path, *, seconds: float) -> int:
    """Trains along with the chief until its run is over; how many members were trained.

    Args:
        runs: Folder that all machines share.
        seconds: How long to wait for the chief.

    Raises:
        DeviceError: No chief came, or it is gone.
        WorkerError, CasebookError: Training failed here.
    """
    me = cluster.of_environment()
    board = _board(runs)
    began = _touched(board, me.index)
    done, waited = 0, time.monotonic()
    last: str | None = None
    while True:
        found = _read(board, me.index, since=began)
        if found is not None and found["state"] == "failed":
            raise DeviceError("The chief's run failed.", f"Look at the output of {me.addresses[0]}.")
        if found is not None and found["state"] == "over":
            return done
        if found is not None and found["state"] == "train" and found["job"] != last:
            last = found["job"]
            log.info("Training %s as worker %d of %d", last, me.index, me.size)
            outcome = worker.run(
                member.train_member, *found["arguments"], grace=GRACE_SECONDS, **found["options"]
            )
            worker.value_of(outcome, "train_member")
            done, waited = done + 1, time.monotonic()
            continue
        progress.emit("waiting for the chief", int(time.monotonic() - waited))
        if time.monotonic() - waited > seconds:
            raise DeviceError(
                f"The chief {me.addresses[0]} announced nothing in {runs} for {seconds:.0f} s.",
                "Start the same command on it (task index 0), with CASEBOOK_RUNS on a folder that all machines share.",
            )
        time.sleep(0.2)


def dismiss(section: AcceleratorSection, runs: Path, *, well: bool) -> None:
    """The chief's run has ended: the others may leave."""
    if section.workers == 1 and cluster.size(section) > 1:
        files.write_json(_board(runs), {"state": "over" if well else "failed"})


@contextlib.contextmanager
def _announced(runs: Path, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Iterator[None]:
    board = _board(runs)
    board.parent.mkdir(parents=True, exist_ok=True)
    told = {
        "state": "train",
        "job": fingerprint.of(arguments[-1], time.time()),
        "arguments": list(arguments),
        "options": dict(options),
    }
    files.write_json(board, told)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_BEAT_SECONDS):
            with contextlib.suppress(OSError):
                board.touch()

    heart = threading.Thread(target=beat, name="casebook-announcement", daemon=True)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()
        files.write_json(board, {"state": "between"})


def _board(runs: Path) -> Path:
    me = cluster.of_environment()
    return runs / ".workers" / f"{fingerprint.of(list(me.addresses))}.json"


def _read(board: Path, index: int, *, since: float) -> dict[str, Any] | None:
    """The announcement of a chief that lives, or of one that has ended after ``since``.

    Times are those of the file system, whose clock all machines share.
    """
    try:
        now, told = _touched(board, index), board.stat().st_mtime
        found = dict(files.read_json(board))
    except (OSError, ValueError):
        return None
    young = now - told < _STALE_SECONDS if found["state"] == "train" else told > since
    return found if young else None


def _touched(board: Path, index: int) -> float:
    mine = board.with_suffix(f".{index}")
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.touch()
    return mine.stat().st_mtime
