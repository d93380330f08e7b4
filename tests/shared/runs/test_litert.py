"""Real conversions of tiny networks, in one child; and the words for what a converter refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared import worker
from shared.errors import CasebookError
from shared.runs import litert

from . import networks

KINDS = ("litert-float16", "litert-dynamic", "litert-int8")


def converted(place: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """For each network and kind: note, outputs beside the network's own, and the file's signature."""
    from ai_edge_litert.interpreter import Interpreter

    from shared.runs import saved_model

    found: dict[str, dict[str, Any]] = {}
    x = np.random.default_rng(1).normal(size=(5, 8, 8)).astype(np.float32)
    for name in names:
        model, work = networks.network(name, 32), Path(place) / name
        saved_model.write(model, work / "published")
        given: Any = {"left": x, "right": x[:, 0]} if name == "named" else x
        rows = [{key: part[i : i + 1] for key, part in given.items()} if isinstance(given, dict) else x[i : i + 1]
                for i in range(5)]  # fmt: skip
        found[name] = {"true": np.asarray(model(given))}
        for kind in KINDS:
            file = work / f"{kind}.tflite"
            note = litert.convert(
                lambda model=model: model,
                work / "published",
                kind,
                rows,
                file,
                work=work / "sources",
                has_loops=litert.recurrent(model),
            )
            runner = Interpreter(str(file)).get_signature_runner("serving_default")
            details = {**runner.get_input_details(), **runner.get_output_details()}
            found[name][kind] = {
                "note": note,
                "said": litert.LiteRT([file])(given),
                "signature": {key: np.dtype(detail["dtype"]).name for key, detail in details.items()},
            }
    return found


@pytest.mark.slow
def test_dense_convolutional_and_recurrent_networks_convert_and_say_the_same(tmp_path: Path) -> None:
    found = worker.call(converted, str(tmp_path), ["dense", "conv", "lstm", "named"], timeout=300)
    limits = {"litert-float16": 0.01, "litert-dynamic": 0.1, "litert-int8": 0.2}
    for name, kinds in found.items():
        inputs = ("left", "right") if name == "named" else ("picture",)
        for kind, limit in limits.items():
            one = kinds[kind]
            assert one["said"].shape == (5, 1)
            assert one["said"].dtype == np.float32
            assert np.abs(one["said"] - kinds["true"]).max() < limit, (name, kind)
            assert one["signature"] == dict.fromkeys((*inputs, "brighter"), "float32")
            loops = name == "lstm"
            assert one["note"] == (
                "" if not loops
                else "its recurrent layers are unrolled" if kind == "litert-int8" else "takes one example at a time"
            )  # fmt: skip


def test_a_folder_without_the_form_is_told(tmp_path: Path) -> None:
    with pytest.raises(CasebookError, match=r"holds no litert-int8 form .*int8\.tflite") as caught:
        litert.LiteRT.load(tmp_path, "litert-int8")
    assert "left out" in caught.value.remedy
    with pytest.raises(CasebookError, match="no form 'float16'") as caught:
        litert.LiteRT.load(tmp_path, "float16")
    assert "litert-float16" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "<unknown>:0: error: loc(callsite(\"TensorListReserve:\")): 'tf.TensorListReserve' op requires "
            "element_shape to be static\n<unknown>:0: note: called from",
            "'tf.TensorListReserve' op requires element_shape to be static",
        ),
        ("Could not translate\nTF Select ops: Erf, Digamma\nDetails:", "TF Select ops: Erf, Digamma"),
        (
            "Quantization not yet supported for op: 'CUMSUM'.\n",
            "Quantization not yet supported for op: 'CUMSUM'.",
        ),
        ("\n\nplain words\nmore", "plain words"),
        (
            "Exception encountered when calling LSTM.call().\n\n\x1b[1mCannot unroll.\x1b[0m\n",
            "Cannot unroll.",
        ),
        ("", "ValueError"),
    ],
)
def test_the_telling_line_of_an_error(text: str, expected: str) -> None:
    assert litert.why(ValueError(text)) == expected


def test_an_open_number_of_steps_has_no_int8(tmp_path: Path) -> None:
    """And the converter, which would crash, is not asked."""
    import keras

    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(4)(inputs)))
    assert litert.recurrent(model)
    out, work = tmp_path / "int8.tflite", tmp_path / "work"
    with pytest.raises(CasebookError, match="unroll"):
        litert.convert(lambda: model, tmp_path, "litert-int8", [], out, work=work, has_loops=True)


def test_unrolling_reaches_wrapped_layers_and_keeps_the_weights() -> None:
    model = networks.network("lstm")
    copy = litert.unrolled(model)
    layer = next(layer for layer in copy.layers if layer.name.startswith("bidirectional"))
    assert layer.forward_layer.unroll
    assert layer.backward_layer.unroll
    x = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(copy(x), model(x), atol=1e-5)
    assert not litert.recurrent(networks.network("conv"))
