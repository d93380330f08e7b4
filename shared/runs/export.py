"""What is published: a float32 rebuild of each member, checked against the trained model.

A mixed-precision model keeps its policy when saved and runs badly elsewhere, so the model is
built again under float32 and given the trained weights (which are float32 anyway). Each
member becomes a SavedModel with the signature ``serve`` and a ``.keras`` file.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shared import files
from shared.contract import Fold, FoldResult, Predictions, Split, find
from shared.errors import CasebookError
from shared.evaluation.champion import write_seen
from shared.evaluation.predictions import read_predictions
from shared.plan import ExecutionPlan
from shared.runs.predictor import Predictor, undamaged
from shared.runs.registry import MODEL_CARD

if TYPE_CHECKING:
    import keras

TOLERANCE = {"float32": 1e-4, "mixed_bfloat16": 5e-2, "mixed_float16": 1e-2}
"""Largest difference between export and trained model, in units of the outputs' spread."""

BATCH = 64


def export(
    domain: str,
    prepared: str,
    config: Mapping[str, Any],
    fold: int,
    members: Sequence[str],
    out: str,
    card: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes the members of ``fold`` as one published model; runs in a child process.

    Args:
        members: Folders that ``train_member`` filled.
        out: Folder to write; it appears whole or not at all.
        card: What ``predict`` must know beside the weights; written as ``casebook.json``.

    Returns:
        ``max_difference`` between the export's outputs and those of the trained model on the
        test split (in units of their standard deviation), ``tolerance``, ``size_bytes``,
        ``parameters`` of one member.

    Raises:
        CasebookError: The export's outputs are off by more than the tolerance.
    """
    import keras

    from shared.training.member import rebuild

    body = find(domain)
    settings = body.Config.model_validate(config)
    where = Path(prepared)
    chosen = body.folds(where, settings)[fold]
    building = Path(out).with_name(f".{Path(out).name}-building")
    shutil.rmtree(building, ignore_errors=True)
    parameters = 0
    difference = 0.0
    tolerance = TOLERANCE["float32"]
    for number, member in enumerate(members):
        keras.utils.clear_session()
        keras.config.set_dtype_policy("float32")
        model = rebuild(body, where, settings, chosen, Path(member))
        parameters = int(model.count_params())
        place = building / f"member-{number}"
        place.mkdir(parents=True)
        model.export(str(place / "saved_model"), verbose=False)
        model.save(place / "model.keras")
        report = files.read_json(Path(member) / "done.json")
        tolerance = max(tolerance, TOLERANCE[report["precision"]])
        trained = read_predictions(Path(member) / "test.npz")
        loaded = Predictor([place / "saved_model"])
        exported = predictions_of(loaded, body, where, settings, chosen, "test")
        difference = max(difference, _difference(exported.values, trained.values))
    # Not: difference > tolerance. NaN must fail, too.
    if not difference <= tolerance:
        raise CasebookError(
            f"The exported model differs from the trained one by {difference:.2g} of its outputs' spread; "
            f"at most {tolerance:.2g} is allowed.",
            "Train in float32 (--plan.precision float32); if that differs too, a layer behaves otherwise "
            "when it is exported.",
        )
    write_seen(building, chosen)
    files.write_json(building / MODEL_CARD, {**card, "members": len(members)})
    size = sum(file.stat().st_size for file in building.rglob("*") if file.is_file())
    shutil.rmtree(out, ignore_errors=True)
    building.rename(out)
    files.sync_folder(Path(out).parent)
    return {
        "max_difference": difference,
        "tolerance": tolerance,
        "size_bytes": size,
        "parameters": parameters,
    }


def explain(
    domain: str, prepared: str, config: Mapping[str, Any], fold: int, model: str, work: str, out: str
) -> list[dict[str, str]]:
    """The domain's figures that need the model; runs in a child process.

    Args:
        work: The run's folder of work, with the mean predictions of each fold.
        out: Folder for the figures.

    Returns:
        ``path`` and ``caption`` of each.
    """
    body = find(domain)
    settings = body.Config.model_validate(config)
    chosen = body.folds(Path(prepared), settings)[fold]
    body.phases(Path(prepared), settings, chosen)  # imports, and so registers, its own Keras classes
    result = FoldResult(
        fold=chosen,
        validation=read_predictions(Path(work) / f"fold-{fold}-validation.npz"),
        test=read_predictions(Path(work) / f"fold-{fold}.npz"),
        baselines={},
    )
    found = body.explain(keras_model(Path(model)), Path(prepared), settings, result, Path(out))
    return [{"path": str(figure.path), "caption": figure.caption} for figure in found]


def keras_model(path: Path) -> keras.Model:
    """The Keras model of the first published member, for what needs gradients (Grad-CAM)."""
    import keras

    with undamaged(Path(path)):
        return keras.models.load_model(Path(path) / "member-0" / "model.keras", safe_mode=True, compile=False)


def predictions_of(
    predictor: Predictor, domain: Any, prepared: Path, config: Any, fold: Fold, split: Split
) -> Predictions:
    """What a published model says of a split's examples, each once, in their order."""
    from shared.input_pipeline import evaluation_batches

    source = domain.examples(prepared, config, fold, split)
    values, truths = [], []
    for x, y, _ in evaluation_batches(source, ExecutionPlan(batch_size=BATCH)):
        values.append(predictor(x))
        truths.append(np.asarray(y, np.float32))
    positions = fold.splits[split]
    groups = None if fold.groups is None else fold.groups[positions]
    # The last batch is padded.
    return Predictions(
        fold.keys[positions],
        np.concatenate(values)[: source.count],
        np.concatenate(truths)[: source.count],
        groups,
    )


def _difference(exported: np.ndarray, trained: np.ndarray) -> float:
    spread = float(np.std(trained)) or 1.0
    return float(np.max(np.abs(exported.astype(np.float64) - trained))) / spread
