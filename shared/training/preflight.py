"""Before a phase begins: what a person should know of it, found by trying. Costs nothing of its state."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from shared.config import TrainSection
from shared.plan import ExecutionPlan
from shared.training import precision_check, randomness
from shared.training.step import Stepper, make_stepper

log = logging.getLogger("casebook.training")


def random_state(stepper: Stepper) -> list[str]:
    """A sentence where the step draws random numbers that no checkpoint holds. After the step was traced."""
    found = randomness.unrepeatable(stepper.graph, stepper.model) if stepper.graph is not None else []
    return _told(randomness.warning(found)) if found else []


def precision(
    model: keras.Model,
    loss: Callable[[Any, Any], Any],
    plan: ExecutionPlan,
    section: TrainSection,
    strategy: tf.distribute.Strategy,
    *,
    rate: Any,
    batches: tf.data.Dataset,
) -> list[str]:
    """A sentence where the first steps in 16 bits go another way than those in float32.

    The model is trained by this: put it back.

    Args:
        rate: Learning rate, or its schedule, as training begins with it.
        batches: The first of the phase, augmented as in training.
    """
    with strategy.scope():
        twin = precision_check.float32_twin(model)
    if twin is None:
        log.info("The model cannot be rebuilt in float32: %s is not compared with it.", plan.precision)
        return []
    whole = replace(plan, accumulation=1)
    ours = make_stepper(model, loss, whole, rate=rate, section=section, strategy=strategy)
    theirs = make_stepper(
        twin, loss, replace(whole, precision="float32"), rate=rate, section=section, strategy=strategy
    )
    check = precision_check.compare(ours, theirs, batches)
    if check.diverged:
        return _told(check.sentence)
    log.info("%s", check.sentence)
    return []


def _told(sentence: str) -> list[str]:
    log.warning("%s", sentence)
    return [sentence]
