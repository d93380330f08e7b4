"""A run's steps up to its training, without Prefect: ``python training_alone.py DOMAIN LAST [RUN]``.

A program of its own, to be killed. ``LAST`` is ``plan`` or ``train``; ``RUN`` is gone on with.
"""

from __future__ import annotations

import sys

from pipelines import steps
from shared.config import merge
from shared.contract import find

SETTINGS = {
    "plan": {"batch_size": 16, "precision": "float32", "xla": "off"},  # two measured plans may differ
    "train": {"epochs": 8, "patience": 0},
    "run": {"log_steps": 1},  # so that a test sees each step, and kills there
}
TWO_MEMBERS = {"stocks": {"train": {"members": 2}}}


def main(domain: str, last: str, run: str | None = None) -> None:
    given = merge(find(domain).tiny(), merge(SETTINGS, TWO_MEMBERS.get(domain, {})))
    with steps.opened(domain, given, run) as this:
        steps.ingest(this)
        steps.plan(this)
        if last == "train":
            steps.train(this)


if __name__ == "__main__":
    main(*sys.argv[1:])
