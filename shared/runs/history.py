"""What happened epoch by epoch, and now and then between them, of all folds and members of a run, in one file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shared import files

NAME = "history.jsonl"
STEP = "step"
"""``kind`` of a line that tells of the steps within an epoch; a line of an epoch has no kind."""


def merge(run: Path, trained: Mapping[str, Any]) -> None:
    """Writes the run's history from its members', each line with its fold and seed.

    Args:
        run: The run's folder.
        trained: ``folds`` (names), ``seeds``, and ``members``: for each fold a folder a seed.
    """
    lines = []
    for fold, members in zip(trained["folds"], trained["members"], strict=True):
        for seed, folder in zip(trained["seeds"], members, strict=True):
            for line in (Path(folder) / NAME).read_text().splitlines():
                lines.append(json.dumps({"fold": fold, "member": seed, **json.loads(line)}))
    files.write_text(run / NAME, "\n".join(lines) + "\n")


def of_epochs(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows that tell of an epoch, in order."""
    return [row for row in rows if row.get("kind") != STEP]


def epochs(run: Path) -> Iterator[tuple[str, int, float]]:
    """(metric, epoch, value) of every epoch, as a tracking server shows them; steps stay in the file."""
    rows = [json.loads(text) for text in (run / NAME).read_text().splitlines()]
    for row in of_epochs(rows):
        where = f"{row['fold']}/{row['member']}/{row['phase']}"
        for name, value in row.items():
            if isinstance(value, float):
                yield f"{where}/{name}", row["epoch"], value
