"""A Keras model as a SavedModel whose signatures have names.

``serve`` takes what the model takes and returns its output as a tensor; ``serving_default``,
which TensorFlow Serving and the LiteRT converter look for, takes its inputs by name and
returns a dict by the name of the output layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

SIGNATURE = "serving_default"


def write(model: keras.Model, folder: Path, batch: int | None = None) -> None:
    """Writes ``model`` as a SavedModel into ``folder``.

    Inputs are called as the model's own are: the keys of a dict, the names of ``keras.Input``
    else (``input_0``, ``input_1``, ... in a list). A subclassed model, which has no inputs of its
    own, is written as Keras does it.

    Args:
        batch: Size of a batch that the signatures take; None: any.
    """
    import keras
    import tensorflow as tf

    inputs = _inputs(model)
    if inputs is None:
        model.export(str(folder), verbose=False)
        return
    flat = tf.nest.flatten(inputs)
    specs = [
        tf.TensorSpec((batch, *tensor.shape[1:]), tensor.dtype, name=name)
        for tensor, name in zip(flat, _names(inputs, flat), strict=True)
    ]
    archive = keras.export.ExportArchive()
    serve = archive.track_and_add_endpoint("serve", model, [tf.nest.pack_sequence_as(inputs, specs)])
    (output,) = getattr(model, "output_names", None) or ["output_0"]

    def by_name(*given: Any) -> dict[str, Any]:
        return {output: serve(tf.nest.pack_sequence_as(inputs, given))}

    archive.add_endpoint(SIGNATURE, by_name, specs)
    archive.write_out(str(folder), verbose=False)


def input_names(folder: Path) -> list[str]:
    """Names that ``serving_default`` has for its inputs, read off the file; nothing is loaded."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = saved_model_pb2.SavedModel()
    content.ParseFromString((folder / "saved_model.pb").read_bytes())
    return sorted(content.meta_graphs[0].signature_def[SIGNATURE].inputs)


def _inputs(model: keras.Model) -> Any:
    """The model's symbolic inputs in their structure; None where it has none."""
    try:
        inputs = model.input  # in its structure: a dict, where the model takes one
    except (AttributeError, ValueError):
        inputs = getattr(model, "inputs", None)  # a Sequential model knows these only
    if inputs is None or (isinstance(inputs, (list, tuple, dict)) and not inputs):
        return None
    return inputs[0] if isinstance(inputs, (list, tuple)) and len(inputs) == 1 else inputs


def _names(inputs: Any, flat: list[Any]) -> list[str]:
    """Names of the inputs, in the order in which TensorFlow flattens them."""
    if isinstance(inputs, dict) and len(inputs) == len(flat):
        return [str(key) for key in sorted(inputs)]
    if len(flat) == 1:
        return [str(flat[0].name)]
    return [f"input_{number}" for number in range(len(flat))]
