"""What is asked of a TPU, in which order, and what is given back, however it ends. There is none here.

TensorFlow's five calls are stood in for (``tests/shared/tpus.py``); the work is done by the real loop.
And TensorFlow's own strategy traces our step for cores that do not exist: so far as it can be seen in
a graph, nothing in it is what a TPU refuses.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from shared import mixed_precision, placement, tpu, worker
from shared.accelerator import machine, opened, probe
from shared.config import AcceleratorSection
from shared.errors import DeviceError
from shared.plan import ExecutionPlan
from shared.worker import Verdict
from tests.shared import tpus
from tests.shared.tpus import FakeTpu, bare

LOCAL = ["resolver", "initialise", "strategy", "proof"]
REMOTE = ["resolver", "connect", "initialise", "strategy", "proof"]

NO_KERNELS = """TPUs not found in the cluster. Failed in initialization: No OpKernel was registered to support Op \
'ConfigureDistributedTPU' used by {{node ConfigureDistributedTPU}} with these attrs: [tpu_embedding_config="", \
tpu_cancellation_closes_chips=2, compilation_failure_closes_chips=false, embedding_config=""]
Registered devices: [CPU]
Registered kernels:
  <no registered kernels>
"""
"""What the stock wheel of TensorFlow 2.21 says, shortened in the middle."""


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASEBOOK_LOCKS", str(tmp_path))
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("TPU_NAME", raising=False)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTpu:
    """Installed, and told of the proof too."""
    it = FakeTpu(bare).install(monkeypatch.setattr)
    prove = placement.prove

    def proved(name: str) -> str:
        it.call("proof")
        return prove(name)

    monkeypatch.setattr(placement, "prove", proved)
    return it


def section(address: str = "local", device: str = "tpu") -> AcceleratorSection:
    return AcceleratorSection.model_validate({"device": device, "tpu_address": address})


# --- the order ---


@pytest.mark.parametrize(
    ("address", "master", "order"),
    [
        ("local", None, LOCAL),
        ("", None, LOCAL),
        ("grpc://10.0.0.2:8470", None, REMOTE),
        ("node-1", "grpc://10.0.0.2:8470", REMOTE),
        ("", "grpc://10.0.0.2:8470", REMOTE),  # TPU_NAME leads there
    ],
)
def test_opened_in_tensorflows_order_and_shut_down_after_the_work(fake, address, master, order):
    fake.master = master
    with opened(section(address)) as device:
        fake.call("work")
    assert fake.calls == [*order, "work", "shutdown"]
    assert device.device == "tpu"
    assert device.replicas == 1
    assert device.proof == (tpus.CPU.format(0),)
    assert device.device_name == f"TPU at {address}"


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt(), SystemExit(143)])
def test_shut_down_once_however_the_work_ends(fake, error):
    with pytest.raises(type(error)) as caught, opened(section()):
        raise error
    assert caught.value is error
    assert fake.calls == [*LOCAL, "shutdown"]


def test_a_tpu_that_cannot_be_shut_down_is_a_warning(fake, caplog):
    fake.fails = {"shutdown": tf.errors.UnavailableError(None, None, "Socket closed\nmore")}
    with caplog.at_level(logging.WARNING, "casebook.accelerator"), opened(section()):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        "The TPU system could not be shut down: Socket closed"
    ]


def test_a_failing_shutdown_does_not_hide_why_the_work_failed(fake):
    fake.fails = {"shutdown": RuntimeError("no TPU devices found")}
    with pytest.raises(ValueError, match="the work"), opened(section()):
        raise ValueError("the work")
    assert fake.calls.count("shutdown") == 1


def test_shut_down_where_the_plan_is_for_another_number_of_cores(fake):
    plan = ExecutionPlan(device="tpu", replicas=8, measured=True)
    with pytest.raises(DeviceError, match="for 8 replicas, this device has 1"), opened(section(), plan=plan):
        fake.call("work")
    assert fake.calls == [*LOCAL, "shutdown"]


# --- failures ---


@pytest.mark.parametrize("stage", REMOTE)
def test_a_failure_names_the_address_the_reason_and_the_wheel(fake, stage):
    address = "grpc://10.0.0.2:8470"
    fake.fails = {stage: tf.errors.NotFoundError(None, None, "No such TPU.\n\n\t [[{{node x}}]]")}
    with pytest.raises(DeviceError) as caught, opened(section(address)):
        fake.call("work")
    assert caught.value.message == f"The TPU at '{address}' cannot be had: No such TPU."
    assert "pip install -c constraints-tpu.txt tensorflow-tpu" in caught.value.remedy
    reached = REMOTE[: REMOTE.index(stage) + 1]
    assert fake.calls == [*reached, *(["shutdown"] if stage in ("strategy", "proof") else [])]


@pytest.mark.parametrize("stage", LOCAL)
def test_interrupted_while_it_opens(fake, stage):
    fake.fails = {stage: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt), opened(section()):
        fake.call("work")
    reached = LOCAL[: LOCAL.index(stage) + 1]
    assert fake.calls == [*reached, *(["shutdown"] if stage in ("strategy", "proof") else [])]


def test_a_product_that_ran_on_the_cpu_is_no_proof_of_a_tpu(fake):
    """What ``TPUStrategy`` does where soft placement hides that there is none."""
    extended = SimpleNamespace(worker_devices=(tpus.TPU.format(0),))
    fake.strategy = lambda resolver: SimpleNamespace(
        num_replicas_in_sync=1, extended=extended, cluster_resolver=resolver
    )
    with (
        pytest.raises(DeviceError, match=r"cannot be had: A test product .*TPU:0") as caught,
        opened(section()),
    ):
        fake.call("work")
    assert "tensorflow-tpu" in caught.value.remedy
    assert fake.calls[-2:] == ["proof", "shutdown"]
    assert tf.config.get_soft_device_placement()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (NO_KERNELS, "TPUs not found in the cluster"),
        ("Please provide a TPU Name to connect to.", "Please provide a TPU Name to connect to"),
        ("", "NotFoundError"),
        ("word " * 100, "word " * 39 + "…"),
    ],
)
def test_a_long_reason_is_cut_to_its_first_sentence(fake, said, told):
    fake.fails = {"initialise": tf.errors.NotFoundError(None, None, said)}
    with pytest.raises(DeviceError) as caught, opened(section()):
        pass
    assert caught.value.message == f"The TPU at 'local' cannot be had: {told}."
    assert len(told) <= 200


@pytest.mark.slow
def test_an_initialisation_that_hangs_ends_at_the_childs_limit(caplog):
    done = worker.run(tpus.hangs, timeout=5)
    assert [record.getMessage() for record in caplog.records] == ["initialising"]
    assert done.verdict is Verdict.TIMED_OUT
    assert "5 s" in done.message


# --- the probe ---


def test_a_probe_opens_a_tpu_once_and_gives_it_back(fake):
    found = probe(section())
    assert found.device == "tpu"
    assert found.tpu == "a TPU answers with 1 replicas"
    assert found.placement == (tpus.CPU.format(0),)
    assert fake.calls == [*LOCAL, "shutdown"]


def test_a_probe_tells_why_a_tpu_does_not_answer(fake):
    fake.fails = {"initialise": tf.errors.NotFoundError(None, None, NO_KERNELS)}
    found = probe(section())
    assert found.device is None
    assert found.tpu == found.problems[-1].message
    assert "tensorflow-tpu" in found.problems[-1].remedy


def test_a_probe_of_another_device_leaves_the_tpu_alone(fake, monkeypatch):
    monkeypatch.setenv("TPU_NAME", "local")
    found = probe(section(device="cpu"))
    assert found.device == "cpu"
    assert found.tpu == "announced, and not asked"
    assert fake.calls == ["proof"]  # of the CPU


# --- the signs of a TPU ---


def a_machine(root: Path, *devices: tuple[str, str]) -> Path:
    """With devices of (vendor, id) on its bus."""
    for number, (vendor, device) in enumerate(devices):
        place = root / f"sys/bus/pci/devices/0000:00:0{number}.0"
        place.mkdir(parents=True)
        (place / "vendor").write_text(vendor + "\n")
        (place / "device").write_text(device + "\n")
    return root


NETWORK_CARD = ("0x1ae0", "0x0042")  # Google's too
INTELS = ("0x8086", "0x0063")


def test_a_chip_on_the_bus_announces_a_tpu(tmp_path):
    assert tpu.announced(a_machine(tmp_path, NETWORK_CARD, INTELS, ("0x1ae0", "0x006f")))


def test_a_machine_of_googles_cloud_is_no_tpu_yet(tmp_path):
    assert not tpu.announced(tmp_path)
    machine = a_machine(tmp_path, NETWORK_CARD, INTELS)
    (machine / "sys/bus/pci/devices/gone").mkdir()  # neither vendor nor id can be read
    assert not tpu.announced(machine)


def test_a_device_file_or_a_name_announces_a_tpu(tmp_path, monkeypatch):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accelerometer").touch()
    assert not tpu.announced(tmp_path)
    (tmp_path / "dev/accel0").touch()
    assert tpu.announced(tmp_path)
    monkeypatch.setenv("TPU_NAME", "node-1")
    assert tpu.announced(tmp_path / "nothing")


def test_the_server_of_children_leaves_tensorflow_to_them_where_there_is_a_tpu(monkeypatch):
    """Importing it starts the TPU's driver, which is lost in a fork."""
    monkeypatch.setattr(worker, "Server", lambda key, preload, variables: preload)
    monkeypatch.setattr(worker, "_current", None)
    assert "tensorflow" in worker._suitable_server({})
    monkeypatch.setattr(worker, "_current", None)
    monkeypatch.setenv("TPU_NAME", "local")
    assert worker._suitable_server({}) == ()


