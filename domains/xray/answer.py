"""One film in, its findings out, for those who cannot wait for a worklist.

A film goes the way of one in a queue, so it gets the same answer. Nothing that identifies comes
back: not the path, which may hold a name, and not what the header says of the patient.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from domains.xray import dicom
from domains.xray.config import XrayConfig
from domains.xray.decision import Decision
from domains.xray.ingest import Loaded, load
from domains.xray.labels import Listed
from domains.xray.predict import as_trained, score
from domains.xray.privacy import Pseudonyms
from shared.contract import Answerer, Published
from shared.errors import InputError

LINE = '{"id": 1, "path": "films/0001.dcm"} or {"id": 1, "film": "a DICOM, PNG or JPEG file in base64"}'


def answerer(model: Published, config: XrayConfig) -> Answerer:
    """See :meth:`shared.contract.Domain.answerer`. Films are read as they were in training."""
    from shared.runs.predictor import Predictor

    config = as_trained(config, model)
    names = Pseudonyms.of(config.privacy)
    decision = Decision.from_dict(model.decision)
    predictor = Predictor.load(model.path, warm=True)

    def answer(line: Mapping[str, Any]) -> dict[str, Any]:
        with dicom.quiet():
            loaded = _loaded(line, config)
        if loaded.small is None:
            raise InputError(
                f"The film is set aside: {loaded.reason}.", "Send a chest film as DICOM, PNG or JPEG."
            )
        (one,) = score([loaded], predictor, decision, names, config.film.size)
        return {
            "film": names.film(loaded.pixels),
            "above_operating_point": bool(one.called.any()),
            "findings": {
                name: {"probability": round(float(p), 6), "above_operating_point": bool(called)}
                for name, p, called in zip(decision.labels, one.probabilities, one.called, strict=True)
            },
            "quality": list(one.flags),
        }

    return Answerer(answer, LINE)


def _loaded(line: Mapping[str, Any], config: XrayConfig) -> Loaded:
    """The film of a line, read and shrunk, or the reason why not.

    Raises:
        InputError: The line names no film, or two.
    """
    path, film = line.get("path"), line.get("film")
    if isinstance(path, str) and film is None:
        try:
            return load(_listed(Path(path).expanduser()), config)
        except (OSError, RuntimeError, ValueError) as error:  # an error of the system names the path
            raise InputError(
                f"The file cannot be read ({type(error).__name__}).",
                "Check the path and the right to read it.",
            ) from None
    if not isinstance(film, str) or path is not None:
        raise InputError('A line needs either "path" or "film", as text.', f"A line looks like this: {LINE}")
    try:
        content = base64.b64decode(film, validate=True)
    except ValueError:
        raise InputError('"film" is not base64.', "Encode the whole file in base64, on one line.") from None
    # The readers take files; this one is seen by nobody else and is gone before the answer.
    with tempfile.TemporaryDirectory(prefix="casebook-film-") as folder:
        file = Path(folder) / f"film{_suffix(content)}"
        file.write_bytes(content)
        return load(_listed(file), config)


def _listed(path: Path) -> Listed:
    return Listed(1, path, "", "", np.zeros(0, "float32"))


def _suffix(content: bytes) -> str:
    """What the file would have been called, by its first bytes."""
    if content.startswith(b"\x89PNG"):
        return ".png"
    return ".jpg" if content.startswith(b"\xff\xd8") else ".dcm"
