"""Keras's callbacks in a loop by hand: called as fit calls them, and equal after a resume."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from shared.errors import TrainingError
from shared.training import checkpoint
from shared.training.callback_state import LARGEST, TooLarge, decoded, encoded
from shared.training.callbacks import Callbacks
from shared.training.step import Stepper, make_optimizer

STEPS, PER_CALL = 4, 2
X = np.random.default_rng(0).normal(size=(8 * STEPS, 3)).astype(np.float32)
Y = X[:, :1] * 2
BATCHES = tf.data.Dataset.from_tensor_slices((X, Y, np.ones(len(X), np.float32))).batch(8).repeat()
LOSS = keras.losses.mean_squared_error

Moment = tuple[int, dict[str, np.ndarray], str]
"""Epoch, variables and state of the callbacks, as a checkpoint holds them."""


class Training:
    """A small loop that does what the real one will: calls of two steps, validation, epochs."""

    def __init__(self, given: Sequence[Any], epochs: int, body: Any = None, **optimizer: Any) -> None:
        if body is None:
            keras.utils.clear_session()
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
            body = Stepper(model, LOSS, make_optimizer(**{"learning_rate": 0.1, **optimizer}))
        self.stepper, self.model, self.optimizer = body, body.model, body.optimizer
        self.epochs, self.epoch = epochs, 0
        self.rates: list[float] = []
        self.moments: list[Moment] = []
        self.callbacks = Callbacks(given, self.model, self.optimizer, LOSS, epochs=epochs, steps=STEPS)

    def begin(self, moment: Moment | None = None) -> Training:
        if moment is None:
            self.callbacks.begin(None)
        else:
            self.epoch, arrays, state = moment
            self.callbacks.begin(json.loads(state))
            checkpoint.assign([*self.model.variables, *self.optimizer.variables], arrays, "the moment")
        return self

    def moment(self) -> Moment:
        arrays = checkpoint.values([*self.model.variables, *self.optimizer.variables])
        return self.epoch, arrays, json.dumps(self.callbacks.state(), allow_nan=False)

    def one_epoch(self, val_loss: float) -> None:
        told, iterator = self.callbacks, self.stepper.iterate(BATCHES)
        told.epoch_begin(self.epoch)
        total = [0.0, 0.0]
        for step in range(0, STEPS, PER_CALL):
            told.step_begin(step)
            loss, weight = self.stepper.run(iterator, PER_CALL)
            total = [total[0] + loss, total[1] + weight]
            told.step_end(step + PER_CALL - 1, {"loss": total[0] / total[1]})
        told.validation_begin()
        told.validation_end({"loss": val_loss})
        rate = float(self.optimizer.learning_rate.numpy())
        told.epoch_end(self.epoch, {"loss": total[0] / total[1], "val_loss": val_loss, "learning_rate": rate})
        self.rates.append(rate)
        self.epoch += 1

    def run(self, losses: Sequence[float]) -> Training:
        for val_loss in losses[self.epoch :]:
            if self.callbacks.stop:
                break
            self.one_epoch(val_loss)
            self.moments.append(self.moment())
        self.callbacks.end({"val_loss": losses[self.epoch - 1]})
        return self


def recorder(heard: list[Any]) -> keras.callbacks.Callback:
    def hear(name: str) -> Any:
        return lambda *args, **kwargs: heard.append((name, *[a for a in args if isinstance(a, int)]))

    moments = ("epoch_begin", "epoch_end", "train_begin", "train_end", "train_batch_begin", "train_batch_end")
    more = ("test_begin", "test_end")
    return keras.callbacks.LambdaCallback(**{f"on_{name}": hear(name) for name in (*moments, *more)})


def test_every_moment_is_told_in_the_order_of_fit():
    heard: list[Any] = []
    Training([recorder(heard)], 1).begin().run([1.0])
    ours, heard = list(heard), []
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=PER_CALL)
    model.fit(X, Y, batch_size=8, validation_data=(X, Y), callbacks=[recorder(heard)], verbose=0)
    assert ours == heard


def test_without_callbacks_nothing_happens():
    training = Training([], 2)
    assert not hasattr(training.model, "optimizer")
    assert not training.model.compiled
    assert training.begin().run([1.0, 2.0]).epoch == 2
    assert training.callbacks.state() == {}
    assert not training.callbacks.stop


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_compile_takes_the_optimizer_as_it_is(precision):
    keras.config.set_dtype_policy(precision)
    try:
        training = Training([keras.callbacks.Callback()], 1, precision=precision)
    finally:
        keras.config.set_dtype_policy("float32")
    bare = Training([], 1)
    assert training.model.optimizer is training.optimizer
    assert isinstance(training.optimizer, keras.optimizers.LossScaleOptimizer) == (
        precision == "mixed_float16"
    )
    assert [v.path for v in training.model.variables] == [v.path for v in bare.model.variables]
    for mine, theirs in zip(training.model.variables, bare.model.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    if precision == "float32":
        numbers = checkpoint.values(training.begin().run([1.0]).model.variables)
        for path, value in checkpoint.values(bare.begin().run([1.0]).model.variables).items():
            np.testing.assert_array_equal(numbers[path], value)


def keras_own() -> list[Any]:
    return [
        keras.callbacks.ReduceLROnPlateau(patience=2, factor=0.5, min_delta=0.1, cooldown=1),
        keras.callbacks.EarlyStopping(patience=4, min_delta=0.1, start_from_epoch=1),
    ]


# By 0.05, less than min_delta, nothing has become better; later by 0.2, which is.
LOSSES = [1.0, 0.95, 0.9, 0.85, 0.6, 0.58, 0.55, 0.52, 0.51, 0.5, 0.5, 0.5, 0.5]


def test_stopping_and_rates_go_on_as_if_nothing_had_happened():
    whole = Training(keras_own(), 13).begin().run(LOSSES)
    assert whole.epoch < len(LOSSES), "stopped early"
    assert len(set(whole.rates)) == 3, "reduced twice"
    last = checkpoint.values(whole.model.variables)
    for killed_after, moment in enumerate(whole.moments, start=1):
        second = Training(keras_own(), 13, whole.stepper).begin(moment).run(LOSSES)
        assert whole.rates[:killed_after] + second.rates == whole.rates
        assert second.epoch == whole.epoch
        for path, value in checkpoint.values(second.model.variables).items():
            np.testing.assert_array_equal(value, last[path])


def test_a_training_that_was_killed_when_it_had_stopped_stays_stopped():
    first = Training([keras.callbacks.EarlyStopping(patience=1)], 9).begin()
    for val_loss in (1.0, 2.0):
        first.one_epoch(val_loss)
    assert first.callbacks.stop
    second = Training([keras.callbacks.EarlyStopping(patience=1)], 9).begin(first.moment())
    assert second.callbacks.stop


def test_a_setting_given_anew_holds_after_a_resume():
    first = Training([keras.callbacks.EarlyStopping(patience=3)], 9).begin()
    first.one_epoch(1.0)
    first.one_epoch(2.0)
    later = keras.callbacks.EarlyStopping(patience=7)
    Training([later], 9).begin(first.moment())
    assert (later.patience, later.wait, later.best) == (7, 1, 1.0)


def test_other_callbacks_than_before_begin_anew(caplog):
    first = Training(keras_own(), 9).begin()
    first.one_epoch(1.0)
    later = [keras.callbacks.EarlyStopping(), keras.callbacks.TerminateOnNaN()]
    with caplog.at_level(logging.WARNING, "casebook.training"):
        Training(later, 9).begin(first.moment())
    assert "were ReduceLROnPlateau, EarlyStopping and are EarlyStopping, TerminateOnNaN now" in caplog.text
    assert later[0].best is None


def rate_setters() -> list[Any]:
    return [
        keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
    ]


@pytest.mark.parametrize("place", [0, 1])
def test_a_rate_that_is_a_schedule_cannot_be_set(place):
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    training = Training([rate_setters()[place]], 2, learning_rate=schedule)
    with pytest.raises(TrainingError, match="schedule") as refused:
        training.begin()
    assert "train.schedule = constant" in refused.value.remedy


def test_a_strangers_callback_that_sets_a_schedule_is_told_the_same():
    class Halve(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.1

    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    with pytest.raises(TrainingError, match="schedule"):
        Training([Halve()], 2, learning_rate=schedule).begin().one_epoch(1.0)


def test_checking_the_rate_leaves_it():
    training = Training(rate_setters(), 2, learning_rate=0.1, precision="mixed_float16").begin()
    assert training.optimizer.learning_rate.numpy() == np.float32(0.1)
    training.one_epoch(1.0)
    assert training.optimizer.learning_rate.numpy() == np.float32(0.05)


def files_of_keras(folder: Path) -> list[Any]:
    return [
        keras.callbacks.ModelCheckpoint(str(folder / "best-{epoch}.keras"), save_best_only=True),
        keras.callbacks.ModelCheckpoint(
            str(folder / "last.weights.h5"), save_weights_only=True, save_freq=STEPS
        ),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
        keras.callbacks.TerminateOnNaN(),
    ]


def test_callbacks_that_write_files_go_on_in_them(tmp_path):
    given = files_of_keras(tmp_path)
    first = Training(given, 3).begin()
    for val_loss in (1.0, 0.5):
        first.one_epoch(val_loss)
    given[2].csv_file.close()  # as the end of a killed process does
    second = Training(files_of_keras(tmp_path), 3).begin(first.moment()).run([1.0, 0.5, 0.7])
    assert {path.name for path in tmp_path.glob("*.keras")} == {"best-1.keras", "best-2.keras"}
    assert (tmp_path / "last.weights.h5").exists()
    saved = keras.saving.load_model(tmp_path / "best-2.keras")
    assert saved.count_params() == second.model.count_params()
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0] == "epoch,learning_rate,loss,val_loss"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1", "2"]


def test_the_tensorboard_of_keras_goes_on_at_its_step(tmp_path):
    pytest.importorskip("tensorboard")

    def board() -> Any:
        return keras.callbacks.TensorBoard(str(tmp_path), update_freq=2, histogram_freq=1)

    first = Training([board()], 3).begin()
    for val_loss in (1.0, 0.5):
        first.one_epoch(val_loss)
    Training([board()], 3).begin(first.moment()).run([1.0, 0.5, 0.7])
    found: dict[str, list[int]] = {}
    for file in sorted((tmp_path / "train").glob("events*")):
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    assert found["epoch_loss"] == [0, 1, 2]
    assert found["batch_loss"] == [2, 4, 6]


def test_the_tensorboard_of_keras_asks_for_its_package_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TrainingError, match="not installed") as refused:
        Training([keras.callbacks.TensorBoard(str(tmp_path), write_graph=False)], 1)
    assert "run.tensorboard" in refused.value.remedy


def test_nan_asks_for_the_end(capsys):
    training = Training([keras.callbacks.TerminateOnNaN()], 2).begin()
    assert not training.callbacks.stop
    training.callbacks.step_end(0, {"loss": float("nan")})
    assert training.callbacks.stop
    assert "Invalid loss" in capsys.readouterr().out


def test_what_cannot_work_is_told_at_once(caplog, tmp_path):
    with pytest.raises(TrainingError, match="BackupAndRestore"):
        Training([keras.callbacks.BackupAndRestore(str(tmp_path))], 1)
    with pytest.raises(TrainingError, match="received <class"):
        Training([keras.callbacks.EarlyStopping], 1)
    kept = keras.callbacks.EarlyStopping(patience=0, restore_best_weights=True)
    with caplog.at_level(logging.WARNING, "casebook.training"):
        training = Training([kept], 9)
    assert "EarlyStopping keeps no weights" in caplog.text
    training.begin().run([1.0, 2.0])
    assert kept.best_weights is None


def test_weights_in_a_callback_are_named_and_left_out(caplog):
    class Swa(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.seen = np.float32(logs["val_loss"])
            self.mean = [np.zeros(LARGEST + 1)]

    training = Training([Swa()], 1).begin()
    training.one_epoch(0.5)
    with caplog.at_level(logging.WARNING, "casebook.training"):
        first, _ = training.callbacks.state(), training.callbacks.state()
    assert caplog.text.count("Swa.mean is too large") == 1
    assert decoded(first["callbacks"][0]["attributes"]["seen"]) == np.float32(0.5)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        10**400,
        0.1,
        float("-inf"),
        "text",
        [1, [2.5, None]],
        (1, "a"),
        {"a": {"b": [np.int64(3)]}},
        np.float32(0.1),
        np.float64(0.1),
        np.float64("inf"),
        np.bool_(True),
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.array([np.inf, 0.1], np.float32),
        np.zeros((0, 3)),
        np.array(2.0),
    ],
    ids=repr,
)
def test_plain_values_come_back_to_the_bit(value):
    back = decoded(json.loads(json.dumps(encoded(value), allow_nan=False)))
    assert type(back) is type(value)
    np.testing.assert_equal(back, value)
    if isinstance(value, (np.ndarray, np.generic)):
        assert (back.dtype, back.shape) == (value.dtype, value.shape)


def test_nan_comes_back():
    assert np.isnan(decoded(encoded(float("nan"))))


@pytest.mark.parametrize("value", [object(), {1: 2}, b"x", [len], np.array(["a"]), tf.constant(1.0)])
def test_other_values_are_not_kept(value):
    with pytest.raises(TypeError):
        encoded(value)
    with pytest.raises(TooLarge):
        encoded(list(range(LARGEST + 1)))
