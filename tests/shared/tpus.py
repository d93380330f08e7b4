"""Stand-ins for TensorFlow's TPU calls, which write down when each is called. There is no TPU here.

The strategy is one of TensorFlow's own, mirrored over two logical CPUs, under another class: what asks
for ``MirroredStrategy``, for a GPU or a CPU, finds none. Imported by the children of ``test_tpu.py``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from shared import accelerator, lock
from shared.config import AcceleratorSection
from shared.plan import ExecutionPlan

CORES = 2
CPU = "/job:localhost/replica:0/task:0/device:CPU:{}"
TPU = "/job:localhost/replica:0/task:0/device:TPU:{}"


@dataclass
class FakeTpu:
    """Replaces TensorFlow's five calls.

    Attributes:
        master: What the resolver finds; default: its address, and "" for a TPU of this machine.
        fails: What the call of a name raises.
        strategy: Made of the resolver.
        calls: Names of those made, in order.
    """

    strategy: Callable[[Any], Any]
    master: str | None = None
    fails: Mapping[str, BaseException] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    def install(self, put: Callable[[Any, str, Any], None] = setattr) -> FakeTpu:
        put(tf.distribute.cluster_resolver, "TPUClusterResolver", self._resolver)
        put(tf.config, "experimental_connect_to_cluster", lambda resolver: self.call("connect"))
        put(tf.tpu.experimental, "initialize_tpu_system", lambda resolver: self.call("initialise"))
        put(tf.tpu.experimental, "shutdown_tpu_system", lambda resolver: self.call("shutdown"))
        put(tf.distribute, "TPUStrategy", self._strategy)
        return self

    def _resolver(self, tpu: str) -> Any:
        self.call("resolver")
        found = self.master if self.master is not None else "" if tpu == "local" else tpu
        return SimpleNamespace(master=lambda: found)

    def _strategy(self, resolver: Any) -> Any:
        self.call("strategy")
        return self.strategy(resolver)


def bare(resolver: Any) -> Any:
    """No more of a strategy than opening a device needs; its core is the CPU."""
    extended = SimpleNamespace(worker_devices=(CPU.format(0),))
    return SimpleNamespace(num_replicas_in_sync=1, extended=extended, cluster_resolver=resolver)


def mirrored(resolver: Any) -> Any:
    """A strategy over two logical CPUs that is no ``MirroredStrategy``. In a fresh process."""
    from tensorflow.python.distribute.mirrored_strategy import MirroredExtended

    class Strategy(tf.distribute.Strategy):
        cluster_resolver = resolver
        _collective_key_base = 0  # what MirroredExtended reads of its strategy

        def __init__(self) -> None:
            super().__init__(MirroredExtended(self, devices=[f"CPU:{core}" for core in range(CORES)]))

    split_the_cpu()
    return Strategy()


def split_the_cpu() -> None:
    tf.config.threading.set_inter_op_parallelism_threads(4 * CORES)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * CORES)


# --- what is done in children -----------------------------------------------------------------


def curves(device: str) -> dict[str, Any]:
    """The same training in float32 and in bfloat16, and what was called. ``device``: "cpu" or "tpu"."""
    from shared import mixed_precision
    from tests.shared.training import strategies

    fake = FakeTpu(mirrored).install()
    found: dict[str, Any] = {}
    with lock.lent(), accelerator.opened(AcceleratorSection.model_validate({"device": device})) as opened:
        found |= {"replicas": opened.replicas, "proof": opened.proof, "class": type(opened.strategy).__name__}
        for precision in ("float32", "mixed_bfloat16"):
            plan = ExecutionPlan(
                device=device,
                replicas=opened.replicas,
                batch_size=strategies.BATCH,
                steps_per_call=2,
                precision=precision,
            )
            mixed_precision.apply(precision)
            found[precision] = strategies._curve(opened.strategy, plan, strategies._plain)
    return {**found, "calls": fake.calls}


def member(folder: str, address: str) -> dict[str, Any]:
    """A member of two phases, trained as a run does it, and what was called."""
    from shared.training.member import train_member
    from tests.shared.training import two_phases

    two_phases.register()
    fake = FakeTpu(mirrored).install()
    plan = ExecutionPlan(device="tpu", replicas=CORES, batch_size=8, steps_per_call=2)
    settings = {"accelerator": {"device": "tpu", "tpu_address": address}}
    done = train_member("two-phases", ".", settings, 0, 7, plan.to_dict(), folder)
    return {**done, "calls": fake.calls}


def hangs() -> None:
    """An initialisation without an end (tensorflow#34564)."""

    def initialise(resolver: Any) -> None:
        logging.getLogger("casebook.accelerator").warning("initialising")
        time.sleep(3600)

    FakeTpu(bare).install()
    tf.tpu.experimental.initialize_tpu_system = initialise
    with lock.lent(), accelerator.opened(AcceleratorSection.model_validate({"device": "tpu"})):
        pass


# --- TensorFlow's own strategy, up to the graph -----------------------------------------------


def own_strategy() -> Any:
    """``tf.distribute.TPUStrategy`` itself, told of two cores that do not exist: it traces, and cannot run.

    Its variables land on the CPU, where eager TensorFlow puts what it has no device for.
    """
    from tensorflow.python.tpu.tpu_system_metadata import TPUSystemMetadata

    class Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):  # type: ignore[misc, name-defined]
        def get_tpu_system_metadata(self) -> Any:
            cores = [SimpleNamespace(name=TPU.format(core)) for core in range(CORES)]
            return TPUSystemMetadata(
                num_cores=CORES, num_hosts=1, num_of_cores_per_host=CORES, topology=None, devices=cores
            )

    return tf.distribute.TPUStrategy(Resolver("local"))


