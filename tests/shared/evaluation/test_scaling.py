"""The scaler: right in float32, deaf to anything but train."""

import json

import numpy as np
import pytest

from shared.errors import InputError
from shared.evaluation.scaling import Standardizer


def test_long_float32_series_of_kelvins_keeps_its_mean():
    values = np.full((200_000, 2), 288.1, dtype=np.float32)
    values[::2, 1] += 10
    fitted = Standardizer.fit(values)
    np.testing.assert_allclose(fitted.mean[0], [288.1, 293.1], atol=1e-4)
    np.testing.assert_allclose(fitted.std[0], [1.0, 5.0], rtol=1e-5)  # the constant column gets 1


def test_pressure_standardizes_without_cancelling():
    values = (101_325 + np.random.default_rng(0).normal(0, 0.5, 5000)).astype(np.float64)
    scaled = Standardizer.fit(values).transform(values)
    assert scaled.dtype == np.float32
    assert abs(scaled.mean()) < 1e-3
    assert abs(scaled.std() - 1) < 1e-3


def test_changing_test_rows_leaves_train_to_the_bit():
    values = np.random.default_rng(1).normal(size=(100, 5, 3)).astype(np.float32)
    train = Standardizer.fit(values[:70], axis=(0, 1)).transform(values[:70])
    changed = values.copy()
    changed[70:] = 1e6
    assert train.tobytes() == Standardizer.fit(changed[:70], axis=(0, 1)).transform(changed[:70]).tobytes()


def test_missing_values_are_left_out_and_stay_missing():
    values = np.array([[1.0, np.nan], [3.0, np.nan]])
    fitted = Standardizer.fit(values)
    assert fitted.to_dict() == {"mean": [[2.0, 0.0]], "std": [[1.0, 1.0]]}
    assert np.isnan(fitted.transform(values)[:, 1]).all()


def test_round_trip_through_json_is_exact():
    values = np.random.default_rng(2).normal(size=(50, 4))
    fitted = Standardizer.fit(values)
    again = Standardizer.from_dict(json.loads(json.dumps(fitted.to_dict())))
    assert again.transform(values).tobytes() == fitted.transform(values).tobytes()
    np.testing.assert_allclose(fitted.inverse(fitted.transform(values)), values, atol=1e-6)


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(InputError, match="no values"):
        Standardizer.fit(np.zeros((0, 3)))
    with pytest.raises(InputError, match=r"infinite value, first at \(1, 0\)"):
        Standardizer.fit(np.array([[1.0], [np.inf]]))
