"""Warm start: a retraining that begins with the champion's weights instead of new ones.

A champion has seen examples. Where a fold is tested on any of them, or tuned on any that the
champion was trained on, its numbers would praise what was learnt by heart; such a fold starts from
new weights, and says so. Whether an example is fair is asked as in a match with the champion
(``shared/evaluation/champion.py``): by groups, and by time. What a retrained model has seen is what
it was trained on *and* what the champion had seen.

Only the last phase is trained: the earlier ones lead to what the champion already is. Its start
counts as an epoch, and is kept where no epoch is better.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shared import files
from shared.contract import Domain, Fold, Phase
from shared.errors import CasebookError, InputError
from shared.evaluation import champion
from shared.runs.registry import MODEL_CARD
from shared.training import checkpoint

if TYPE_CHECKING:
    import keras

log = logging.getLogger("casebook.training")

WEIGHTS = "weights.npz"
"""In a published member's folder: every variable by path, as training left it. Found by name, so that
a difference is an error; Keras's own loading by layer leaves new what it does not find."""

REMEDY = "Start from new weights: --train.from scratch."


@dataclass(frozen=True)
class Start:
    """Where a member starts.

    Attributes:
        weights: Folder of the published member whose weights it starts with; None: new weights.
        run: The run that made that champion; empty where none was offered.
        why: A sentence: why it starts as it does.
        elsewhere: Folder of the published member that other folds of the run may start with, where this
            one starts with new weights.
    """

    weights: Path | None = None
    run: str = ""
    why: str = "New weights."
    elsewhere: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """``from`` (``"champion"`` or ``"scratch"``), ``run`` and ``why``."""
        return {"from": "scratch" if self.weights is None else "champion", "run": self.run, "why": self.why}

    def taken_over(self, phase: Phase, model: keras.Model) -> Phase:
        """``phase``, refining, after ``model`` got the champion's weights.

        Seed generators stay as they are: what dropout leaves out follows from the member's own seed.

        Raises:
            InputError: The champion is another model (the first difference is named), or cannot be read.
        """
        assert self.weights is not None
        own = [
            (variable, variable.numpy()) for variable in model.variables if "seed_generator" in variable.path
        ]
        self._read(self.weights, model)
        for variable, value in own:
            variable.assign(value)
        settle(model)
        return replace(phase, refines=True)

    def require_likeness(self, model: keras.Model) -> None:
        """Refuses a champion that a later fold could not start from; ``model`` is spoilt by it.

        Raises:
            InputError: As of :meth:`taken_over`.
        """
        assert self.elsewhere is not None
        self._read(self.elsewhere, model)

    def _read(self, weights: Path, model: keras.Model) -> None:
        try:
            checkpoint.read_weights(weights / WEIGHTS, model)
        except CasebookError as error:
            raise InputError(
                f"Training cannot start from the champion (run {self.run}): {error.message}", REMEDY
            ) from error


def decided(
    champion_folder: str | None, domain: Domain, prepared: Path, config: Any, fold: Fold, seed: int
) -> Start:
    """Where the member with ``seed`` starts in ``fold``; told in the log where a champion was offered.

    Args:
        champion_folder: Folder of the published champion; None: none is offered.
        prepared: Data that it would be trained on; its card says whether they are made up.

    Raises:
        InputError: The champion's folder lacks what tells what it has seen.
    """
    if champion_folder is None:
        return Start()
    folder = Path(champion_folder)
    try:
        card = files.read_json(folder / MODEL_CARD)
        run, members, synthetic = str(card["run"]), int(card["members"]), bool(card["synthetic"])
        unfair = seen_in(fold, folder / champion.SEEN)
    except (*checkpoint.UNREADABLE, TypeError) as error:
        raise InputError(f"The champion in {folder} cannot be started from: {error}.", REMEDY) from error
    if synthetic and not _made_up(prepared):
        start = Start(None, run, "The champion was trained on synthetic data, and these are real.")
    elif unfair:
        start = Start(None, run, f"The champion was {unfair}.", elsewhere=folder / "member-0")
    else:
        seeds = domain.members(config)
        number = seeds.index(seed) if seed in seeds[:members] else 0
        start = Start(
            folder / f"member-{number}", run, f"Weights of member {number} of the champion of run {run}."
        )
    log.info("Fold %s, seed %d starts from %s: %s", fold.name, seed, start.to_dict()["from"], start.why)
    return start


def seen_in(fold: Fold, seen: Path) -> str:
    """What of the fold's test and validation a champion knows; empty where the two are fair to it.

    Args:
        seen: The champion's ``seen.npz``.
    """
    found = []
    splits: tuple[tuple[Literal["test", "validation"], str], ...] = (
        ("test", "trained or tuned on"),
        ("validation", "trained on"),
    )
    for split, how in splits:
        count = len(fold.splits[split])
        known = count - len(champion.fair(fold, seen, split))
        if known:
            found.append(f"{how} {known} of the {count} {split} examples")
    return " and ".join(found)


def settle(model: keras.Model) -> None:
    """Lets normalisation layers compute with the statistics that were assigned to them.

    Keras computes with constants that it makes of the variables once, when a layer is adapted or loaded.
    """
    import keras

    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def keep(
    model: Path, members: Sequence[str], reports: Sequence[Mapping[str, Any]], begun: str | None
) -> None:
    """Puts beside a published model what a later training starts from: weights, and all that they have seen.

    Args:
        model: Folder of the export.
        members: Folders that ``train_member`` filled, in the order of the export's.
        reports: What ``train_member`` returned for each.
        begun: Folder of the champion that was offered to them, if any.
    """
    for number, member in enumerate(members):
        with files.atomic(model / f"member-{number}" / WEIGHTS) as temporary:
            shutil.copyfile(Path(member) / WEIGHTS, temporary)
    if begun and any(report.get("started_from", {}).get("from") == "champion" for report in reports):
        champion.add_seen(model, Path(begun) / champion.SEEN)


def _made_up(prepared: Path) -> bool:
    """Whether the prepared data are synthetic, by their card; data without one count as real."""
    try:
        return bool(files.read_json(prepared / "card.json")["synthetic"])
    except (OSError, ValueError, KeyError):
        return False
