from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from shared.errors import TrainingError
from shared.training.monitor import Monitor, first_unsound, require_sound


def follow(monitor: Monitor, values: list[float]) -> list[bool]:
    return [monitor.update(epoch, value) for epoch, value in enumerate(values, start=1)]


def test_smaller_is_better_and_patience_runs_out():
    monitor = Monitor("loss", "min", patience=2)
    assert follow(monitor, [0.5, 0.4, 0.4]) == [True, True, False]
    assert not monitor.stop
    assert follow(monitor, [0.41]) == [False]
    assert monitor.stop
    assert (monitor.best, monitor.best_epoch) == (0.4, 2)


def test_larger_is_better():
    monitor = Monitor("auc", "max", patience=1)
    assert follow(monitor, [0.5, 0.4]) == [True, False]
    assert monitor.stop


def test_without_patience_it_never_stops():
    monitor = Monitor("loss", patience=0)
    follow(monitor, [1.0, *[2.0] * 50])
    assert not monitor.stop


def test_nan_is_never_better():
    monitor = Monitor("auc", "max", patience=2)
    assert follow(monitor, [math.nan, 0.5]) == [False, True]
    assert monitor.best_epoch == 2


def test_its_fields_are_its_state():
    monitor = Monitor("loss", patience=3)
    follow(monitor, [1.0, 2.0])
    assert Monitor(**monitor.to_dict()) == monitor


@dataclass
class Weights:
    path: str
    values: np.ndarray

    def numpy(self) -> np.ndarray:
        return self.values


KERNEL = Weights("dense/kernel", np.ones([2, 2], np.float32))
BIAS = Weights("dense/bias", np.array([0.0, np.nan, np.inf], np.float32))
STATE = Weights("seed/state", np.array([1, 2], np.int64))


def test_the_first_unsound_variable_is_named():
    assert first_unsound([STATE, KERNEL, BIAS]) == ("dense/bias", 2, 3)
    assert first_unsound([STATE, KERNEL]) is None


def test_nan_weights_behind_a_good_loss_stop_training():
    with pytest.raises(TrainingError, match=r"epoch 3.*loss read 0\.98.*dense/bias \(2 of 3 values\)"):
        require_sound(0.98, [KERNEL, BIAS], "epoch 3")


def test_an_unsound_loss_stops_training():
    with pytest.raises(TrainingError, match="the loss became inf; no variable holds"):
        require_sound(math.inf, [KERNEL], "epoch 3")


def test_sound_numbers_pass():
    require_sound(0.5, [STATE, KERNEL], "epoch 1")
