"""What a trained model says of every example of a source, in order, none lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from shared import input_pipeline
from shared.contract import Source
from shared.plan import ExecutionPlan
from shared.training.step import Forward


def predict(
    model: Any, source: Source, plan: ExecutionPlan, strategy: tf.distribute.Strategy | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and truth, float32 ``[n, ...]`` each, in the order of the source.

    Args:
        model: A Keras model with one output.
        plan: Its batch is the batch of the forward pass.
        strategy: Default: the current one.
    """
    forward = Forward(model, strategy=strategy)
    values, truth = [], []
    if source.count:
        for batch in forward.iterate(input_pipeline.evaluation_batches(source, plan)):
            prediction, y, _ = forward.run(batch)
            values.append(np.asarray(prediction, np.float32))
            truth.append(np.asarray(y, np.float32))
    if not values:
        return np.zeros((0,), np.float32), np.zeros((0,), np.float32)
    return np.concatenate(values)[: source.count], np.concatenate(truth)[: source.count]
