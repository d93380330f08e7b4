"""ExecutionPlan: how to run on this device, what was tried, what was chosen and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from shared.errors import InputError

Verdict = Literal["fits", "out of memory", "timed out", "killed", "unsound", "bug"]


@dataclass(frozen=True)
class Trial:
    """One measured candidate. Times in seconds, memory in bytes; None where the trial failed."""

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
