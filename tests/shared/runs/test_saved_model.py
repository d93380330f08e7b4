"""Signatures of a SavedModel: inputs by name, whatever kind of Keras model it is."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared.runs import saved_model


def sequential() -> keras.Model:
    """Never called: it knows its inputs, and has no node yet."""
    return keras.Sequential([keras.layers.Input((6, 3), name="window"), keras.layers.LSTM(4)])


def functional() -> keras.Model:
    window = keras.Input((6, 3), name="window")
    return keras.Model(window, keras.layers.LSTM(4)(window))


@pytest.mark.slow
@pytest.mark.parametrize("make", [sequential, functional])
def test_inputs_have_their_names_and_the_batch_that_was_asked_for(make, tmp_path: Path) -> None:
    model = make()
    x = np.random.default_rng(0).normal(size=(1, 6, 3)).astype(np.float32)
    saved_model.write(model, tmp_path / "saved", batch=1)
    assert saved_model.input_names(tmp_path / "saved") == ["window"]
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    (said,) = loaded.signatures["serving_default"](window=tf.constant(x)).values()
    np.testing.assert_allclose(said, model(x), atol=1e-6)
    np.testing.assert_allclose(loaded.serve(x), model(x), atol=1e-6)
    assert loaded.signatures["serving_default"].structured_input_signature[1]["window"].shape[0] == 1
