"""The phases of one member, one after the other, each building on the best model of the last."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from shared import accelerator, files, input_pipeline, mixed_precision
from shared.accelerator import Accelerator
from shared.contract import Domain, Fold, Phase, Predictions, Source, Split
from shared.errors import CasebookError, InputError
from shared.evaluation.predictions import write_predictions
from shared.plan import ExecutionPlan
from shared.training import building, checkpoint, crew, warm_start
from shared.training.checkpoint import Checkpoint, Checkpoints
from shared.training.loop import PhaseResult, train_phase
from shared.training.predict import predict
from shared.training.profiling import Profile
from shared.training.recorder import Recorder
from shared.training.sampling import Sampler
from shared.training.stopping import Stop
from shared.training.watching import PROFILED, Watch, allocator_peak

log = logging.getLogger("casebook.training")


class Chain:
    """A member in training; see ``shared/training/member.py`` for what it leaves in ``home``."""

    def __init__(
        self,
        domain: Domain,
        prepared: Path,
        config: Any,
        fold: int,
        seed: int,
        plan: ExecutionPlan,
        home: Path,
        device: Accelerator,
        shuffled: bool,
        start: str | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.domain, self.prepared, self.config, self.seed = domain, prepared, config, seed
        self.plan, self.home, self.device, self.shuffled = plan, home, device, shuffled
        self.fold: Fold = domain.folds(prepared, config)[fold]
        self.start = warm_start.decided(
            None if shuffled else start, domain, prepared, config, self.fold, seed
        )
        self.crew = crew.of(device.strategy)
        self.stop = stop or Stop()
        self.determinism = determinism(device, config.accelerator.deterministic)
        self.checkpoints = home / "checkpoints"
        self.recorder = Recorder(
            home if self.crew.chief else None,
            every_steps=config.run.log_steps,
            tensorboard=config.run.tensorboard,
        )
        self.sources: dict[Split, Source] = {}
        self.cache_left = plan.cache_bytes

    def run(self) -> dict[str, Any]:
        peak = allocator_peak(self.device.device, self.device.replicas)
        with (
            crew.told(self.crew),
            Sampler(self.config.run.sample_seconds, allocator_peak=peak) as self.sampler,
        ):
            try:
                return self.trained()
            finally:
                self.recorder.close()

    def trained(self) -> dict[str, Any]:
        started = time.perf_counter()
        keras.utils.clear_session()
        mixed_precision.apply(self.plan.precision)
        if self.start.elsewhere is not None:
            # Told now, and not when the folds before the one that takes it have been trained for hours.
            self.start.require_likeness(self.untrained())
            keras.utils.clear_session()
        phases = list(self.domain.phases(self.prepared, self.config, self.fold))
        model: keras.Model | None = None
        results: list[PhaseResult] = []
        for index, phase in enumerate(phases):
            with self.device.strategy.scope():
                building.reseed(self.seed, index)
                model = phase.build(model)
            if self.start.weights is not None:
                if index < len(phases) - 1:
                    continue  # what it would learn, the champion has learnt
                phase = self.start.taken_over(phase, model)
            results.append(self.phase(index, phase, model))
        assert model is not None
        self.predict(model)
        done = dict(files.plain(self.summary(model, results, time.perf_counter() - started)))
        if self.crew.chief:
            checkpoint.write_weights(self.home / "weights.npz", model)
            files.write_json(self.home / "done.json", done)
            self.clear()
        self.crew.wait()
        return done

    def untrained(self) -> keras.Model:
        """The last phase's model, as it is built."""
        with self.device.strategy.scope():
            return building.untrained(self.domain.phases(self.prepared, self.config, self.fold), self.seed)

    def phase(self, index: int, phase: Phase, model: keras.Model) -> PhaseResult:
        """Trains one phase, or takes its result where an earlier attempt finished it."""
        finished = self.crew.share(self.finished(index) if self.crew.chief else None)
        if finished is not None:
            result = PhaseResult(**finished.meta)
            checkpoint.assign(model.variables, finished.groups["model"], "The finished phase")
            self.recorder.back_to([*self.recorder.rows, *result.history])
        else:
            kept = Checkpoints(self.checkpoints, f"phase{index}")
            result = train_phase(
                self.device.strategy,
                model,
                phase,
                self.source("train", phase),
                self.source("validation", phase),
                self.plan,
                self.config.train,
                seed=self.seed,
                checkpoints=kept,
                label=f"{self.fold.name} · {phase.name}",
                determinism=self.determinism,
                watch=self.watch(phase),
            )
            if self.crew.chief:
                checkpoint.write_weights(self.checkpoints / f"best{index}.npz", model)
                files.write_json(self.checkpoints / f"phase{index}.json", asdict(result))
                kept.clear()
        return result

    def watch(self, phase: Phase) -> Watch:
        profiled = self.home / "profile" / phase.name if self.config.run.profile and self.crew.chief else None
        return Watch(
            callbacks=phase.callbacks(),
            recorder=self.recorder,
            sampler=self.sampler,
            profile=Profile(profiled, **PROFILED),
            stop=self.stop,
        )

    def finished(self, index: int) -> Checkpoint | None:
        """Result and weights of a phase that an earlier attempt finished; None where they cannot be read."""
        result = self.checkpoints / f"phase{index}.json"
        if not result.exists():
            return None
        try:
            weights = checkpoint.read_arrays(self.checkpoints / f"best{index}.npz")
            return Checkpoint({"model": weights}, files.read_json(result))
        except (*checkpoint.UNREADABLE, CasebookError) as error:
            why = error.message if isinstance(error, CasebookError) else error
            log.warning("Phase %d, which was finished, is trained anew: %s", index + 1, why)
            return None

    def source(self, split: Split, phase: Phase | None = None) -> Source:
        """The examples of a split, in memory where they fit, kept for the next phase that asks."""
        if phase is not None and phase.source is not None:
            return self.dealt(split, self.cached(phase.source(split)))
        if split not in self.sources:
            source = self.domain.examples(self.prepared, self.config, self.fold, split)
            self.sources[split] = self.cached(source)
        return self.dealt(split, self.sources[split])

    def cached(self, source: Source) -> Source:
        """In memory where the plan's bytes, less what earlier sources took, suffice."""
        kept = input_pipeline.cached(source, replace(self.plan, cache_bytes=self.cache_left))
        if kept is not source:
            self.cache_left -= source.count * input_pipeline.example_bytes(source)
        return kept

    def dealt(self, split: Split, source: Source) -> Source:
        return shuffle_labels(source, self.seed) if self.shuffled and split != "test" else source

    def predict(self, model: keras.Model) -> None:
        for split in ("validation", "test"):
            source = self.source(split)  # type: ignore[arg-type]
            values, truth = predict(model, source, self.plan, self.device.strategy)
            chosen = self.fold.splits[split]  # type: ignore[index]
            if len(values) != len(chosen):
                raise InputError(
                    f"The {split} split of fold {self.fold.name} has {len(chosen)} examples, "
                    f"its source gave {len(values)}."
                )
            if not self.crew.chief:
                continue
            groups = None if self.fold.groups is None else self.fold.groups[chosen]
            write_predictions(
                self.home / f"{split}.npz", Predictions(self.fold.keys[chosen], values, truth, groups)
            )

    def summary(self, model: keras.Model, results: list[PhaseResult], seconds: float) -> dict[str, Any]:
        last = results[-1]
        phases = []
        for name, result in zip(
            dict.fromkeys(row["phase"] for row in self.recorder.rows), results, strict=True
        ):
            shown = {key: value for key, value in asdict(result).items() if key != "history"}
            phases.append({"name": name, "epochs": result.epochs, **shown})
        return {
            "fold": self.fold.name,
            "seed": self.seed,
            "phases": phases,
            "epochs": sum(result.epochs for result in results),
            "best": {"monitor": last.monitor, "value": last.best, "epoch": last.best_epoch},
            "seconds": round(sum(result.seconds for result in results), 4),
            "wall_seconds": round(seconds, 4),
            "samples_per_second": last.samples_per_second,
            "input_bound_share": last.input_bound_share,
            "advice": last.advice,
            "device": self.device.device,
            "device_name": self.device.device_name,
            "replicas": self.device.replicas,
            "placement": list(self.device.proof),
            "precision": self.plan.precision,
            "batch_size": self.plan.batch_size,
            "parameters": int(model.count_params()),
            "determinism": self.determinism,
            "shuffled_labels": self.shuffled,
            "started_from": self.start.to_dict(),
        }

    def clear(self) -> None:
        if self.config.run.keep_checkpoints:
            return
        for path in self.checkpoints.glob("*"):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.checkpoints.rmdir()
        for path in self.home.glob(".*"):  # half-written, by an attempt that was killed
            path.unlink(missing_ok=True)


def determinism(device: Accelerator, deterministic_ops: bool) -> dict[str, Any]:
    """What the numbers depend on beside data, seed, plan and code."""
    return {
        "device": device.device,
        "replicas": device.replicas,
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads()
        or accelerator.machine().cores,
        "deterministic_ops": deterministic_ops,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
    }


def shuffle_labels(source: Source, seed: int) -> Source:
    """The source with its labels (and weights) dealt out among its examples at random.

    Raises:
        InputError: The examples do not fit into memory.
    """
    if source.gather is None:
        raise InputError(
            "Labels can be shuffled only among examples that fit into memory.",
            "Run where more memory is free, or take --gate.guards standard.",
        )
    gather = source.gather
    dealt = tf.constant(np.random.default_rng([seed, 0x5AFE]).permutation(source.count), tf.int64)

    def gather_dealt(positions: Any) -> Any:
        x = gather(positions)[0]
        return (x, *gather(tf.gather(dealt, positions))[1:])

    return replace(source, gather=gather_dealt)
