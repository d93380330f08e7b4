"""Pruning: the schedule by hand, masks under the loop's own optimizer, on one device and mirrored over two."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared import worker
from shared.errors import CasebookError
from shared.runs import pruning

from . import networks


def test_levels_rise_by_the_cubic_schedule_and_stay() -> None:
    # E = 5: two epochs lead up, at t = 1/3 and 2/3 of the way: 1 - (2/3)^3 = 19/27, 1 - (1/3)^3 = 26/27.
    assert pruning.levels(0.54, 5) == pytest.approx([0.54 * 19 / 27, 0.54 * 26 / 27, 0.54, 0.54, 0.54])
    assert pruning.levels(0.9, 1) == [0.9]
    for epochs in range(1, 9):
        assert pruning.levels(0.7, epochs)[-1] == 0.7
        assert len(pruning.levels(0.7, epochs)) == epochs


def test_only_large_kernels_are_pruned() -> None:
    names = {
        kind: [kernel.path.split("/", 1)[-1] for kernel in pruning.Masks(networks.network(kind, 32)).kernels]
        for kind in ("dense", "conv", "lstm")
    }
    assert [name.rsplit("/", 1)[-1] for name in names["lstm"]] == ["kernel", "recurrent_kernel"] * 2
    assert len(names["dense"]) == 1  # the head's 32 weights, biases and normalisation stay
    assert len(names["conv"]) == 1  # 3 x 3 x 32 of the convolution; the depthwise kernel stays
    with pytest.raises(CasebookError, match="no trainable kernel"):
        pruning.Masks(networks.network("named"))


def test_masks_close_over_the_smallest_and_never_open_again() -> None:
    model = networks.network("dense", 8)
    masks = pruning.Masks(model)
    kernel = masks.kernels[0]
    values = np.linspace(-1, 1, 64 * 8).reshape(64, 8).astype(np.float32)
    kernel.assign(values)
    closed: list[set[int]] = []
    for share in (0.25, 0.5, 0.75):
        masks.close(share)
        masks.apply()
        zero = np.flatnonzero(kernel.numpy().ravel() == 0)
        assert len(zero) == share * 512
        assert np.abs(values.ravel()[zero]).max() <= np.abs(kernel.numpy()[kernel.numpy() != 0]).min()
        closed.append(set(zero))
    assert closed[0] < closed[1] < closed[2]
    # Equal weights are told apart by their place: a share is a share.
    kernel.assign(np.ones((64, 8), np.float32))
    masks.close(0.5)
    masks.apply()
    assert (kernel.numpy() == 0).sum() == 256


def tuned(devices: int, epochs: int) -> dict[str, Any]:
    """A network pruned to 75% while it trains, under the loop; in a child of its own."""
    import keras
    import tensorflow as tf

    from shared.accelerator import _cpu_strategy
    from shared.config import TrainSection
    from shared.contract import Phase, Source
    from shared.plan import ExecutionPlan

    strategy = _cpu_strategy(devices)
    x = np.random.default_rng(0).normal(size=(256, 8, 8)).astype(np.float32)
    y = (x[:, 0, 0] > x[:, 7, 7]).astype(np.float32)[:, None]
    whole = tf.data.Dataset.from_tensor_slices((x, y))
    phase = Phase("only", lambda previous: previous, keras.losses.binary_crossentropy, 1, 3e-2)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = networks.network("dense", 16)
    found = pruning.fine_tune(
        strategy,
        model,
        phase,
        Source(192, dataset=whole.take(192)),
        Source(64, dataset=whole.skip(192)),
        ExecutionPlan(batch_size=16, replicas=devices),
        TrainSection(weight_decay=0.01),
        share=0.75,
        epochs=epochs,
        seed=0,
    )
    kernel = next(v for v in model.trainable_variables if pruning.prunable(v))
    replicas = getattr(kernel.value, "values", [kernel.value])
    return {
        **found,
        "shares": [float((part.numpy() == 0).mean()) for part in replicas],
        "losses": [row["loss"] for row in found["history"]],
        "constraint": kernel.constraint,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "epochs"), [(1, 6), (2, 2)])
def test_fine_tuning_ends_with_the_wanted_share_of_zeros(devices: int, epochs: int) -> None:
    found = worker.call(tuned, devices, epochs, timeout=300)
    assert found["shares"] == [0.75] * devices
    assert len(found["losses"]) == epochs
    assert found["losses"][-1] < found["losses"][0], "it learns under the masks"
    assert found["zeros"] >= 0.75 * 64 * 16
    assert found["constraint"] is None


def test_a_compressed_file_is_small_and_loads(tmp_path: Path) -> None:
    import keras

    from shared.runs.pruned import write_compressed

    model = networks.network("dense", 64)
    masks = pruning.Masks(model)
    masks.close(0.9)
    masks.apply()
    masks.release()
    write_compressed(model, tmp_path / "pruned.keras")
    model.save(tmp_path / "whole.keras")
    packed, whole = (tmp_path / f"{name}.keras" for name in ("pruned", "whole"))
    assert packed.stat().st_size < 0.3 * whole.stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pruned.keras", "whole.keras"]
    assert {item.compress_type for item in zipfile.ZipFile(packed).infolist()} == {zipfile.ZIP_DEFLATED}
    again = keras.models.load_model(packed, safe_mode=True, compile=False)
    for one, other in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