# --- the work ---


def test_sixteen_bits_on_a_tpu_are_bfloat16():
    usable = [policy.name for policy in mixed_precision.candidates(machine(), "tpu") if policy.usable]
    assert usable == ["float32", "mixed_bfloat16"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_loop_trains_as_on_one_cpu():
    alone: dict[str, Any] = worker.call(tpus.curves, "cpu", timeout=280)
    found: dict[str, Any] = worker.call(tpus.curves, "tpu", timeout=280)
    assert found["calls"] == ["resolver", "initialise", "strategy", "shutdown"]
    assert found["replicas"] == tpus.CORES
    assert found["class"] != "MirroredStrategy"
    assert found["proof"] == tuple(tpus.CPU.format(core) for core in range(tpus.CORES))
    # Sixteen bits: sums over the replicas are rounded in other places, by 2^-9 each.
    for precision, tolerance in (("float32", 1e-5), ("mixed_bfloat16", 5e-3)):
        for numbers in ("loss", "val_loss"):
            np.testing.assert_allclose(
                found[precision][numbers], alone[precision][numbers], rtol=tolerance, err_msg=precision
            )
        for copies in found[precision]["copies"]:
            assert len(copies) == tpus.CORES
            assert copies[0] == copies[1]
    assert found["mixed_bfloat16"]["loss"] != found["float32"]["loss"]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_member_is_trained(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_NAME", "node-1")
    assert not worker.call(lambda: "tensorflow" in sys.modules, timeout=60), "left to the child"
    done = worker.call(tpus.member, str(tmp_path), "grpc://10.0.0.2:8470", timeout=280)
    assert done["calls"] == ["resolver", "connect", "initialise", "strategy", "shutdown"]
    assert (done["device"], done["replicas"]) == ("tpu", tpus.CORES)
    assert [phase["epochs"] for phase in done["phases"]] == [2, 3]
    assert (tmp_path / "done.json").exists()


# --- what a stand-in would not show ---

FORBIDDEN = (
    "PyFunc",
    "Print",
    "Summary",
    "Iterator",
    "Generator",
    "Assert",
    "LogicalDevice",
    "Host",
    "String",
)
"""Parts of the names of ops that a TPU has no kernels for, or that need the host in the midst of a step."""
DYNAMIC = {"Where", "Unique", "UniqueV2", "BooleanMask", "NonMaxSuppressionV5", "DynamicPartition"}
"""Ops whose output's shape depends on values."""


def require_fit_for_a_tpu(graph: dict[str, Any]) -> None:
    assert {"MatMul", "Conv2D"} & set(graph["types"]), "the graph of the cores was looked at"
    assert [kind for kind in graph["types"] if any(word in kind for word in FORBIDDEN)] == []
    assert DYNAMIC.isdisjoint(graph["types"])
    assert graph["unknown shapes"] == []
    assert not {"float64", "float16", "string"} & set(graph["dtypes"])  # float64 is emulated, and slow


@pytest.mark.slow
def test_tensorflows_own_strategy_traces_the_step_and_the_forward_pass():
    found: dict[str, Any] = worker.call(tpus.traced, timeout=200)
    assert found["replicas"] == tpus.CORES
    for part in ("step", "forward"):
        require_fit_for_a_tpu(found[part])
        assert "bfloat16" in found[part]["dtypes"]
    # Of every gradient once by us and once by Keras, of the weights, of the numbers, of each statistic.
    assert found["step"]["sums"] == found["sums"]
    assert found["forward"]["sums"] == 0
    assert found["answers"] == [(8, 1), (8, 1), (8,)]


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("domain", ["stocks", "climate", "xray"])
def test_tensorflows_own_strategy_traces_what_our_domains_train(domain, tmp_path):
    found: list[dict[str, Any]] = worker.call(tpus.domain_traced, domain, str(tmp_path), timeout=280)
    assert found
    for graph in found:
        require_fit_for_a_tpu(graph)
        assert graph["sums"] == graph["expected"]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_whole_step_compiles_by_xla():
    """On a TPU all of it is compiled, the optimizer's update too; one replica can be so on a CPU."""
    found: dict[str, Any] = worker.call(tpus.compiled, timeout=280)
    plain, xla = np.array(found["plain"]), np.array(found["xla"])
    np.testing.assert_allclose(xla, plain, rtol=2e-2)  # bfloat16, and rounded less often by XLA
    assert (xla[:, 1] == 8).all()
    assert not xla[:, 2:].any()


@pytest.mark.parametrize(
    ("given", "name", "meant"),
    [
        ("local", None, "local"),
        ("local", "node-1", "node-1"),
        ("", "node-1", ""),
        ("node-2", "node-1", "node-2"),
    ],
)
def test_the_default_address_follows_tpu_name(monkeypatch, given, name, meant):
    if name is not None:
        monkeypatch.setenv("TPU_NAME", name)
    assert tpu.address_of(given) == meant
