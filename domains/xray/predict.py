"""New films in, a worklist out: most urgent first, every film on it, nothing that identifies.

Films stream through in chunks, so memory does not grow with the queue; what is kept of each is a
line of numbers. Films that cannot or must not be scored stand at the end with the reason, because a
film that silently vanishes from a worklist is one that nobody reads.
"""

from __future__ import annotations

import csv
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domains.xray import dicom, labels, synthetic
from domains.xray.config import FilmSection, XrayConfig
from domains.xray.data import FULL
from domains.xray.decision import Decision
from domains.xray.ingest import Loaded, chunks, load
from domains.xray.labels import Listed
from domains.xray.model import assert_range
from domains.xray.privacy import Pseudonyms
from shared import files, progress
from shared.contract import Published, Quarantined, Summary

_BATCH = 32
_DRAWN = 24
_SYNTHETIC = "the model was trained on synthetic films"


@dataclass(frozen=True)
class Scored:
    """One line of the worklist.

    Attributes:
        probabilities: Calibrated, float32 ``[labels]``.
        urgency: How far the most urgent label's log-odds lie above its operating point; from 0 up
            the film is called.
    """

    listed: Listed
    file: str
    key: str
    probabilities: np.ndarray
    called: np.ndarray
    urgency: float
    flags: tuple[str, ...]


def predict(model: Published, source: str, config: XrayConfig, out: Path) -> Summary:
    """See :meth:`shared.contract.Domain.predict`. Films are read as they were in training."""
    if source == "synthetic":
        with tempfile.TemporaryDirectory() as folder:
            drawn = config.synthetic
            # Another seed than training's: films of other patients.
            synthetic.write(
                Path(folder), films=_DRAWN, size=drawn.size, seed=drawn.seed + 1, strength=drawn.strength
            )
            return _predict(model, Path(folder), config, out)
    return _predict(model, Path(source).expanduser(), config, out)


def _predict(model: Published, source: Path, config: XrayConfig, out: Path) -> Summary:
    from shared.runs.predictor import Predictor

    config = as_trained(config, model)
    listed = labels.list_unlabelled(source, config.labels)
    folder = source if source.is_dir() else source.parent
    names = Pseudonyms.of(config.privacy, synthetic=(folder / synthetic.MARK).is_file())
    decision = Decision.from_dict(model.decision)
    predictor = Predictor.load(model.path)
    scored: list[Scored] = []
    quarantine: list[Quarantined] = []
    with dicom.quiet():
        for batch in _read(listed, config):
            good = [one for one in batch if one.small is not None]
            quarantine += [
                Quarantined(names.file(one.listed.number, one.listed.relative), one.reason)
                for one in batch
                if one.small is None
            ]
            if good:
                scored += score(good, predictor, decision, names, config.film.size)
            progress.emit("scoring films", len(scored) + len(quarantine), len(listed))
        scored.sort(key=lambda one: (-one.urgency, one.key, one.listed.number))
        out.mkdir(parents=True, exist_ok=True)
        worklist = out / "worklist.csv"
        _write(worklist, scored, quarantine, decision, model)
        overlays = _overlays(scored[: config.read.overlays], model, decision, config, out)
    return _summary(worklist, scored, quarantine, decision, model, overlays)


def as_trained(config: XrayConfig, model: Published) -> XrayConfig:
    """The configuration with films read as they were in training, whatever it says of them."""
    return config.model_copy(update={"film": FilmSection.model_validate(model.config["film"])})


def _read(listed: Sequence[Listed], config: XrayConfig) -> Iterator[list[Loaded]]:
    with ThreadPoolExecutor(4) as pool:
        for chunk in chunks(listed, _BATCH):
            yield list(pool.map(lambda item: load(item, config), chunk))


