"""A profile of a few calls, what it says at once, and trouble that does not stop a training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from shared import files
from shared.training.profiling import SUMMARY, Profile, summary

TIMES = 8


@tf.function
def work(x):
    for _ in tf.range(TIMES):
        x = tf.linalg.matmul(x, x) / 256.0
    return x


def run(profile: Profile, calls: int) -> None:
    x = tf.ones([256, 256])
    for number in range(calls):
        profile.before_call(number)
        work(x).numpy()
        profile.after_call(number)
    profile.close()


def product(found: dict[str, Any]) -> dict[str, Any]:
    """The matrix product, the dearest op of the work; on a busy machine scheduling may come before it."""
    return next(op for op in found["ops"][:2] if "MatMul" in op["name"])


def test_the_calls_after_the_first_are_profiled_and_told(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "casebook.training"):
        run(Profile(tmp_path / "profile", first=1, calls=2), calls=6)
    assert list((tmp_path / "profile").glob("plugins/profile/*/*.xplane.pb"))
    found = files.read_json(tmp_path / "profile" / SUMMARY)
    largest = product(found)
    assert largest["count"] == 2 * TIMES
    assert 0.2 < largest["share"] <= 1
    assert found["where"] == "host"
    assert found["seconds"] == pytest.approx(sum(op["seconds"] for op in found["ops"]), rel=0.05)
    assert f"calls 1 to 2 is in {tmp_path / 'profile'}: {found['ops'][0]['name']}" in caplog.text
    assert largest["name"] in caplog.text


def test_waiting_for_input_is_told(tmp_path):
    def slow(x):
        tf.py_function(lambda: __import__("time").sleep(0.05), [], [])
        return x

    iterator = iter(tf.data.Dataset.range(4).map(slow))

    @tf.function
    def step():
        return next(iterator)

    profile = Profile(tmp_path, first=1, calls=2)
    for number in range(3):
        profile.before_call(number)
        step()
        profile.after_call(number)
    assert files.read_json(tmp_path / SUMMARY)["input_seconds"] > 0.08


def test_without_a_folder_nothing_happens(tmp_path):
    run(Profile(None, first=0, calls=2), calls=3)
    assert not list(tmp_path.iterdir())


def test_a_training_that_ends_within_it_leaves_what_there_is(tmp_path):
    run(Profile(tmp_path, first=1, calls=50), calls=3)
    assert product(files.read_json(tmp_path / SUMMARY))["count"] == 2 * TIMES


def test_a_training_that_ends_before_it_says_so_once(tmp_path, caplog):
    profile = Profile(tmp_path / "head", first=2, calls=3)
    run(profile, calls=1)
    profile.close()
    assert caplog.text.count("No profile of head is written: it ended before its call number 3") == 1


def test_another_profiler_is_a_warning(tmp_path, caplog):
    tf.profiler.experimental.start(str(tmp_path / "theirs"))
    try:
        with caplog.at_level(logging.WARNING, "casebook.training"):
            run(Profile(tmp_path / "ours", first=1, calls=1), calls=4)
    finally:
        tf.profiler.experimental.stop(save=False)
    assert caplog.text.count("No profile is written") == 1
    assert not (tmp_path / "ours").exists()


def test_a_profile_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "casebook.training"):
        run(Profile(tmp_path / "file" / "profile", first=1, calls=1), calls=4)
    assert "could not be written" in caplog.text
    run(Profile(tmp_path / "next", first=1, calls=1), calls=2)
    assert (tmp_path / "next" / SUMMARY).exists(), "the profiler was left free"


def test_what_is_no_profile_has_no_summary(tmp_path: Path):
    assert summary(tmp_path) == {}
    folder = tmp_path / "plugins" / "profile" / "now"
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_bytes(b"nothing of the kind")
    assert summary(tmp_path) == {}


def test_kernels_of_a_gpu_come_before_ops_of_the_host(tmp_path):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    gpu = space.planes.add(name="/device:GPU:0")
    gpu.event_metadata[1].name = "gemm"
    stream = gpu.lines.add(name="Stream #13(Compute)")
    for offset in (0, 10):
        stream.events.add(metadata_id=1, offset_ps=offset, duration_ps=2 * 10**9)
    gpu.lines.add(name="Steps").events.add(metadata_id=1, duration_ps=10**12)
    folder = tmp_path / "plugins" / "profile" / "now"
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_bytes(space.SerializeToString())
    found = summary(tmp_path)
    assert found["where"] == "device"
    assert found["ops"] == [{"name": "gemm", "seconds": 0.004, "share": 1.0, "count": 2}]
