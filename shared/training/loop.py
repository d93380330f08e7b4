"""The training loop: one phase, on one device or mirrored over several, resumable at any moment.

What it does is a function of the data, the seed and the plan alone. Everything that the next step
depends on is in a checkpoint (weights, seed generators, optimizer, early stopping, position), so a
training that was killed ends, on a CPU, with the same numbers to the bit.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from shared import input_pipeline, mixed_precision, progress
from shared.config import TrainSection
from shared.contract import Phase, Source
from shared.errors import TrainingError
from shared.plan import ExecutionPlan
from shared.training import checkpoint, learning_rate
from shared.training.checkpoint import Checkpoint, Checkpoints
from shared.training.monitor import Monitor, require_sound
from shared.training.predict import Evaluator, Forward
from shared.training.step import make_stepper, seconds_per_step

log = logging.getLogger("casebook.training")

SECONDS_BETWEEN_CHECKPOINTS = 600.0
"""Epochs longer than this are checkpointed in their midst too."""

Row = dict[str, Any]
"""One epoch: phase, epoch, loss, val_loss, val_<metric>, lr, seconds, samples_per_second, input_bound_share."""


@dataclass(frozen=True)
class PhaseResult:
    """How a phase went. The model holds the weights of the best epoch.

    Attributes:
        history: One row an epoch, see :data:`Row`.
        best: Value of the monitor at the best epoch; None where it was never finite.
        best_epoch: From 1; the last one where there was no best; 0: the phase's start was never beaten.
        stopped: ``"early"`` or ``"epochs"``.
        seconds: Of training and validating, over all attempts.
        samples_per_second: Median over the epochs, training only.
        input_bound_share: Share of a step that waited for input, 0..1.
        advice: What to do about that share; empty where it is small.
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

    @property
    def epochs(self) -> int:
        return len(self.history)


def train_phase(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    phase: Phase,
    train: Source,
    validation: Source | None,
    plan: ExecutionPlan,
    section: TrainSection,
    *,
    seed: int,
    checkpoints: Checkpoints | None = None,
    on_epoch: Callable[[list[Row]], None] | None = None,
    label: str = "",
    determinism: Mapping[str, Any] | None = None,
) -> PhaseResult:
    """Trains ``model`` as ``phase`` says, from the newest checkpoint where there is one.

    Args:
        model: Built inside ``strategy.scope()``; ends with the weights of its best epoch.
        train, validation: Sources, cached by the caller. Without validation (None, or empty) the
            training loss is monitored.
        seed: Of order and augmentation.
        checkpoints: Where moments are kept; None: nowhere.
        on_epoch: Called after each epoch with all rows so far.
        label: Of the progress bar; default: the phase's name.
        determinism: What the numbers depend on beside data, seed and plan (threads, device); a
            warning says where it differs from the checkpoint's.

    Raises:
        TrainingError: NaN or Inf in loss or weights, or a loss that cannot be trained.
    """
    return _PhaseRun(
        strategy=strategy,
        model=model,
        phase=phase,
        train=train,
        validation=validation if validation is not None and validation.count else None,
        plan=plan,
        section=section,
        seed=seed,
        checkpoints=checkpoints,
        on_epoch=on_epoch,
        label=label or phase.name,
        determinism=dict(determinism or {}),
    ).run()


