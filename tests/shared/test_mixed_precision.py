from __future__ import annotations

from types import SimpleNamespace

import keras
import pytest

from shared import mixed_precision
from shared.errors import TrainingError
from shared.machine import Gpu
from shared.mixed_precision import candidates, check_float32_head


def box(flags=(), capabilities=()) -> SimpleNamespace:
    return SimpleNamespace(flags=flags, gpus=tuple(Gpu("a GPU", compute_capability=c) for c in capabilities))


@pytest.mark.parametrize(
    ("device", "machine", "usable"),
    [
        ("cpu", box(), ["float32"]),
        ("cpu", box(("avx512f", "avx512_bf16")), ["float32", "mixed_bfloat16"]),
        ("cpu", box(("amx_bf16",), [(9, 0)]), ["float32", "mixed_bfloat16"]),
        ("gpu", box((), [(6, 1)]), ["float32"]),
        ("gpu", box((), [(7, 5)]), ["float32", "mixed_float16"]),
        ("gpu", box((), [(8, 6)]), ["float32", "mixed_bfloat16", "mixed_float16"]),
        ("gpus", box((), [(9, 0), (7, 0)]), ["float32", "mixed_float16"]),
        ("gpu", box((), [None]), ["float32"]),
        ("gpu", box(), ["float32"]),
        ("tpu", box(), ["float32", "mixed_bfloat16"]),
        ("workers", box(("avx512_bf16",)), ["float32", "mixed_bfloat16"]),
        ("workers", box((), [(7, 0)]), ["float32", "mixed_float16"]),
    ],
)
def test_usable_policies(device, machine, usable):
    policies = candidates(machine, device)
    assert [policy.name for policy in policies if policy.usable] == usable
    assert sorted(policy.name for policy in policies) == sorted(mixed_precision.NAMES)
    assert all(policy.reason for policy in policies)


@pytest.fixture
def policy():
    before = keras.config.dtype_policy().name
    yield
    keras.config.set_dtype_policy(before)


def test_a_half_precision_head_is_refused(policy):
    mixed_precision.apply("mixed_bfloat16")
    inputs = keras.Input((2,))
    half = keras.Model(inputs, keras.layers.Dense(1, name="head")(inputs), name="film")
    with pytest.raises(TrainingError, match=r"model 'film' is bfloat16.*\n.*dtype=\"float32\""):
        check_float32_head(half)
    check_float32_head(keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(inputs)))


def test_every_output_is_looked_at(policy):
    mixed_precision.apply("mixed_bfloat16")
    inputs = keras.Input((2,))
    outputs = {"a": keras.layers.Dense(1, dtype="float32")(inputs), "b": keras.layers.Dense(1)(inputs)}
    with pytest.raises(TrainingError, match="is bfloat16"):
        check_float32_head(keras.Model(inputs, outputs))


def test_an_unknown_policy_is_refused():
    with pytest.raises(TrainingError, match="'float8'"):
        mixed_precision.apply("float8")
