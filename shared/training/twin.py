"""A model's twin in float32: what a 16-bit model is compared with."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Any

import keras

log = logging.getLogger("casebook.training")

_HALVES = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16")


def float32_twin(model: keras.Model) -> keras.Model | None:
    """The same model under float32, with the same weights and the same state of its random generators.

    Built anew from the model's configuration, in which every 16-bit dtype policy is replaced;
    layers that were float32, float64 or integer stay so. Call it inside the strategy's scope. Python's
    random state, of which Keras draws the seeds of initial weights, is left as it was.

    Returns:
        None where the model cannot be rebuilt: a subclassed one without a configuration, a quantised
        one, or a layer that is not the same after a round trip.
    """
    drawn = random.getstate()
    try:
        config = keras.saving.serialize_keras_object(model)
        config.pop("compile_config", None)
        known: dict[str, Any] = {}
        for layer in model._flatten_layers():
            if not type(layer).__module__.startswith("keras."):
                known[keras.saving.get_registered_name(type(layer))] = type(layer)
        lambdas = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Lambda)]
        if len({layer.name for layer in lambdas}) < len(lambdas):
            raise ValueError("two Lambda layers of one name")
        config = _in_float32(config, {layer.name: layer for layer in lambdas}, known)
        twin = keras.saving.deserialize_keras_object(config, custom_objects=known)
        if in_sixteen(twin):
            raise ValueError(f"still in 16 bits: {', '.join(in_sixteen(twin))}")
        _take_over(twin, model)
    except Exception as error:  # whatever a stranger's layer raises: without a twin there is no check
        log.debug("No float32 twin of model %r: %s", model.name, error)
        return None
    finally:
        random.setstate(drawn)
    return twin


def _in_float32(config: Any, lambdas: Mapping[str, Any], known: dict[str, Any]) -> Any:
    """The configuration with its policies replaced, and the functions of ``Lambda`` layers by their names in ``known``.

    A lambda that goes through a configuration loses the globals that it uses; a local function isn't found.
    """
    if isinstance(config, Mapping):
        fresh = {key: _in_float32(value, lambdas, known) for key, value in config.items()}
        layer = lambdas.get(fresh.get("name", "")) if isinstance(fresh.get("name", ""), str) else None
        for key, value in fresh.items():
            if layer and isinstance(value, dict) and value.get("class_name") in ("__lambda__", "function"):
                name = f"{layer.name}>{key}"
                known[name] = {
                    "function": layer.function,
                    "mask": layer.mask,
                    "output_shape": layer._output_shape,
                }[key]
                fresh[key] = {
                    "class_name": "function", "config": name, "module": "builtins", "registered_name": name,
                }  # fmt: skip
        return fresh
    if isinstance(config, (list, tuple)):
        return type(config)(_in_float32(value, lambdas, known) for value in config)
    return "float32" if isinstance(config, str) and config in _HALVES else config


def _take_over(twin: keras.Model, model: keras.Model) -> None:
    """Values and the trainable flag of every variable; in order, for the paths' first parts may differ."""
    pairs = list(zip(twin.variables, model.variables, strict=True))
    for mine, theirs in pairs:
        if (mine.name, tuple(mine.shape)) != (theirs.name, tuple(theirs.shape)):
            raise ValueError(f"{theirs.path} {theirs.shape} became {mine.path} {mine.shape}")
    for mine, theirs in pairs:
        mine.assign(theirs.numpy())
        if mine.trainable != theirs.trainable:
            mine.trainable = theirs.trainable


def in_sixteen(model: keras.Model) -> dict[str, str]:
    """16-bit dtype by layer."""
    return {
        layer.name: layer.compute_dtype
        for layer in model._flatten_layers()
        if layer.compute_dtype in ("float16", "bfloat16")
    }
