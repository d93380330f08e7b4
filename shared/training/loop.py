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
import tensorflow as tf

from shared import input_pipeline, mixed_precision
from shared.config import TrainSection
from shared.contract import Phase, Source
from shared.errors import TrainingError
from shared.plan import ExecutionPlan
from shared.training import checkpoint, crew, diagnosis, learning_rate, preflight, state
from shared.training.account import Account, PhaseResult
from shared.training.callbacks import Callbacks
from shared.training.checkpoint import Checkpoint, Checkpoints
from shared.training.monitor import Monitor, first_unsound, require_sound
from shared.training.predict import Evaluator, Forward
from shared.training.state import Row, State
from shared.training.step import Taken, make_stepper, seconds_per_step
from shared.training.stopping import Stopped
from shared.training.watching import Watch

__all__ = ["PhaseResult", "Row", "train_phase"]

log = logging.getLogger("casebook.training")

SECONDS_BETWEEN_CHECKPOINTS = 600.0
"""Epochs longer than this are checkpointed in their midst too."""

SECONDS_AT_RISK = 60.0
"""More training than this is kept before validation, which hears no one who tells it to stop."""


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
    watch: Watch | None = None,
) -> PhaseResult:
    """Trains ``model`` as ``phase`` says, from the newest checkpoint where there is one.

    Args:
        model: Built inside ``strategy.scope()``; ends with the weights of its best epoch.
        train, validation: Sources, cached by the caller. Without validation (None, or empty) the
            training loss is monitored.
        seed: Of order and augmentation.
        checkpoints: Where moments are kept; None: nowhere. Several workers need a place only for the
            chief's, whose moments all of them get.
        on_epoch: Called after each epoch with the rows of all epochs so far.
        label: Of the progress bar; default: the phase's name.
        determinism: What the numbers depend on beside data, seed and plan (threads, device); a
            warning says where it differs from the checkpoint's.
        watch: Keras callbacks, history file, samples of host and device, profile, and who may stop it.

    Raises:
        TrainingError: NaN or Inf in loss, gradients or weights: the model stands at the last good moment
            then; or a loss that cannot be trained.
        Stopped: It was told to stop, and a checkpoint was written.
        DeviceError: Another worker was lost.
    """
    this = _PhaseRun(
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
        watch=watch or Watch(),
    )
    with crew.told(this.crew):
        try:
            return this.run()
        finally:
            this.watch.profile.close()


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
    watch: Watch

    def __post_init__(self) -> None:
        if self.train.count < 1:
            raise TrainingError(f"Phase {self.phase.name!r} has no training examples.")
        self.crew = crew.of(self.strategy)
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
        self.state = State(Monitor(self.monitored, mode, self.section.patience))
        self.account = Account(
            label=self.label,
            phase=self.phase.name,
            train=self.train,
            monitored=self.monitored,
            batch=self.batch,
            steps=self.steps,
            epochs=self.epochs,
            watch=self.watch,
        )
        self.calls = 0
        self.scaled = self.plan.precision == "mixed_float16"

    def run(self) -> PhaseResult:
        peak = self.peak_rate()
        self.shape_of_rate: dict[str, Any] = {
            "peak": peak,
            "total": self.epochs * self.steps,
            "warmup": learning_rate.warmup_steps(self.epochs * self.steps, self.section.warmup_share),
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
        self.optimizer = self.stepper.optimizer
        metrics = {name: make() for name, make in self.phase.metrics.items()}
        forward = Forward(self.model, strategy=self.strategy)
        self.evaluator = Evaluator(forward, self.stepper.example_losses, metrics)
        self.callbacks = Callbacks(
            self.watch.callbacks,
            self.model,
            self.optimizer,
            self.phase.loss,
            epochs=self.epochs,
            steps=self.steps,
        )
        self.start()
        while not self.finished:
            self.one_epoch()
        self.callbacks.end()
        if self.state.best is not None:
            checkpoint.assign(self.model.variables, self.state.best, "the best epoch's weights")
        return self.account.result(self.state)

    def start(self) -> None:
        """From the newest checkpoint, or from the weights as they are."""
        found = self.checkpoints.newest() if self.checkpoints is not None and self.crew.chief else None
        found = self.crew.share(found)
        self.callbacks.begin(None if found is None else found.meta.get("callbacks"))
        if found is not None:
            self.resume(found)
        elif self.phase.refines and self.validation is not None:
            self.count_the_start()
        self.account.begin(self.state)
        self.good = self.moment()
        if not self.finished:
            self.account.cached_step = self.measure_cached_step()
            self.state.notes = self.look_ahead(found is None)
            log.info(
                "%s: %d examples, batch %d, %d steps an epoch, at most %d epochs, rate %.3g",
                self.label, self.train.count, self.batch, self.steps, self.epochs, self.shape_of_rate["peak"],
            )  # fmt: skip

    @property
    def finished(self) -> bool:
        at = self.state
        ended = at.monitor.stop or at.halted
        return at.epoch >= self.epochs or (at.step == 0 and at.epoch > 0 and ended)

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
            self.train, self.plan, seed=self.seed, epoch=epoch, skip_steps=skip, part=self.crew.part
        )

    def count_the_start(self) -> None:
        """The weights that the phase starts with are a solution: they stand until an epoch is better."""
        self.state.monitor.update(0, self.validate()[self.monitored])
        self.state.best = checkpoint.values(self.model.variables)

    def measure_cached_step(self) -> float:
        """Seconds of a step without input, and the compilation, at no cost to the training's state."""
        batches = input_pipeline.one_batch(self.train, self.plan, part=self.crew.part)
        seconds = seconds_per_step(self.stepper, batches, min(self.plan.steps_per_call, self.steps))
        self.back()
        return seconds

    def look_ahead(self, fresh: bool) -> list[str]:
        """What a person should know of this phase before it runs; see ``preflight``."""
        notes = preflight.random_state(self.stepper)
        if self.plan.precision == "float32" or not self.section.check_precision or self.crew.size > 1:
            return notes
        if not fresh:
            return [*notes, *(note for note in self.state.notes if note not in notes)]
        notes += preflight.precision(
            self.model,
            self.phase.loss,
            self.plan,
            self.section,
            self.strategy,
            rate=learning_rate.schedule(**self.shape_of_rate),
            batches=self.batches(0),
        )
        self.back()
        return notes

    def one_epoch(self) -> None:
        at = self.state
        last = saved = time.perf_counter()
        iterator = self.stepper.iterate(self.batches(at.epoch, at.step))
        if at.step == 0:
            self.callbacks.epoch_begin(at.epoch)
        while at.step < self.steps:
            count = min(self.plan.steps_per_call, self.steps - at.step)
            self.callbacks.step_begin(at.step)
            self.watch.profile.before_call(self.calls)
            taken = self.stepper.take(iterator, count, stop=self.watch.stop.asked)
            self.watch.profile.after_call(self.calls)
            self.calls += 1
            at.step += count
            at.loss, at.weight = at.loss + taken.loss, at.weight + taken.weight
            at.skipped += taken.unsound
            now = time.perf_counter()
            at.seconds, last = at.seconds + now - last, now
            self.check(taken)
            self.callbacks.step_end(at.step - 1, {"loss": at.mean_loss})
            self.account.steps_done(at, self.rate_now())
            if taken.stops:
                self.leave()
            if now - saved > SECONDS_BETWEEN_CHECKPOINTS and at.step < self.steps:
                self.save_by_the_clock()
                saved = now
        # Only now: weights can be NaN while the loss reads well (tensorflow#24320).
        self.require_sound()
        if time.perf_counter() - saved > SECONDS_AT_RISK and self.validation is not None:
            self.save_by_the_clock()
        row = self.account.row(at, self.rate_now())
        if self.scaled:
            row["skipped_steps"] = at.skipped
        measured = self.validate()
        row.update({f"val_{name}": value for name, value in measured.items()})
        row["seconds"] = round(at.seconds + time.perf_counter() - last, 4)
        row.update(self.account.sampled())
        self.end_epoch(row, measured)

    def check(self, taken: Taken) -> None:
        """Stops at a loss or gradients that are NaN or Inf; loss scaling lives with the latter."""
        if not math.isfinite(taken.loss):
            self.require_sound(taken.loss)
        scale = float(self.optimizer.dynamic_scale.numpy()) if taken.unsound and self.scaled else 0.0
        if taken.unsound and scale <= 1.0:  # lower than that it is no matter of scaling
            self.require_sound()
            self.unsound(
                f"Training stopped in {self.place()}: the gradients of {taken.unsound} step(s) held NaN or Inf.",
                "Lower the learning rate, or clip gradients. The last good checkpoint is kept.",
            )

    def require_sound(self, loss: float | None = None) -> None:
        try:
            require_sound(self.state.mean_loss if loss is None else loss, self.model.variables, self.place())
        except TrainingError as error:
            self.unsound(error.message, error.remedy)

    def unsound(self, what: str, remedy: str = "") -> None:
        """Finds where it comes from, goes back to the last good moment, and says so.

        Raises:
            TrainingError: Always.
        """
        log.warning("%s Looking for where it comes from.", what)
        at, good = self.state, self.good.meta
        since = int(good["step"]) if int(good["epoch"]) == at.epoch else 0
        found = diagnosis.diagnose(
            self.stepper, self.back, lambda: self.batches(at.epoch, since), at.step - since
        )
        raise TrainingError(f"{what} {found}", remedy)

    def back(self) -> None:
        state.put_back(self.good, self.model, self.optimizer)

    def leave(self) -> None:
        """Was told to stop: keeps the moment, on the way out."""
        self.require_sound()
        self.save()
        kept = "A checkpoint was written." if self.checkpoints is not None else "Nothing keeps checkpoints."
        raise Stopped(
            f"Training was told to stop in {self.place()}. {kept}", "`casebook resume` goes on from there."
        )

    def end_epoch(self, row: Row, measured: Mapping[str, float]) -> None:
        at = self.state
        at.history.append(row)
        logs = {"loss": row["loss"], "learning_rate": row["lr"]}
        logs.update({f"val_{name}": value for name, value in measured.items()})
        self.callbacks.epoch_end(at.epoch, logs)
        at.next_epoch()
        if at.monitor.update(at.epoch, measured[self.monitored] if measured else row["loss"]):
            at.best = checkpoint.values(self.model.variables)
        at.halted = bool(self.crew.agree(self.callbacks.stop))
        self.save()
        self.account.epoch_done(at)
        if self.on_epoch:
            self.on_epoch(at.epochs)

    def validate(self) -> dict[str, float]:
        if self.validation is None:
            return {}
        self.callbacks.validation_begin()
        measured = dict(self.crew.agree(self.evaluator.run(self.validation, self.plan)))
        self.callbacks.validation_end(measured)
        return measured

    def rate_now(self) -> float:
        if learning_rate.is_plain(self.shape_of_rate):
            return float(self.optimizer.learning_rate.numpy())  # a callback may have set it
        done = self.state.epoch * self.steps + max(0, self.state.step - 1)
        return learning_rate.rate(done, **self.shape_of_rate)

    def place(self) -> str:
        return f"phase {self.phase.name}, epoch {self.state.epoch + 1}, step {self.state.step}"

    def moment(self) -> Checkpoint:
        return self.state.moment(
            self.model,
            self.optimizer,
            batch_size=self.batch,
            steps=self.steps,
            seed=self.seed,
            determinism=self.determinism,
        )

    def save(self) -> None:
        """Keeps this moment: in memory, to go back to, and on the chief's disk."""
        self.state.callbacks = self.callbacks.state() if self.watch.callbacks else None
        self.good = self.moment()
        if self.checkpoints is not None and self.crew.chief:
            self.checkpoints.save(self.good)

    def save_by_the_clock(self) -> None:
        """Keeps a moment in the midst of an epoch.

        Workers' clocks differ. So with several of them the chief writes the file and no more: the moment
        that all go back to stays the same on all, and what is unsound is told when all look.
        """
        if self.crew.size == 1:
            self.require_sound()
            self.save()
        elif self.crew.chief and self.checkpoints is not None and self.sound:
            self.state.callbacks = self.callbacks.state() if self.watch.callbacks else None
            self.checkpoints.save(self.moment())

    @property
    def sound(self) -> bool:
        return math.isfinite(self.state.mean_loss) and first_unsound(self.model.variables) is None

    def resume(self, found: Checkpoint) -> None:
        meta = found.meta
        if meta["seed"] != self.seed:
            raise TrainingError(
                f"The checkpoints of phase {self.phase.name!r} are of seed {meta['seed']}, received {self.seed}.",
                "Give every training a folder of its own.",
            )
        state.put_back(found, self.model, self.optimizer)
        self.state = State.at(found, patience=self.section.patience)
        if (meta["batch_size"], meta["steps"]) != (self.batch, self.steps):
            self.move_to_new_batch(int(meta["batch_size"]))
        for name, value in self.determinism.items():
            if meta["determinism"].get(name, value) != value:
                log.warning(
                    "%s was %s and is %s now: the numbers may differ from an uninterrupted run's.",
                    name, meta["determinism"][name], value,
                )  # fmt: skip
        log.info("%s: resumed after epoch %d, step %d", self.label, self.state.epoch, self.state.step)

    def move_to_new_batch(self, old: int) -> None:
        """The plan changed between two attempts: keep the place in the data, and in the schedule."""
        self.state = self.state.moved_to(old, self.batch, self.steps)
        done = self.state.epoch * self.steps + self.state.step
        self.optimizer.iterations.assign(done)
        log.warning(
            "The batch was %d and is %d now: the learning-rate schedule was made anew, at step %d of %d.",
            old, self.batch, done, self.epochs * self.steps,
        )  # fmt: skip
