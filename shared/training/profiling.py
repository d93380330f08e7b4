"""A TensorFlow profile of a few calls of training, and in which ops their time went.

The profile itself (``plugins/profile/<time>/<host>.xplane.pb``) is for XProf or TensorBoard. What can
be read from it at once, without either, stands beside it in ``summary.json``.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shared import files

log = logging.getLogger("casebook.training")

SUMMARY = "summary.json"
LARGEST_READ = 64 * 1024**2
"""Bytes of the largest profile that is read for its summary: about a million events, some seconds."""
SCHEDULING = "small ops and their scheduling"
"""What TensorFlow's executor spends outside the ops that it traces; much of it calls for larger steps."""
_SHOWN = 12


class Profile:
    """Profiles ``calls`` calls from number ``first`` on; does nothing where ``folder`` is None.

    Whatever the profiler refuses (another one is running, the disk is full) is a warning: training
    goes on.

    Args:
        folder: Made when the profile is written.
        first: Number of the first call that is profiled, counted from 0 in this process. The call
            number 0 traces and compiles: begin after it.
        calls: How many.
    """

    def __init__(self, folder: Path | None, *, first: int, calls: int) -> None:
        self.folder, self.first, self.last = folder, first, first + calls - 1
        self._running = False
        self._done = folder is None

    def before_call(self, number: int) -> None:
        if self._done or self._running or number < self.first:
            return
        import tensorflow as tf  # not at the top: the report reads summaries without it

        try:
            tf.profiler.experimental.start(str(self.folder))
        except (tf.errors.OpError, OSError) as error:
            self._done = True
            log.warning("No profile is written: %s", _first_line(error))
            return
        self._running = True

    def after_call(self, number: int) -> None:
        if self._running and number >= self.last:
            self.close()

    def close(self) -> None:
        """Writes what was profiled so far; call it where training ends, however it ends."""
        if self.folder is not None and not self._running and not self._done:
            self._done = True
            log.warning(
                "No profile of %s is written: it ended before its call number %d, the first that is profiled.",
                self.folder.name, self.first + 1,
            )  # fmt: skip
        if not self._running or self.folder is None:
            return
        import tensorflow as tf

        self._running, self._done = False, True
        try:
            tf.profiler.experimental.stop()
            found = summary(self.folder)
            if found:
                files.write_json(self.folder / SUMMARY, found)
        except (tf.errors.OpError, OSError) as error:
            log.warning("The profile could not be written: %s", _first_line(error))
            return
        log.info(
            "A profile of calls %d to %d is in %s%s; to see it: pip install xprof, xprof --logdir %s",
            self.first, self.last, self.folder, said(found), self.folder,
        )  # fmt: skip


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def said(found: dict[str, Any], most: int = 5) -> str:
    """A summary in a few words, to go behind a sentence; empty where there is none.

    >>> said({"ops": [{"name": "MatMul", "share": 0.613}, {"name": "Relu", "share": 0.2}]})
    ': MatMul 61%, Relu 20%'
    """
    shown = [f"{op['name']} {op['share']:.0%}" for op in found.get("ops", ())[:most]]
    return ": " + ", ".join(shown) if shown else ""


def summary(folder: Path) -> dict[str, Any]:
    """Where the time went in the newest profile below ``folder``; empty where that cannot be read.

    Returns:
        ``where``: ``"device"`` (kernels of all GPUs) or ``"host"`` (ops on the CPU); ``seconds``: sum
        of their own time, over all threads or streams; ``ops``: the largest, each with ``name`` (type
        of op, or kernel), ``seconds``, ``share`` of that sum and ``count``; ``input_seconds``: that
        training waited for the next batch.
    """
    written = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
    if not written or written[-1].stat().st_size > LARGEST_READ:
        return {}
    try:
        # TensorFlow's own description of its files; it is no public name, and may move.
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        space = xplane_pb2.XSpace.FromString(written[-1].read_bytes())
    except Exception as error:
        log.debug("The profile %s cannot be read: %s", written[-1], error)
        return {}
    host = [plane for plane in space.planes if plane.name.startswith("/host:CPU")]
    device = [plane for plane in space.planes if plane.name.startswith("/device:GPU")]
    seconds, count = _kernels(device) if device else _ops(host)
    whole = sum(seconds.values())
    return {
        "where": "device" if device else "host",
        "seconds": round(whole, 6),
        "ops": [
            {"name": name, "seconds": round(own, 6), "share": round(own / whole, 4), "count": count[name]}
            for name, own in seconds.most_common(_SHOWN)
            if own > 0
        ],
        "input_seconds": round(_waited(host), 6),
    }


Times = tuple[Counter[str], Counter[str]]
"""Seconds of its own, and how often, by name."""


def _ops(planes: Iterable[Any]) -> Times:
    """Ops of the host by type, each without what ran inside it on its thread."""
    seconds: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for name, own in _own_times(planes):
        kind = SCHEDULING if name.startswith("ExecutorState::") else op_type(name)
        if kind:
            seconds[kind] += own  # type: ignore[assignment]
            count[kind] += 1
    return seconds, count


def _kernels(planes: Iterable[Any]) -> Times:
    seconds: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for plane in planes:
        for line in plane.lines:
            if line.name.startswith("Stream"):
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name
                    seconds[name] += event.duration_ps * 1e-12  # type: ignore[assignment]
                    count[name] += 1
    return seconds, count


def _waited(planes: Iterable[Any]) -> float:
    return sum(
        event.duration_ps * 1e-12
        for plane in planes
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name == "IteratorGetNextOp::DoCompute"
    )


def _own_times(planes: Iterable[Any]) -> Iterator[tuple[str, float]]:
    """(name, seconds without those of the events inside it) of every event of the planes."""
    for plane in planes:
        for line in plane.lines:
            # Outer ones first; an event is inside what is still open when it begins.
            events = sorted(line.events, key=lambda event: (event.offset_ps, -event.duration_ps))
            own = [event.duration_ps for event in events]
            open_: list[int] = []
            for place, event in enumerate(events):
                while open_ and event.offset_ps >= _end(events[open_[-1]]):
                    open_.pop()
                if open_:
                    own[open_[-1]] -= min(event.duration_ps, _end(events[open_[-1]]) - event.offset_ps)
                open_.append(place)
            for event, time in zip(events, own, strict=True):
                yield plane.event_metadata[event.metadata_id].name, max(time, 0) * 1e-12


def _end(event: Any) -> int:
    return int(event.offset_ps + event.duration_ps)


def op_type(event: str) -> str:
    """The type of op that an event of the host's threads tells of; empty where of none.

    >>> op_type("sequential/dense/MatMul:MatMul"), op_type("Iterator::Root::Prefetch"), op_type("Run")
    ('MatMul', '', '')
    """
    found = re.fullmatch(r".*[^:]:([A-Za-z_]\w*)", event)
    return found.group(1) if found else ""
