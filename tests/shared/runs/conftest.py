"""The domain of ``networks.py``, installed where children find it, and one trained member of each kind."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared import contract, worker
from shared.plan import ExecutionPlan
from shared.training import member

PLAN = ExecutionPlan(batch_size=16)


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The domain ``networks`` is registered by an entry point, here and in children."""
    site = tmp_path_factory.mktemp("site")
    (site / "casebook_networks.py").write_text(Path(__file__).with_name("networks.py").read_text())
    about = site / "casebook_networks-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: casebook-networks\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[casebook]\nnetworks = casebook_networks:domain\n")
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    contract._registered.cache_clear()
    yield
    sys.path.remove(str(site))
    contract._registered.cache_clear()


Trained = Callable[..., tuple[str, dict[str, Any], list[str]]]


@pytest.fixture(scope="session")
def trained(networks: None, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trains members of a network, once: ``trained(kind, members=1)`` gives prepared, config, folders."""
    made: dict[Any, tuple[str, dict[str, Any], list[str]]] = {}
    place = tmp_path_factory.mktemp("trained")

    def train(kind: str, members: int = 1) -> tuple[str, dict[str, Any], list[str]]:
        if (kind, members) not in made:
            config = {"network": kind, "accelerator": {"device": "cpu"}}
            folders = [str(place / f"{kind}-{members}-{seed}") for seed in range(members)]
            for seed, folder in enumerate(folders):
                worker.call(
                    member.train_member, "networks", str(place), config, 0, seed, PLAN.to_dict(), folder
                )
            made[kind, members] = (str(place), config, folders)
        return made[kind, members]

    return train
