"""Weights of a legacy PyTorch file, read without PyTorch and without running what it asks for."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from domains.xray import weights
from shared.errors import InputError


@pytest.fixture(scope="module")
def lite0():
    return weights.read_legacy_torch(weights.lite0_checkpoint())


def test_the_real_file_holds_247_tensors_of_the_right_shapes(lite0):
    learned = {name: tensor for name, tensor in lite0.items() if "num_batches" not in name}
    assert len(learned) == 247
    assert learned["_conv_stem.weight"].shape == (32, 3, 3, 3)
    assert learned["_blocks.15._depthwise_conv.weight"].shape == (1152, 1, 3, 3)
    assert learned["_fc.weight"].shape == (1000, 1280)
    assert all(np.isfinite(tensor).all() for tensor in learned.values())


def test_a_pickle_that_calls_a_function_is_refused_before_it_is_called(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "called"),)

    file = tmp_path / "evil.pth"
    file.write_bytes(pickle.dumps(weights.MAGIC, 2) + pickle.dumps(1001, 2) + pickle.dumps(Evil(), 2))
    with pytest.raises(InputError, match="mkdir has no place"):
        weights.read_legacy_torch(file)
    assert not (tmp_path / "called").exists()


def test_other_files_are_refused(tmp_path):
    whole = weights.lite0_checkpoint().read_bytes()
    for name, content in {"cut.pth": whole[:50_000], "text.pth": b"hello", "empty.pth": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=r"legacy PyTorch"):
            weights.read_legacy_torch(tmp_path / name)
    with pytest.raises(InputError, match="Cannot read"):
        weights.read_legacy_torch(tmp_path / "missing.pth")


def test_kernels_change_their_axes():
    kernel = np.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7)
    assert weights.keras_layout("_conv_stem.weight", kernel)[4, 6, 2, 1] == kernel[1, 2, 4, 6]
    depthwise = np.arange(4 * 3 * 3).reshape(4, 1, 3, 3)
    assert (
        weights.keras_layout("_blocks.0._depthwise_conv.weight", depthwise)[2, 1, 3, 0]
        == depthwise[3, 0, 2, 1]
    )