def network(dropout: float) -> Any:
    """Of what our domains' models have: normalisation, dropout, recurrence, convolution."""
    import keras

    return keras.Sequential(
        [
            keras.layers.Input((8, 4)),
            keras.layers.Conv1D(6, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.LSTM(5),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
        ]
    )


def stepper(strategy: Any, dropout: float = 0.2) -> Any:
    import keras

    from shared import mixed_precision
    from shared.training.step import make_stepper

    keras.utils.set_random_seed(1)
    mixed_precision.apply("mixed_bfloat16")
    with strategy.scope():
        model = network(dropout)
    plan = ExecutionPlan(
        device="tpu",
        replicas=strategy.num_replicas_in_sync,
        batch_size=8,
        precision="mixed_bfloat16",
        accumulation=2,
    )
    return make_stepper(model, keras.losses.binary_crossentropy, plan, rate=0.01, strategy=strategy)


def batches() -> tf.data.Dataset:
    x = np.random.default_rng(0).normal(size=(8, 8, 4)).astype(np.float32)
    y = (x[:, 0, :1] > 0).astype(np.float32)
    return tf.data.Dataset.from_tensors((x, y, np.ones(8, np.float32))).repeat()


def traced() -> dict[str, Any]:
    """The graph of our step and of our forward pass, as a TPU would get them."""
    from shared.training.predict import Forward

    strategy = own_strategy()
    ours = stepper(strategy)
    iterator = ours.iterate(batches())
    steps = ours._steps.get_concrete_function(iterator, tf.constant(3), tf.constant(0.0))
    forward = Forward(ours.model, strategy=strategy)._run.get_concrete_function(*next(iterator))
    gradients = len(ours.model.trainable_variables)
    return {
        "replicas": strategy.num_replicas_in_sync,
        "sums": 2 * gradients + 2 + len(ours._statistics),
        "step": described(steps.graph),
        "forward": described(forward.graph),
        "answers": [tuple(part.shape) for part in forward.structured_outputs],
    }


def domain_traced(name: str, folder: str) -> list[dict[str, Any]]:
    """The same of every phase of a domain, on its sample; with how many sums over cores are to be expected."""
    from shared import contract, input_pipeline, mixed_precision
    from shared.training.predict import Forward
    from shared.training.step import make_stepper

    domain, prepared = contract.find(name), Path(folder)
    config = domain.Config()
    domain.ingest(Path("data/samples") / name, config, prepared)
    fold = domain.folds(prepared, config)[-1]
    strategy = own_strategy()
    mixed_precision.apply("mixed_bfloat16")
    model: Any = None
    found = []
    for phase in domain.phases(prepared, config, fold):
        with strategy.scope():
            model = phase.build(model)
        source = phase.source("train") if phase.source else domain.examples(prepared, config, fold, "train")
        plan = ExecutionPlan(device="tpu", replicas=CORES, batch_size=8, precision="mixed_bfloat16")
        ours = make_stepper(model, phase.loss, plan, rate=0.01, strategy=strategy)
        training = ours.iterate(input_pipeline.training_batches(source, plan, seed=0, epoch=0))
        steps = ours._steps.get_concrete_function(training, tf.constant(2), tf.constant(0.0))
        evaluation = next(ours.iterate(input_pipeline.evaluation_batches(source, plan)))
        forward = Forward(model, strategy=strategy)._run.get_concrete_function(*evaluation)
        sums = 2 * len(model.trainable_variables) + 2 + len(ours._statistics)
        found += [described(steps.graph) | {"expected": sums}, described(forward.graph) | {"expected": 0}]
    return found


def compiled() -> dict[str, list[float]]:
    """What a step of one replica comes to, left to TensorFlow and wholly compiled by XLA, as a TPU does it."""
    found = {}
    for name, xla in (("plain", None), ("xla", True)):
        ours = stepper(tf.distribute.get_strategy(), dropout=0.0)  # XLA draws other masks
        step = tf.function(ours._replica_step, jit_compile=xla)
        arguments = (*next(iter(batches())), tf.constant(0.0))
        found[name] = [step(*arguments).numpy().tolist() for _ in range(3)]
    return found


def described(graph: Any) -> dict[str, Any]:
    """What a TPU gets of a graph and of the functions that it calls; plain data."""
    ops = [op for one in _graphs(graph) for op in one.get_operations()]
    cores = [op for op in ops if _on_cores(op)]
    return {
        "types": sorted({op.type for op in cores}),
        "sums": sum(op.type == "CrossReplicaSum" for op in cores),
        "dtypes": sorted({out.dtype.name for op in cores for out in op.outputs}),
        "unknown shapes": [
            f"{op.type} {op.name} {out.shape}"
            for op in cores
            for out in op.outputs
            if not out.shape.is_fully_defined()
        ],
    }


def _graphs(graph: Any) -> list[Any]:
    inner = [function.graph for function in graph._functions.values() if hasattr(function, "graph")]
    return [graph, *inner]


def _on_cores(op: Any) -> bool:
    try:
        return bool(op.get_attr("_tpu_replicate"))
    except ValueError:
        return False
