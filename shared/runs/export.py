"""What is published: a float32 rebuild of each member, checked against the trained model.

A mixed-precision model keeps its policy when saved and runs badly elsewhere, so the model is
built again under float32 and given the trained weights (which are float32 anyway). Each
member becomes a SavedModel with named signatures (``shared/runs/saved_model.py``) and a
``.keras`` file that loads in Keras's safe mode; small forms come beside them
(``shared/runs/small_forms.py``).
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
from shared.runs import forms, litert, saved_model
from shared.runs.forms import KERAS, PLACES, SAVED_MODEL, Form
from shared.runs.predictor import Predictor, undamaged
from shared.runs.registry import MODEL_CARD

if TYPE_CHECKING:
    import keras

    from shared.runs.yardstick import Yardstick

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
        ``parameters`` of one member, ``recurrent`` (whether the network has recurrent layers), and
        ``forms``: the table of :mod:`shared.runs.forms` with SavedModel and ``.keras``. A
        ``.keras`` that cannot be loaded in safe mode, or says something else, is left out.

    Raises:
        CasebookError: The export's outputs are off by more than the tolerance.
    """
    import keras

    from shared.runs.yardstick import Yardstick, difference

    yardstick = Yardstick(domain, prepared, config, fold, members)
    body, where, settings, chosen = yardstick.domain, yardstick.prepared, yardstick.config, yardstick.fold
    building = Path(out).with_name(f".{Path(out).name}-building")
    shutil.rmtree(building, ignore_errors=True)
    parameters = 0
    worst = 0.0
    tolerance = TOLERANCE["float32"]
    said = []
    for number, member in enumerate(members):
        keras.utils.clear_session()
        keras.config.set_dtype_policy("float32")
        model = yardstick.rebuilt(member)
        parameters = int(model.count_params())
        place = building / f"member-{number}"
        place.mkdir(parents=True)
        saved_model.write(model, place / PLACES[SAVED_MODEL])
        model.save(place / PLACES[KERAS])
        report = files.read_json(Path(member) / "done.json")
        tolerance = max(tolerance, TOLERANCE[report["precision"]])
        loaded = Predictor([place / PLACES[SAVED_MODEL]])
        said.append(predictions_of(loaded, body, where, settings, chosen, "test").values)
        found = difference(said[-1], read_predictions(Path(member) / "test.npz").values)
        worst = max(worst, found) if found == found else found
    # Not: worst > tolerance. NaN must fail, too.
    if not worst <= tolerance:
        raise CasebookError(
            f"The exported model differs from the trained one by {worst:.2g} of its outputs' spread; "
            f"at most {tolerance:.2g} is allowed.",
            "Train in float32 (--plan.precision float32); if that differs too, a layer behaves otherwise "
            "when it is exported.",
        )
    write_seen(building, chosen)
    files.write_json(building / MODEL_CARD, {**card, "members": len(members)})
    mean = np.asarray(np.mean(said, axis=0, dtype=np.float64), np.float32)
    predictor = loaded if len(members) == 1 else Predictor.load(building)
    rows = [
        _saved_model_row(yardstick, predictor, building, mean, tolerance),
        _keras_row(yardstick, building, len(members), tolerance),
    ]
    size = sum(file.stat().st_size for file in building.rglob("*") if file.is_file())
    shutil.rmtree(out, ignore_errors=True)
    building.rename(out)
    files.sync_folder(Path(out).parent)
    return {
        "max_difference": worst,
        "tolerance": tolerance,
        "size_bytes": size,
        "parameters": parameters,
        "recurrent": litert.recurrent(model),
        "forms": forms.table(rows, yardstick.trained, margin=settings.export.margin),
    }


def _saved_model_row(
    yardstick: Yardstick, predictor: Predictor, building: Path, mean: np.ndarray, tolerance: float
) -> Form:
    predictor.warm(yardstick.example())  # latency is that of answering in real time
    places = sorted(building.glob(f"member-*/{PLACES[SAVED_MODEL]}"))
    found = yardstick.measure(predictor, places, values=mean[yardstick.positions])
    return forms.exact(SAVED_MODEL, found, yardstick.trained, tolerance=tolerance)


def _keras_row(yardstick: Yardstick, building: Path, members: int, tolerance: float) -> Form:
    places = [building / f"member-{number}" / PLACES[KERAS] for number in range(members)]
    try:
        found = yardstick.measure(KerasPredictor(places), places)
        row = forms.exact(KERAS, found, yardstick.trained, tolerance=tolerance)
    except Exception as error:  # Keras raises a dozen kinds; a Lambda layer is refused in safe mode
        line = (str(error).strip().splitlines() or [""])[0]
        row = Form(KERAS, published=False, reason=f"{type(error).__name__}: {line[:200]}")
    if not row.published:
        for place in places:
            place.unlink(missing_ok=True)
    return row


class KerasPredictor:
    """The ``.keras`` files of all members, loaded in safe mode; the outputs are their mean.

    Args:
        paths: One file a member. The domain's own layers must have been imported.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        import keras
        import tensorflow as tf

        models = [keras.models.load_model(path, safe_mode=True, compile=False) for path in paths]

        def mean(x: Any) -> Any:
            said = [tf.cast(model(x, training=False), tf.float64) for model in models]
            return tf.cast(tf.add_n(said) / len(said), tf.float32)

        self._run = tf.function(mean, reduce_retracing=True)

    def __call__(self, x: Any) -> np.ndarray:
        """Mean output, float32 ``[B, ...]``, of a batch ``[B, ...]`` (array, or dict or list of them)."""
        import tensorflow as tf

        return np.asarray(self._run(tf.nest.map_structure(tf.convert_to_tensor, x)))


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
        place = Path(path) / "member-0" / PLACES[KERAS]
        return keras.models.load_model(place, safe_mode=True, compile=False)


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
