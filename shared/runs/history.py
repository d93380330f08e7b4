"""What happened epoch by epoch, of all folds and members of a run, in one file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shared import files

NAME = "history.jsonl"


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


def epochs(run: Path) -> Iterator[tuple[str, int, float]]:
    """(metric, epoch, value) of every epoch, as a tracking server shows them."""
    for text in (run / NAME).read_text().splitlines():
        line = json.loads(text)
        where = f"{line['fold']}/{line['member']}/{line['phase']}"
        for name, value in line.items():
            if isinstance(value, float):
                yield f"{where}/{name}", line["epoch"], value
