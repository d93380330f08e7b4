"""The pruned form: members pruned and fine-tuned, each in a child, then judged as one in another."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared import accelerator, contract, files
from shared.config import AcceleratorSection
from shared.machine import machine
from shared.plan import ExecutionPlan
from shared.runs import pruning
from shared.runs.forms import PLACES, PRUNED

if TYPE_CHECKING:
    import keras


def prune_member(
    domain: str,
    prepared: str,
    config: Mapping[str, Any],
    fold: int,
    member: str,
    plan: Mapping[str, Any],
    folder: str,
) -> dict[str, Any]:
    """Prunes a trained member by ``config.export``; runs in a child process.

    Args:
        member: Folder that ``train_member`` filled.
        folder: Gets ``weights.npz`` and ``done.json``, so that it can be rebuilt as a member's can.

    Returns:
        As :func:`shared.runs.pruning.fine_tune`.
    """
    from shared import input_pipeline, mixed_precision
    from shared.training import checkpoint
    from shared.training.member import rebuild

    body = contract.find(domain)
    settings = body.Config.model_validate(dict(config))
    section, execution = _alone(settings.accelerator, ExecutionPlan.from_dict(plan))
    where, home = Path(prepared), Path(folder)
    chosen = body.folds(where, settings)[fold]
    done = files.read_json(Path(member) / "done.json")
    with accelerator.opened(section, plan=execution) as device:
        mixed_precision.apply(execution.precision)
        phase = list(body.phases(where, settings, chosen))[-1]
        with device.strategy.scope():
            model = rebuild(body, where, settings, chosen, Path(member))
        train, validation = (
            input_pipeline.cached(
                phase.source(split) if phase.source else body.examples(where, settings, chosen, split),
                execution,
            )
            for split in ("train", "validation")
        )
        found = pruning.fine_tune(
            device.strategy,
            model,
            phase,
            train,
            validation,
            execution,
            settings.train,
            share=settings.export.prune,
            epochs=settings.export.prune_epochs,
            seed=int(done["seed"]),
            label=f"{chosen.name} · pruning",
        )
        checkpoint.write_weights(home / "weights.npz", model)
    files.write_json(home / "done.json", {"seed": done["seed"], "precision": done["precision"], **found})
    return found


def _alone(section: AcceleratorSection, plan: ExecutionPlan) -> tuple[AcceleratorSection, ExecutionPlan]:
    """Several workers train; one of them fine-tunes, on its own device."""
    if plan.device != "workers":
        return section, plan
    device = "gpu" if machine().gpus else "cpu"
    return (
        section.model_copy(update={"device": device, "workers": 1, "logical_cpus": 1}),
        replace(plan, device=device, replicas=1),
    )


def judge(
    domain: str,
    prepared: str,
    config: Mapping[str, Any],
    fold: int,
    members: Sequence[str],
    pruned: Sequence[str],
    work: str,
) -> dict[str, Any]:
    """Writes pruned members as compressed ``.keras`` files and measures them; runs in a child process.

    Args:
        members: Folders that ``train_member`` filled.
        pruned: Folders that :func:`prune_member` filled.
        work: Gets ``member-<number>/pruned.keras``.

    Returns:
        The measurement with a ``note``.
    """
    import keras

    from shared.runs.export import KerasPredictor
    from shared.runs.yardstick import Yardstick

    yardstick = Yardstick(domain, prepared, config, fold, members)
    paths, found, count = [], 0, 0
    for number, folder in enumerate(pruned):
        keras.utils.clear_session()
        keras.config.set_dtype_policy("float32")
        model = yardstick.rebuilt(folder)
        path = Path(work) / f"member-{number}" / PLACES[PRUNED]
        write_compressed(model, path)
        paths.append(path)
        more = pruning.zeros(model)
        found, count = found + more[0], count + more[1]
    measured = yardstick.measure(KerasPredictor(paths), paths)
    note = f"{found:,} of {count:,} weights are zero; what that is worth is the compressed size"
    return {**measured, "note": note}


def write_compressed(model: keras.Model, path: Path) -> None:
    """Writes a ``.keras`` file whose parts are deflated; Keras itself stores them as they are."""
    with files.atomic(path) as temporary:
        stored = temporary.with_name(f"{temporary.stem}-stored.keras")
        try:
            model.save(stored)
            with (
                zipfile.ZipFile(stored) as source,
                zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as target,
            ):
                for item in source.infolist():
                    target.writestr(item.filename, source.read(item), zipfile.ZIP_DEFLATED, 9)
        finally:
            stored.unlink(missing_ok=True)
