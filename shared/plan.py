"""ExecutionPlan: how to run on this device, what was tried, what was chosen and why.

Two ways to one: :func:`for_domain` and, for a person with a Keras model function and a tf.data
function, :func:`search`. Neither imports TensorFlow in the process that calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shared.config import AcceleratorSection, DomainConfig, PlanSection, TrainSection
from shared.errors import InputError

if TYPE_CHECKING:
    import keras

Verdict = Literal["fits", "out of memory", "timed out", "killed", "unsound", "bug"]


@dataclass(frozen=True)
class Trial:
    """One measured candidate. Times in seconds, memory in bytes; None where the trial failed.

    ``accumulation`` is the number of micro-batches that the batch was cut into.
    """

    batch_size: int
    precision: str
    xla: bool
    verdict: Verdict
    samples_per_second: float | None = None
    spread: float | None = None
    step_seconds: float | None = None
    compile_seconds: float | None = None
    peak_bytes: int | None = None
    note: str = ""
    accumulation: int = 1


@dataclass(frozen=True)
class ExecutionPlan:
    """How to run. The defaults are the naive plan that every measured one must beat.

    Attributes:
        device: ``cpu``, ``gpu``, ``gpus``, ``tpu`` or ``workers``: one of the accelerator section's names,
            resolved (never ``auto``).
        device_name: For people, e.g. ``"AMD EPYC, 2 cores"``.
        replicas: Copies of the model that share a global batch.
        batch_size: Global, a multiple of ``replicas``.
        accumulation: Micro-batches a step; 1: none.
        steps_per_call: Steps inside one tf.function call.
        learning_rate_factor: The phase's rate times this is the peak rate.
        cache_bytes: RAM that the cache of examples may take; larger sources are streamed.
        parallel_calls: Threads of the map stages; None leaves it to AUTOTUNE.
        samples_per_second: Steady training throughput measured on one cached batch, the plan's promise.
        input_bound_share: Share of a real step spent waiting for input, 0..1.
        trials: Everything that was tried.
        reasons: One sentence a choice.
        fingerprint: Key under which the plan is kept; empty for an unmeasured plan.
        measured: False for a plan that nobody tried.
    """

    device: str = "cpu"
    device_name: str = ""
    replicas: int = 1
    precision: str = "float32"
    xla: bool = False
    batch_size: int = 32
    accumulation: int = 1
    steps_per_call: int = 1
    learning_rate_rule: str = "none"
    learning_rate_factor: float = 1.0
    cache_bytes: int = 1 << 30
    ram_budget_bytes: int = 1 << 30
    parallel_calls: int | None = None
    prefetch: int = 2
    samples_per_second: float | None = None
    input_bound_share: float | None = None
    search_seconds: float | None = None
    trials: tuple[Trial, ...] = ()
    reasons: tuple[str, ...] = ()
    fingerprint: str = ""
    measured: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ExecutionPlan:
        """The inverse of :meth:`to_dict`.

        Raises:
            InputError: A key this version doesn't know, from a plan of another version.
        """
        try:
            trials = tuple(Trial(**trial) for trial in values.get("trials", ()))
            return cls(**{**values, "trials": trials, "reasons": tuple(values.get("reasons", ()))})
        except TypeError as error:
            raise InputError(
                f"This plan was written by another version: {error}.", "Plan again with --replan."
            ) from error


def for_domain(domain: str, prepared: Path, config: DomainConfig, *, plans: Path) -> ExecutionPlan:
    """The measured plan for a domain's heaviest training: the last phase of its last fold.

    Holds the accelerator while it measures; each trial is a child process. Tells its progress
    under the label ``"plan"``.

    Args:
        prepared: Folder that the domain's ``ingest`` filled.
        plans: Where measured plans are kept, one JSON file a fingerprint of device, versions, model
            graph, examples and settings.

    Raises:
        DeviceError: The accelerator cannot be had.
        InputError: ``plan.batch_size`` cannot be shared by the replicas.
        TrainingError: No batch size could be trained, or a trial showed a bug.
    """
    from shared import planning
    from shared.trial import DomainRecipe

    recipe = DomainRecipe(domain, str(prepared), config.model_dump(mode="json"))
    return planning.make(recipe, config.plan, config.accelerator, config.train, plans=plans, name=domain)


def search(
    model_fn: Callable[[], keras.Model],
    data_fn: Callable[[], Any],
    *,
    loss: Callable[[Any, Any], Any],
    augment: Callable[[Any, Any], Any] | None = None,
    section: PlanSection | None = None,
    train: TrainSection | None = None,
    device: AcceleratorSection | None = None,
    plans: Path | None = None,
) -> ExecutionPlan:
    """The measured plan for a Keras model and a tf.data set, to give to ``shared.training.fit``.

    Args:
        model_fn, data_fn, loss, augment: As ``fit`` takes them. They are called in child processes,
            so what they refer to must pickle; functions of ``__main__`` and lambdas do.
        section: Bounds and budget; default: up to batch 256, 60 s.
        train: Clipping, weight decay and learning rate; default: the settings' defaults.
        device: Where to run; default: the best that answers.
        plans: Folder in which plans are kept and looked for; default: none.

    Raises:
        As :func:`for_domain`.
    """
    from shared import planning
    from shared.trial import BareRecipe

    settings = train or TrainSection()
    recipe = BareRecipe(model_fn, data_fn, loss, augment, settings)
    name = getattr(model_fn, "__name__", "model")
    return planning.make(
        recipe,
        section or PlanSection(),
        device or AcceleratorSection(),
        settings,
        plans=plans,
        name=name,
    )


def table(plan: ExecutionPlan) -> list[list[str]]:
    """The trials for people: a row of column names, then one row a trial, all text.

    Columns: batch, precision, XLA, verdict, samples/s (± spread), step ms, compile s, memory, note.
    """
    from shared import plan_words

    return plan_words.table(plan)