@dataclass
class _PhaseRun:
    strategy: tf.distribute.Strategy
    model: keras.Model
    phase: Phase
    train: Source
    validation: Source | None
    plan: ExecutionPlan
    section: TrainSection
    seed: int
    checkpoints: Checkpoints | None
    on_epoch: Callable[[list[Row]], None] | None
    label: str
    determinism: dict[str, Any]

    def __post_init__(self) -> None:
        if self.train.count < 1:
            raise TrainingError(f"Phase {self.phase.name!r} has no training examples.")
        self.epochs = self.section.epochs or self.phase.epochs
        self.batch = input_pipeline.training_batch_size(self.train.count, self.plan)
        self.steps = input_pipeline.steps_per_epoch(self.train.count, self.plan)
        self.monitored = self.phase.monitor if self.validation is not None else "loss"
        if self.monitored != "loss" and self.monitored not in self.phase.metrics:
            raise TrainingError(
                f"Phase {self.phase.name!r} monitors {self.monitored!r}, which is none of its metrics.",
                f"Known: loss, {', '.join(self.phase.metrics)}.",
            )
        mode = self.phase.monitor_mode if self.monitored != "loss" else "min"
        self.monitor = Monitor(self.monitored, mode, self.section.patience)
        self.history: list[Row] = []
        self.best: dict[str, np.ndarray] | None = None
        self.epoch, self.step = 0, 0  # finished epochs, finished steps of the current one
        self.totals, self.spent = [0.0, 0.0], 0.0  # of the current epoch: loss and weight, seconds

    def run(self) -> PhaseResult:
        peak = self.peak_rate()
        warmup = learning_rate.warmup_steps(self.epochs * self.steps, self.section.warmup_share)
        self.shape_of_rate: dict[str, Any] = {
            "peak": peak,
            "total": self.epochs * self.steps,
            "warmup": warmup,
            "kind": self.section.schedule,
        }
        self.build_if_needed()
        mixed_precision.check_float32_head(self.model)
        self.stepper = make_stepper(
            self.model,
            self.phase.loss,
            self.plan,
            rate=learning_rate.schedule(**self.shape_of_rate),
            section=self.section,
            strategy=self.strategy,
        )
        metrics = {name: make() for name, make in self.phase.metrics.items()}
        forward = Forward(self.model, strategy=self.strategy)
        self.evaluator = Evaluator(forward, self.stepper.example_losses, metrics)
        self.resume()
        if self.phase.refines and self.validation is not None and (self.epoch, self.step) == (0, 0):
            self.count_the_start()
        if not self.finished:
            self.cached_step = self.measure_cached_step()
            log.info(
                "%s: %d examples, batch %d, %d steps an epoch, at most %d epochs, rate %.3g",
                self.label, self.train.count, self.batch, self.steps, self.epochs, peak,
            )  # fmt: skip
        while not self.finished:
            self.one_epoch()
        if self.best is not None:
            checkpoint.assign(self.model.variables, self.best, "the best epoch's weights")
        return self.result()

    @property
    def finished(self) -> bool:
        return self.epoch >= self.epochs or (self.step == 0 and self.epoch > 0 and self.monitor.stop)

    def peak_rate(self) -> float:
        """The phase's rate times the plan's factor, corrected where there is less than a batch."""
        base = self.section.learning_rate or self.phase.learning_rate
        rule = self.plan.learning_rate_rule
        shrunk = learning_rate.factor(rule, self.batch) / learning_rate.factor(rule, self.plan.batch_size)
        return base * self.plan.learning_rate_factor * shrunk

    def build_if_needed(self) -> None:
        if self.model.built:
            return
        x = input_pipeline.first_example(self.train)[0]
        with self.strategy.scope():
            self.model(tf.nest.map_structure(lambda part: tf.convert_to_tensor(part)[tf.newaxis], x))

    def batches(self, epoch: int, skip: int = 0) -> tf.data.Dataset:
        return input_pipeline.training_batches(
            self.train, self.plan, seed=self.seed, epoch=epoch, skip_steps=skip
        )

    def count_the_start(self) -> None:
        """The weights that the phase starts with are a solution: they stand until an epoch is better."""
        self.monitor.update(0, self.validate()[self.monitored])
        self.best = checkpoint.values(self.model.variables)

    def measure_cached_step(self) -> float:
        """Seconds of a step without input, and the compilation, at no cost to the training's state."""
        variables = [*self.model.variables, *self.stepper.optimizer.variables]
        before = [np.array(variable.numpy()) for variable in variables]
        batches = input_pipeline.one_batch(self.train, self.plan)
        seconds = seconds_per_step(self.stepper, batches, min(self.plan.steps_per_call, self.steps))
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        return seconds

    def one_epoch(self) -> None:
        last = saved = time.perf_counter()
        iterator = self.stepper.iterate(self.batches(self.epoch, self.step))
        while self.step < self.steps:
            count = min(self.plan.steps_per_call, self.steps - self.step)
            loss, weight = self.stepper.run(iterator, count)
            self.step += count
            self.totals = [self.totals[0] + loss, self.totals[1] + weight]
            now = time.perf_counter()
            self.spent, last = self.spent + now - last, now
            if not math.isfinite(loss):
                require_sound(loss, self.model.variables, self.place())
            self.tell()
            if now - saved > SECONDS_BETWEEN_CHECKPOINTS and self.step < self.steps:
                require_sound(self.mean_loss(), self.model.variables, self.place())
                self.save()
                saved = now
        # Only now: weights can be NaN while the loss reads well (tensorflow#24320).
        require_sound(self.mean_loss(), self.model.variables, self.place())
        row = self.row()
        measured = self.validate()
        row.update({f"val_{name}": value for name, value in measured.items()})
        row["seconds"] = round(self.spent + time.perf_counter() - last, 4)
        self.end_epoch(row, measured)

    def row(self) -> Row:
        a_step = self.spent / self.steps
        return {
            "phase": self.phase.name,
            "epoch": self.epoch + 1,
            "loss": self.mean_loss(),
            "lr": self.rate_now(),
            "seconds": 0.0,
            "samples_per_second": round(self.batch / a_step, 2),
            "input_bound_share": input_pipeline.input_bound_share(a_step, self.cached_step),
        }

    def end_epoch(self, row: Row, measured: Mapping[str, float]) -> None:
        self.history.append(row)
        self.epoch += 1
        self.step, self.totals, self.spent = 0, [0.0, 0.0], 0.0
        if self.monitor.update(self.epoch, measured[self.monitored] if measured else row["loss"]):
            self.best = checkpoint.values(self.model.variables)
        self.log_row(row)
        self.save()
        if self.on_epoch:
            self.on_epoch(self.history)

    def validate(self) -> dict[str, float]:
        if self.validation is None:
            return {}
        return self.evaluator.run(self.validation, self.plan)

    def mean_loss(self) -> float:
        return self.totals[0] / self.totals[1] if self.totals[1] else 0.0

    def rate_now(self) -> float:
        done = self.epoch * self.steps + max(0, self.step - 1)
        return learning_rate.rate(done, **self.shape_of_rate)

    def place(self) -> str:
        return f"phase {self.phase.name}, epoch {self.epoch + 1}, step {self.step}"

    def tell(self) -> None:
        """Reports the running loss, and the last validation's monitor beside it."""
        numbers: dict[str, Any] = {"loss": self.mean_loss()}
        name = f"val_{self.monitored}"
        if self.history and name in self.history[-1]:
            numbers[name] = self.history[-1][name]
        done, total = self.epoch * self.steps + self.step, self.epochs * self.steps
        progress.emit(self.label, done, total, **numbers)

    def log_row(self, row: Row) -> None:
        numbers = " ".join(f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, float))
        best = " (best)" if self.monitor.best_epoch == self.epoch else ""
        log.info("%s: epoch %d/%d %s%s", self.label, self.epoch, self.epochs, numbers, best)

    def save(self) -> None:
        if self.checkpoints is None:
            return
        groups = {
            "model": checkpoint.values(self.model.variables),
            "optimizer": checkpoint.values(self.stepper.optimizer.variables),
        }
        model_is_best = self.step == 0 and self.monitor.best_epoch == self.epoch
        if self.best is not None and not model_is_best:
            groups["best"] = self.best
        meta = {
            "epoch": self.epoch,
            "step": self.step,
            "batch_size": self.batch,
            "steps": self.steps,
            "seed": self.seed,
            "totals": self.totals,
            "spent": self.spent,
            "monitor": self.monitor.to_dict(),
            "history": self.history,
            "determinism": self.determinism,
        }
        self.checkpoints.save(Checkpoint(groups, meta))

    def resume(self) -> None:
        if self.checkpoints is None:
            return
        found = self.checkpoints.newest()
        if found is None:
            return
        meta = found.meta
        if meta["seed"] != self.seed:
            raise TrainingError(
                f"The checkpoints in {self.checkpoints.folder} are of seed {meta['seed']}, received {self.seed}.",
                "Give every training a folder of its own.",
            )
        checkpoint.assign(self.model.variables, found.groups["model"], "The checkpoint")
        checkpoint.assign(self.stepper.optimizer.variables, found.groups["optimizer"], "The checkpoint")
        self.epoch, self.step = int(meta["epoch"]), int(meta["step"])
        self.totals, self.spent = list(meta["totals"]), float(meta["spent"])
        self.monitor = Monitor(**{**meta["monitor"], "patience": self.section.patience})
        self.history = [dict(row) for row in meta["history"]]
        if self.monitor.best is not None:
            self.best = dict(found.groups.get("best", found.groups["model"]))
        if (meta["batch_size"], meta["steps"]) != (self.batch, self.steps):
            self.move_to_new_batch(int(meta["batch_size"]))
        for name, value in self.determinism.items():
            if meta["determinism"].get(name, value) != value:
                log.warning(
                    "%s was %s and is %s now: the numbers may differ from an uninterrupted run's.",
                    name, meta["determinism"][name], value,
                )  # fmt: skip
        log.info("%s: resumed after epoch %d, step %d", self.label, self.epoch, self.step)

    def move_to_new_batch(self, old: int) -> None:
        """The plan changed between two attempts: keep the place in the data, and in the schedule."""
        self.step = min(self.steps, self.step * old // self.batch)
        done = self.epoch * self.steps + self.step
        self.stepper.optimizer.iterations.assign(done)
        log.warning(
            "The batch was %d and is %d now: the learning-rate schedule was made anew, at step %d of %d.",
            old, self.batch, done, self.epochs * self.steps,
        )  # fmt: skip

    def result(self) -> PhaseResult:
        speeds = [row["samples_per_second"] for row in self.history]
        share = float(np.median([row["input_bound_share"] for row in self.history]))
        advice = input_pipeline.advice(
            share,
            in_memory=self.train.gather is not None,
            augmented=self.train.augment is not None,
            epoch_seconds=self.batch * self.steps / float(np.median(speeds)),
        )
        if advice:
            log.info("%s: %s", self.label, advice)
        return PhaseResult(
            history=self.history,
            monitor=self.monitored,
            best=self.monitor.best,
            best_epoch=self.epoch if self.monitor.best is None else self.monitor.best_epoch,
            stopped="early" if self.epoch < self.epochs else "epochs",
            seconds=round(sum(row["seconds"] for row in self.history), 4),
            samples_per_second=float(np.median(speeds)),
            input_bound_share=share,
            advice=advice,
        )
