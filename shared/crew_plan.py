"""A plan for several workers, from the one that was measured for a single one.

Each worker's share of the work is what one device does alone, so that is what is tried; how the
workers slow each other down (a shared machine, the network) is not, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shared.config import AcceleratorSection, PlanSection
from shared.errors import InputError
from shared.machine import machine
from shared.plan import ExecutionPlan
from shared.plan_words import rate


def over(
    size: int,
    section: PlanSection,
    device: AcceleratorSection,
    alone: Callable[[PlanSection, AcceleratorSection], ExecutionPlan],
) -> ExecutionPlan:
    """The plan of ``size`` workers that share a global batch.

    Args:
        alone: Plans for one of them.

    Raises:
        InputError: The batch that was asked for cannot be shared equally.
    """
    own = section
    if isinstance(section.batch_size, int):
        if section.batch_size % size:
            raise InputError(
                f"A batch of {section.batch_size} cannot be shared equally by {size} workers.",
                f"Take a multiple of {size}.",
            )
        own = section.model_copy(update={"batch_size": section.batch_size // size})
    here = device.workers > 1
    kind = "auto" if device.device == "workers" else device.device
    if here and kind == "auto" and machine().gpus:
        kind = "gpu"  # each worker gets one
    one = alone(own, device.model_copy(update={"device": kind, "workers": 1}))
    batch = one.batch_size * size
    rule, factor, why_rate = rate(section, batch)
    kept = [reason for reason in one.reasons if not reason.startswith("Learning rate ")]
    return replace(
        one,
        device="workers",
        device_name=f"{size} workers, each {one.device_name}",
        replicas=one.replicas * size,
        batch_size=batch,
        learning_rate_rule=rule,
        learning_rate_factor=factor,
        cache_bytes=one.cache_bytes // size if here else one.cache_bytes,
        samples_per_second=None,
        reasons=(
            f"{size} workers share a batch of {batch}. What follows was measured on one of them with its "
            f"{one.batch_size}; how they slow each other down was not.",
            *kept,
            why_rate,
        ),
    )
