"""What a training leaves to be read: ``history.jsonl``, lines in the log, and TensorBoard's files.

The history has one JSON object a line. A line of an epoch has no ``kind``; one of the steps in between
is ``{"kind": "step", "phase", "epoch", "step", "loss", "lr"}``, with ``step`` counted from the phase's
start. It is written whole at every epoch, and lines of steps are put behind it meanwhile, so that a long
epoch can be followed. A training that was killed rewrites it from its checkpoint before it goes on: what
came after that is written again, and stands there once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared import files
from shared.runs.history import NAME, STEP

log = logging.getLogger("casebook.training")

Row = dict[str, Any]


class Recorder:
    """Records one member's training; see the module.

    Args:
        home: The member's folder; None: nothing is written, and the log is told all the same.
        every_steps: A line each time this many steps of a phase are full; 0: never. Where several
            steps are one call, a line stands at the first call that reaches the number.
        tensorboard: Write ``home/tensorboard/<phase>``, scalars of epochs over epochs and those of
            steps, as ``steps/loss``, over steps.
        before: All rows up to here, those of steps included: of earlier phases and of the checkpoint
            that this training goes on from. They replace what the files hold.
        label: Of the lines in the log; default: the phase's name.
    """

    def __init__(
        self,
        home: Path | None,
        *,
        every_steps: int,
        tensorboard: bool,
        before: Sequence[Row] = (),
        label: str = "",
    ) -> None:
        self.every_steps, self.label = every_steps, label
        self._path = None if home is None else home / NAME
        self._board = Board(home / "tensorboard") if tensorboard and home is not None else None
        self.back_to(before)

    def back_to(self, rows: Sequence[Row]) -> None:
        """Takes ``rows`` for all that has happened: training goes on from the moment that had them."""
        self.rows: list[Row] = list(rows)
        self._lines = [_line(row) for row in self.rows]
        self._told = {row["phase"]: row["step"] for row in self.rows if row.get("kind") == STEP}
        if self._path is not None and (self.rows or self._path.exists()):
            self._write()
        if self._board is not None:
            self._board.close()  # the next row writes its phase anew

    def due(self, phase: str, step: int) -> bool:
        """Whether a line is due now that ``step`` steps of the phase are done."""
        every = self.every_steps
        return every > 0 and step // every > self._told.get(phase, 0) // every

    def step(self, row: Mapping[str, Any]) -> bool:
        """Records the running loss, where that is due; says whether it was.

        Args:
            row: ``phase``, ``epoch`` (from 1), ``step`` (steps of the phase that are done), ``loss``, ``lr``.
        """
        if not self.due(row["phase"], row["step"]):
            return False
        made = {"kind": STEP, **row}
        self._told[row["phase"]] = row["step"]
        self._keep(made)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Not whole: an epoch may have thousands of these, and the next epoch writes it whole.
            with self._path.open("a", encoding="utf-8") as file:
                file.write(self._lines[-1])
        log.info(
            "%s: epoch %d, step %d %s", self.label or row["phase"], row["epoch"], row["step"], _numbers(row)
        )
        self._tell_board(made)
        return True

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Records a finished epoch: ``phase``, ``epoch`` (from 1), and its numbers."""
        made = dict(row)
        self._keep(made)
        self._write()
        self._tell_board(made)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()

    def _keep(self, row: Row) -> None:
        self.rows.append(row)
        self._lines.append(_line(row))

    def _write(self) -> None:
        if self._path is not None:
            files.write_text(self._path, "".join(self._lines))

    def _tell_board(self, row: Row) -> None:
        if self._board is not None:
            self._board.write(row, self.rows[:-1])


def _line(row: Mapping[str, Any]) -> str:
    """One JSON object; NaN becomes null."""
    return json.dumps(files.plain(dict(row)), allow_nan=False) + "\n"


def _numbers(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, float))


class Board:
    """TensorBoard's files, a folder a phase; the package ``tensorboard`` is not needed to write them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._phase: str | None = None
        self._writer: Any = None

    def write(self, row: Row, before: Iterable[Row]) -> None:
        """Adds a row; ``before`` are those that stand already, written anew where this is the first."""
        if row["phase"] != self._phase:
            self._open(row["phase"], before)
        self._scalars(row)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._phase = self._writer = None

    def _open(self, phase: str, before: Iterable[Row]) -> None:
        import tensorflow as tf

        self.close()
        # What an earlier attempt wrote is in `before`, or is about to be trained again.
        for old in (self.folder / phase).glob("events.out.tfevents.*"):
            old.unlink()
        self._phase, self._writer = phase, tf.summary.create_file_writer(str(self.folder / phase))
        for row in before:
            if row["phase"] == phase:
                self._scalars(row)

    def _scalars(self, row: Row) -> None:
        import tensorflow as tf

        # tf.summary.scalar would import the package tensorboard, only to make this.
        summary = tf.compat.v1.SummaryMetadata
        scalar = summary(plugin_data=summary.PluginData(plugin_name="scalars"), data_class=1)
        prefix, step = ("steps/", row["step"]) if row.get("kind") == STEP else ("", row["epoch"])
        with self._writer.as_default():
            for name, value in row.items():
                if isinstance(value, float):
                    tf.summary.write(prefix + name, tf.constant(value), step=step, metadata=scalar)
