"""Published members, loaded for prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shared.errors import CasebookError
from shared.runs.registry import damaged


class Predictor:
    """Published members, loaded for prediction; the outputs are their mean.

    Args:
        saved_models: Folders of SavedModels with the signature ``serve``.
    """

    def __init__(self, saved_models: Sequence[Path]) -> None:
        import tensorflow as tf

        if not saved_models:
            raise CasebookError("A published model needs at least one member.")
        # Kept whole: a loaded model whose object is gone loses its variables.
        with undamaged(saved_models[0].parent.parent):
            self._models = [tf.saved_model.load(str(path)) for path in saved_models]

    @classmethod
    def load(cls, path: Path) -> Predictor:
        """The published model in folder ``path``, as ``Published.path`` names it.

        Raises:
            CasebookError: The folder holds no published model.
        """
        members = sorted(Path(path).glob("member-*/saved_model"), key=lambda p: int(p.parent.name[7:]))
        if not members:
            raise CasebookError(f"{path} holds no published model (no member-*/saved_model).")
        return cls(members)

    def __call__(self, x: Any) -> np.ndarray:
        """Mean output of the members for a batch.

        Args:
            x: array ``[B, ...]``, or a dict of them, as the model's inputs are.

        Returns:
            float32 ``[B, ...]``.
        """
        import tensorflow as tf

        given = tf.nest.map_structure(tf.convert_to_tensor, x)
        said = np.stack([np.asarray(model.serve(given), np.float64) for model in self._models])
        return np.asarray(said.mean(axis=0), np.float32)


@contextmanager
def undamaged(model: Path) -> Iterator[None]:
    """What cannot be loaded of a published model is told as what it is: a damaged file."""
    try:
        yield
    except CasebookError:
        raise
    except Exception as error:  # TensorFlow, protobuf, zipfile and Keras raise a dozen kinds
        raise damaged(model, error) from error
