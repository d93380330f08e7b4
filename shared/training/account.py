"""What a phase of training tells while it runs, and what remains of it: progress, lines, rows, the result."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shared import input_pipeline, progress
from shared.contract import Source
from shared.training.state import Row, State
from shared.training.watching import Watch

log = logging.getLogger("casebook.training")


@dataclass(frozen=True)
class PhaseResult:
    """How a phase went. The model holds the weights of the best epoch.

    Attributes:
        history: One row an epoch, see :data:`Row`; with rows of steps in between where they were asked for.
        best: Value of the monitor at the best epoch; None where it was never finite.
        best_epoch: From 1; the last one where there was no best; 0: the phase's start was never beaten.
        stopped: ``"early"`` or ``"epochs"``.
        seconds: Of training and validating, over all attempts.
        samples_per_second: Median over the epochs, training only.
        input_bound_share: Share of a step that waited for input, 0..1.
        advice: What to do about that share; empty where it is small.
        notes: What else a person should know: 16 bits that go another way than float32, random
            numbers that a resumed training will not repeat.
    """

    history: list[Row]
    monitor: str
    best: float | None
    best_epoch: int
    stopped: str
    seconds: float
    samples_per_second: float
    input_bound_share: float
    advice: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        return sum(row.get("kind") != "step" for row in self.history)


@dataclass
class Account:
    """Tells of one phase.

    Attributes:
        label: Of the progress bar and the lines in the log.
        phase: Its name.
        train: Whose examples are read.
        monitored: Name of the number that decides on the best epoch.
        batch, steps, epochs: Examples a step, steps an epoch, epochs at most.
        cached_step: Seconds of a step that waits for no input.
    """

    label: str
    phase: str
    train: Source
    monitored: str
    batch: int
    steps: int
    epochs: int
    watch: Watch
    cached_step: float = 0.0

    def __post_init__(self) -> None:
        self._earlier = list(self.watch.recorder.rows)
        self._sampled: set[str] = set()

    def begin(self, at: State) -> None:
        """What the files hold is what has happened up to here, and no more."""
        self.watch.recorder.back_to([*self._earlier, *at.history])

    def steps_done(self, at: State, rate: float) -> None:
        """Reports the running loss, and the last validation's monitor beside it."""
        done = at.epoch * self.steps + at.step
        row = {"phase": self.phase, "epoch": at.epoch + 1, "step": done, "loss": at.mean_loss, "lr": rate}
        if self.watch.recorder.step(row):
            at.history.append(self.watch.recorder.rows[-1])
        numbers: dict[str, Any] = {"loss": at.mean_loss}
        name = f"val_{self.monitored}"
        if at.last is not None and name in at.last:
            numbers[name] = at.last[name]
        progress.emit(self.label, done, self.epochs * self.steps, **numbers)

    def row(self, at: State, rate: float) -> Row:
        """Of the epoch whose steps are done."""
        a_step = at.seconds / self.steps
        return {
            "phase": self.phase,
            "epoch": at.epoch + 1,
            "loss": at.mean_loss,
            "lr": rate,
            "seconds": 0.0,
            "samples_per_second": round(self.batch / a_step, 2),
            "input_bound_share": input_pipeline.input_bound_share(a_step, self.cached_step),
        }

    def sampled(self) -> dict[str, float]:
        """What host and device were used since the last epoch."""
        used = self.watch.sampler.take()
        self._sampled = set(used)
        return used

    def epoch_done(self, at: State) -> None:
        """One line in the log; of what was sampled the report tells."""
        row = at.last
        assert row is not None
        self.watch.recorder.epoch(row)
        numbers = " ".join(
            f"{name} {value:.4g}"
            for name, value in row.items()
            if isinstance(value, float) and name not in self._sampled
        )
        best = " (best)" if at.monitor.best_epoch == at.epoch else ""
        log.info("%s: epoch %d/%d %s%s", self.label, at.epoch, self.epochs, numbers, best)

    def result(self, at: State) -> PhaseResult:
        rows, monitor = at.epochs, at.monitor
        speed = float(np.median([row["samples_per_second"] for row in rows]))
        share = float(np.median([row["input_bound_share"] for row in rows]))
        advice = input_pipeline.advice(
            share,
            in_memory=self.train.gather is not None,
            augmented=self.train.augment is not None,
            epoch_seconds=self.batch * self.steps / speed,
        )
        if advice:
            log.info("%s: %s", self.label, advice)
        return PhaseResult(
            history=at.history,
            monitor=self.monitored,
            best=monitor.best,
            best_epoch=at.epoch if monitor.best is None else monitor.best_epoch,
            stopped="early" if at.epoch < self.epochs else "epochs",
            seconds=round(sum(row["seconds"] for row in rows), 4),
            samples_per_second=speed,
            input_bound_share=share,
            advice=advice,
            notes=at.notes,
        )
