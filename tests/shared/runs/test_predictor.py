"""Predictor: the same answers one by one, in batches and from many threads; wrong inputs are named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.errors import CasebookError, InputError
from shared.runs.export import Predictor as FromExport
from shared.runs.predictor import Predictor

pytestmark = pytest.mark.slow


def published(folder: Path, *models: Any) -> Path:
    """A published model as export lays it out, as far as prediction needs it."""
    for number, model in enumerate(models):
        model.export(str(folder / f"member-{number}" / "saved_model"), verbose=False)
    return folder


def recurrent(seed: int) -> Any:
    import keras

    keras.utils.set_random_seed(seed)
    window = keras.Input((12, 3), name="window")
    return keras.Model(window, keras.layers.Dense(2)(keras.layers.LSTM(8)(window)))


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("members"), recurrent(0), recurrent(1))


@pytest.fixture(scope="module")
def warm(members: Path) -> Predictor:
    return Predictor.load(members, warm=True)


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 1, (37, 12, 3)).astype(np.float32)


def test_export_still_names_it() -> None:
    assert FromExport is Predictor


def test_one_by_one_and_in_a_batch_it_says_the_same(warm: Predictor, windows: np.ndarray) -> None:
    batch = warm(windows)
    assert batch.shape == (37, 2)
    assert batch.dtype == np.float32
    singly = np.stack([warm.one(window) for window in windows])
    assert singly.dtype == np.float32
    np.testing.assert_allclose(singly, batch, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([warm(window[None]) for window in windows]), singly, atol=0)


def test_it_is_the_mean_of_the_members(members: Path, windows: np.ndarray) -> None:
    both = [Predictor([members / f"member-{number}" / "saved_model"])(windows) for number in (0, 1)]
    assert np.abs(both[0] - both[1]).max() > 0.01
    np.testing.assert_allclose(Predictor.load(members)(windows), np.mean(both, axis=0), atol=1e-6)


def test_what_is_ready_was_measured_and_is_a_function_of_its_own(warm: Predictor) -> None:
    ready = warm.warm()
    assert set(ready.seconds) | set(ready.refused) == {"as it is", "frozen", "compiled"}
    assert ready.seconds[ready.way] == min(ready.seconds.values())
    assert ready.way != "as it is", "a small LSTM is quicker without fetching variables"
    assert warm.warm() is ready


def test_a_batch_pays_nothing_for_the_real_time_answer(members: Path, windows: np.ndarray) -> None:
    predictor = Predictor.load(members)
    predictor(windows)
    predictor(windows[:1])
    assert predictor._fast == {}


def test_batches_of_every_size_run_through_one_function(members: Path, windows: np.ndarray) -> None:
    predictor = Predictor.load(members)
    whole = predictor(windows)
    traces = [model.serve.experimental_get_tracing_count() for model in predictor._models]
    for size in range(38):
        np.testing.assert_allclose(predictor(windows[:size]), whole[:size], atol=1e-5)
    assert [model.serve.experimental_get_tracing_count() for model in predictor._models] == traces
    assert [len(model.serve.concrete_functions) for model in predictor._models] == [1, 1]


def test_threads_get_their_own_answers(members: Path, windows: np.ndarray) -> None:
    """Also the first calls, which make the function: one thread does, the others wait."""
    predictor = Predictor.load(members)
    serial = predictor(windows)
    order = np.random.default_rng(1).integers(0, len(windows), 400)
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda number: predictor.one(windows[number]), order))
        batches = list(pool.map(lambda number: predictor(windows[number : number + 5]), range(32)))
    np.testing.assert_allclose(said, serial[order], atol=1e-5)
    for number, batch in enumerate(batches):
        np.testing.assert_allclose(batch, serial[number : number + 5], atol=1e-5)
    assert len(predictor._fast) == 1


def test_what_it_does_not_take_is_told_beside_what_it_takes(warm: Predictor, windows: np.ndarray) -> None:
    for given, received in (
        (windows[0][:11], r"float32 \[11, 3\]"),
        (windows, r"float32 \[37, 12, 3\]"),
        ((windows[0] * 255).astype(np.uint8), r"uint8 \[12, 3\]"),
        (windows[0].astype(complex), r"complex128 \[12, 3\]"),
        ({"window": windows[0]}, r"\{'window': float32 \[12, 3\]\}"),
        ([[1.0, 2.0], [3.0]], "a list of 2 uneven parts"),
        ("window", "str"),
        (None, "NoneType"),
    ):
        with pytest.raises(InputError, match=rf"takes float32 \[12, 3\]; received {received}") as caught:
            warm.one(given)
        assert caught.value.remedy
    with pytest.raises(InputError, match=r"takes float32 \[batch, 12, 3\]; received float32 \[12, 3\]"):
        warm(windows[0])


def test_plain_lists_and_other_floats_are_taken(warm: Predictor, windows: np.ndarray) -> None:
    said = warm.one(windows[0])
    np.testing.assert_array_equal(warm.one(windows[0].tolist()), said)
    np.testing.assert_array_equal(warm.one(windows[0].astype(np.float64)), said)


def test_inputs_by_name_and_of_whole_numbers(tmp_path: Path) -> None:
    import keras

    # In an order in which neither alphabet nor time is: a mix-up would be seen.
    inputs = {"z": keras.Input((3,), name="z"), "a": keras.Input((), dtype="int32", name="a")}
    embedded = keras.layers.Embedding(4, 3)(inputs["a"])
    model = keras.Model(inputs, keras.layers.Subtract()([inputs["z"], embedded]))
    predictor = Predictor.load(published(tmp_path, model), warm=True)
    z = np.arange(6, dtype=np.float32).reshape(2, 3)
    batch = predictor({"a": np.array([1, 3], np.int32), "z": z})
    table = next(weight for weight in model.weights if "embedding" in weight.path)
    np.testing.assert_allclose(batch, z - np.asarray(table)[[1, 3]], atol=1e-6)
    one = predictor.one({"z": z[1], "a": 3})
    np.testing.assert_allclose(one, batch[1], atol=1e-6)
    with pytest.raises(InputError, match=r"'z': float32 \[3\].*received \{'z': float32 \[3\]\}"):
        predictor.one({"z": z[1]})
    with pytest.raises(InputError, match=r"received \{'a': float64 \[2\]"):
        predictor({"a": np.array([1.0, 3.0]), "z": z})


def test_open_sizes_need_an_example_and_keep_a_limited_number_of_functions(tmp_path: Path) -> None:
    import keras

    series = keras.Input((None, 2), name="series")
    model = keras.Model(series, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(series)))
    predictor = Predictor.load(published(tmp_path, model))
    with pytest.raises(InputError, match=r"takes float32 \[any, 2\].*open"):
        predictor.warm()
    draw = np.random.default_rng(0)
    for length in range(1, 13):
        example = draw.random((length, 2), np.float32)
        np.testing.assert_allclose(predictor.one(example), predictor(example[None])[0], atol=1e-5)
    assert len(predictor._fast) == 8
    with pytest.raises(InputError, match="8 shapes"):
        predictor.warm(draw.random((40, 2), np.float32))


def test_what_xla_cannot_compile_is_answered_all_the_same(tmp_path: Path) -> None:
    """A look-up by text has no XLA kernel."""
    import keras

    word = keras.Input((), dtype="string", name="word")
    looked_up = keras.layers.StringLookup(vocabulary=["up", "down"], output_mode="one_hot")(word)
    predictor = Predictor.load(published(tmp_path, keras.Model(word, looked_up)))
    ready = predictor.warm("down")
    assert "compiled" in ready.refused or "frozen" in ready.refused
    assert predictor.one("down").tolist() == [0.0, 0.0, 1.0]
    assert predictor.one("up").tolist() == [0.0, 1.0, 0.0]


def test_no_model_and_a_damaged_one_are_told(tmp_path: Path) -> None:
    with pytest.raises(CasebookError, match="holds no published model"):
        Predictor.load(tmp_path)
    broken = published(tmp_path / "model", recurrent(0))
    (broken / "member-0" / "saved_model" / "saved_model.pb").write_bytes(b"no protobuf")
    with pytest.raises(CasebookError, match="damaged or incomplete"):
        Predictor.load(broken)
