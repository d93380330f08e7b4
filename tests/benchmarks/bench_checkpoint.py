"""What a checkpoint costs: seconds beside an epoch's, bytes on disk, and the same against two peers.

Run by ``make bench``; asserts nothing. A ratio above 1 says that ours is faster. Ours is what the
loop does after an epoch: a copy of every variable of model and Adam, written beside, synced and
renamed; loading reads it and sets the variables. The peers are ``tf.train.Checkpoint`` of model and
optimizer, and ``save_weights`` of a compiled model, which takes the optimizer along (neither knows
the seed generators of dropout). They do not wait for the disk by themselves; here their files are
synced too, so that all promise the same. An epoch has 20 steps, on a batch in memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
import turns
from networks import CNN, EFFICIENTNET, LSTM, Network
from turns import Seconds

from shared import files, input_pipeline
from shared.contract import Source
from shared.plan import ExecutionPlan
from shared.training.checkpoint import Checkpoints
from shared.training.monitor import Monitor
from shared.training.state import State, put_back
from shared.training.step import Stepper, make_stepper, seconds_per_step

STEPS = 20


@dataclass(frozen=True)
class Way:
    """A way to keep model and optimizer in ``folder``, and to take them back."""

    folder: Path
    save: Callable[[], object]
    load: Callable[[], object]

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir())


def main() -> None:
    short = turns.quick(__doc__)
    repeats, times = (1, 1) if short else (turns.REPEATS, 5)
    print(f"seconds of a checkpoint over ours, median of {repeats} turns (lowest to highest)")
    for network in (LSTM, CNN) if short else (LSTM, CNN, EFFICIENTNET):
        with tempfile.TemporaryDirectory() as folder:
            measure(network, Path(folder), repeats, times)


def measure(network: Network, folder: Path, repeats: int, times: int) -> None:
    keras.utils.clear_session()
    model = network.build()
    x, y = network.examples(network.batch)
    plan = ExecutionPlan(batch_size=network.batch)
    stepper = make_stepper(model, network.loss, plan, rate=1e-3)
    source = Source(network.batch, dataset=tf.data.Dataset.from_tensor_slices((x, y)))
    epoch = STEPS * seconds_per_step(stepper, input_pipeline.one_batch(source, plan), 2, calls=3)
    ways = {
        "ours": ours(stepper, folder / "ours"),
        "tf.train.Checkpoint": tensorflows(stepper, folder / "tf"),
        "save_weights": keras_own(stepper, folder / "keras"),
    }
    saves = turns.in_turns(
        {name: lambda way=way: repeated(way.save, times) for name, way in ways.items()}, repeats
    )
    loads = turns.in_turns(
        {name: lambda way=way: repeated(way.load, times) for name, way in ways.items()}, repeats
    )
    print(
        f"{network.title}, batch {network.batch}: {model.count_params():,} parameters, an epoch {epoch:.2f} s"
    )
    for name, way in ways.items():
        save, load = (turns.median(found[name]).clock for found in (saves, loads))
        print(
            f"  {name:20} save {save * 1000:6.1f} ms, {save / epoch:6.2%} of an epoch; "
            f"load {load * 1000:6.1f} ms; {way.bytes / 1e6:.2f} MB"
        )
        if name != "ours":
            save_ratio, load_ratio = (
                turns.ratio([s.clock for s in found[name]], [s.clock for s in found["ours"]])
                for found in (saves, loads)
            )
            print(f"  {'':20} over ours: save {save_ratio}, load {load_ratio}")


def repeated(work: Callable[[], object], times: int) -> Seconds:
    return turns.median([turns.took(work) for _ in range(times)])


def ours(stepper: Stepper, folder: Path) -> Way:
    kept, state = Checkpoints(folder, "phase", keep=1), State(Monitor("loss", "min", 0))
    fixed: dict[str, Any] = {"batch_size": 32, "steps": STEPS, "seed": 0, "determinism": {}}

    def load() -> None:
        found = kept.newest()
        assert found is not None
        put_back(found, stepper.model, stepper.optimizer)

    return Way(folder, lambda: kept.save(state.moment(stepper.model, stepper.optimizer, **fixed)), load)


def tensorflows(stepper: Stepper, folder: Path) -> Way:
    checkpoint = tf.train.Checkpoint(model=stepper.model, optimizer=stepper.optimizer)
    path = str(folder / "checkpoint")
    folder.mkdir()

    def save() -> None:
        checkpoint.write(path)
        sync(folder)

    return Way(folder, save, lambda: checkpoint.read(path).assert_existing_objects_matched())


def keras_own(stepper: Stepper, folder: Path) -> Way:
    path = folder / "model.weights.h5"
    folder.mkdir()
    stepper.model.compile(stepper.optimizer, stepper.loss)

    def save() -> None:
        stepper.model.save_weights(path)
        sync(folder)

    return Way(folder, save, lambda: stepper.model.load_weights(path))


def sync(folder: Path) -> None:
    """Waits until the disk has the files."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    files.sync_folder(folder)


if __name__ == "__main__":
    main()