def score(
    good: Sequence[Loaded], predictor: Any, decision: Decision, names: Pseudonyms, size: int
) -> Iterator[Scored]:
    """Lines of the worklist for films that were read, in their order.

    Args:
        predictor: Films ``[B, size, size, 1]`` in 0..1 to probabilities ``[B, labels]``.
    """
    batch = np.zeros((len(good), size, size, 1), "float32")
    for place, one in enumerate(good):
        assert one.small is not None
        batch[place, ..., 0] = one.small.astype("float32") / FULL
    assert_range(batch)
    probabilities = decision.probabilities(predictor(batch))
    called = decision.calls(probabilities)
    urgency = urgencies(probabilities, decision).max(axis=1)
    for place, one in enumerate(good):
        film = names.film(one.pixels)
        key = f"{names.patient(one.patient)}/{film}" if one.patient else film
        yield Scored(
            one.listed,
            names.file(one.listed.number, one.listed.relative),
            key,
            probabilities[place],
            called[place],
            float(urgency[place]),
            one.flags,
        )


def urgencies(probabilities: np.ndarray, decision: Decision) -> np.ndarray:
    """How far each label lies above its operating point, in log-odds: float64 ``[n, labels]``.

    Thresholds differ by label: 20% can be alarming for one and nothing for another. A label
    without a threshold counts from one half.
    """
    p = np.clip(probabilities.astype("float64"), 1e-6, 1 - 1e-6)
    t = np.clip(np.where(np.isnan(decision.threshold), 0.5, decision.threshold), 1e-6, 1 - 1e-6)
    return np.log(p / (1 - p)) - np.log(t / (1 - t))


def _write(
    path: Path,
    scored: Sequence[Scored],
    quarantine: Sequence[Quarantined],
    decision: Decision,
    model: Published,
) -> None:
    both = [f"{what} {name}" for name in decision.labels for what in ("probability", "called")]
    header = ["rank", "status", "key", "file", *both, "quality", "reason", "model"]
    label = f"{model.label}; {_SYNTHETIC}" if model.synthetic else model.label
    with files.atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for rank, one in enumerate(scored, start=1):
            cells: list[str] = []
            for p, c in zip(one.probabilities, one.called, strict=True):
                cells += [f"{p:.4f}", "yes" if c else "no"]
            writer.writerow([rank, "scored", one.key, one.file, *cells, "; ".join(one.flags), "", label])
        for item in quarantine:
            empty = [""] * len(both)
            writer.writerow(["", "set aside", "", item.item, *empty, "", item.reason, label])


def _overlays(
    top: Sequence[Scored], model: Published, decision: Decision, config: XrayConfig, out: Path
) -> int:
    """Grad-CAM pictures of the most urgent films, named by rank; the films are read again."""
    if not top:
        return 0
    from domains.xray import explain
    from shared.runs.export import keras_model

    network = keras_model(model.path)
    folder = out / "overlays"
    folder.mkdir(exist_ok=True)
    for rank, one in enumerate(top, start=1):
        again = load(one.listed, config)
        if again.small is None:
            continue
        picture = again.small.astype("float32") / FULL
        label = _leading(one, decision)
        heat = explain.grad_cam(network, picture[None, ..., None], label)[0]
        title = f"{rank}. {one.key}: {decision.labels[label]} {one.probabilities[label]:.0%}"
        explain.overlay(picture, heat, title, folder / f"{rank:03d}.png")
    return len(top)


def _leading(one: Scored, decision: Decision) -> int:
    """The label that makes a film urgent."""
    return int(np.argmax(urgencies(one.probabilities[None], decision)[0]))


def _summary(
    worklist: Path,
    scored: Sequence[Scored],
    quarantine: Sequence[Quarantined],
    decision: Decision,
    model: Published,
    overlays: int,
) -> Summary:
    called = sum(bool(one.called.any()) for one in scored)
    if scored:
        first = scored[0]
        label = _leading(first, decision)
        headline = (
            f"{called} of {len(scored)} films are above an operating point; the most urgent is {first.key} "
            f"({decision.labels[label]} {first.probabilities[label]:.0%})."
        )
    else:
        headline = f"No film could be scored; {len(quarantine)} are set aside with reasons."
    facts: dict[str, Any] = {}
    if model.synthetic:
        facts["beware"] = _SYNTHETIC
    for column, name in enumerate(decision.labels):
        facts[f"called for {name}"] = sum(bool(one.called[column]) for one in scored)
    for flag, count in Counter(flag for one in scored for flag in one.flags).most_common(4):
        facts[f"flag: {flag}"] = count
    if overlays:
        facts["Grad-CAM pictures"] = f"{overlays} in overlays/"
    return Summary(worklist, len(scored), headline, tuple(quarantine), facts)
