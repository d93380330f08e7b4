"""Which map is for training, validation and test: by scenario and year, without leaking.

Scenario runs share their history: A1B and E1 are bit-identical until 1999. A split by scenario
alone would train and test on the same maps, so that the protocols below begin after the parting,
and the shared guards compare every input's hash across the splits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from domains.climate import moments
from domains.climate.config import ClimateConfig
from domains.climate.data import Examples, Prepared, numbered
from shared.contract import SPLITS, Fold, Split
from shared.errors import InputError

_YEARS = re.compile(r"^(?:(\d{1,4})?-(\d{1,4})?|(\d{1,4}))$")

PROTOCOLS: dict[str, dict[str, dict[Split, tuple[str, ...]]]] = {
    # A1B and E1 are bit-identical until 1999: E1 may be used from 2000 on only, and a forecast
    # with ten years of history from 2010 on only. Validation in the test's scenario, before the
    # test begins, leaves all of A1B to train on; where that isn't clean, the end of A1B serves.
    "iris": {
        "downscaling": {"train": ("A1B",), "validation": ("E1 2000-2009",), "test": ("E1 2010-",)},
        "forecast": {"train": ("A1B -2069",), "validation": ("A1B 2070-",), "test": ("E1 2010-",)},
    },
    # The same story in small: see synthetic.py.
    "synthetic": {
        "downscaling": {"train": ("high",), "validation": ("low 1950-1959",), "test": ("low 1960-",)},
        "forecast": {"train": ("high -1984",), "validation": ("high 1985-",), "test": ("low 1960-",)},
    },
}


def fold(data: Prepared, config: ClimateConfig) -> Fold:
    """The one fold: by the person's selection, the source's protocol, or a cut in time.

    Raises:
        InputError: An empty split, or one map selected for two splits.
    """
    examples = numbered(data, config)
    selection, how = _selection(data, config)
    if selection is None:
        part = _cut(moments.dates(data.parts))
    else:
        part = _selected(data, selection)
    of_example = part[examples.target]
    splits = {name: np.flatnonzero(of_example == number) for number, name in enumerate(SPLITS)}
    splits["train"], purged = _purge(examples, splits)
    for name, positions in splits.items():
        if len(positions) == 0:
            raise InputError(
                f"The {name} split is empty ({how}).",
                f"Select scenarios and years with split.{name}; there are {_extent(data)}.",
            )
    scenarios = {name: set(data.scenario[examples.target[rows]].tolist()) for name, rows in splits.items()}
    # Dates are compared where the split is one in time. Where the test is a scenario of its own,
    # train may look at the same years: they are another simulation.
    in_time = scenarios["train"] <= scenarios["test"]
    at = moments.dates(data.parts[examples.target])
    grid = data.grid.cropped(config.downscaling.factor) if config.task == "downscaling" else data.grid
    return Fold(
        name=how,
        splits=splits,
        keys=examples.keys,
        groups=_groups(data, examples, splits),
        spans=np.stack([at, at], axis=1) if in_time else None,
        about={
            **{name: _described(data, examples.target[rows]) for name, rows in splits.items()},
            **({"windows left out of train": f"{purged}, which look at held-out years"} if purged else {}),
            "task": config.task,
            "variable": data.meta["variable"],
            "standard_name": data.meta["standard_name"],
            "unit": data.meta["unit"],
            "step": str(data.frequency),
            "lowest in training": float(np.nanmin(data.fields[examples.target[splits["train"]]])),
            "highest in training": float(np.nanmax(data.fields[examples.target[splits["train"]]])),
            "grid": grid.to_dict(),
        },
    )


def selected_rows(data: Prepared, selectors: Sequence[str], what: str) -> np.ndarray:
    """Which maps the selectors name, bool ``[n]``.

    Args:
        selectors: ``"A1B"``, ``"A1B 1860-1999"``, ``"E1 2010-"``, ``"E1 -2009"``, ``"E1 2010"``; years inclusive.
        what: Setting's name for messages.

    Raises:
        InputError: Unknown scenario, or nothing selected.
    """
    chosen = np.zeros(len(data.scenario), bool)
    for text in selectors:
        name, _, tail = text.strip().rpartition(" ")
        years = _YEARS.match(tail) if name else None
        if text.strip() in data.scenarios or years is None:
            name, first, last = text.strip(), None, None
        else:
            first, last = (years[3], years[3]) if years[3] else (years[1], years[2])
        if name not in data.scenarios:
            raise InputError(
                f"{what} names the scenario {name!r}, which the data don't have.",
                f'There are {_extent(data)}. Write e.g. "{data.scenarios[0]} 1990-2009".',
            )
        rows = data.scenario == data.scenarios.index(name)
        rows &= data.parts[:, 0] >= (int(first) if first else -9999)
        rows &= data.parts[:, 0] <= (int(last) if last else 99999)
        if not rows.any():
            raise InputError(f"{what}: {text!r} selects no map.", f"There are {_extent(data)}.")
        chosen |= rows
    return chosen


def _selection(data: Prepared, config: ClimateConfig) -> tuple[dict[Split, tuple[str, ...]] | None, str]:
    own: dict[Split, tuple[str, ...]] = {name: getattr(config.split, name) for name in SPLITS}
    if any(own.values()):
        return own, "as configured"
    protocol = PROTOCOLS.get(data.meta["protocol"], {}).get(config.task)
    if protocol is not None:
        return protocol, f"protocol of {data.meta['protocol']}"
    return None, "cut in time, 70/15/15"


def _selected(data: Prepared, selection: dict[Split, tuple[str, ...]]) -> np.ndarray:
    part = np.full(len(data.scenario), -1)
    for number, name in enumerate(SPLITS):
        rows = selected_rows(data, selection[name], f"split.{name}")
        twice = np.flatnonzero(rows & (part >= 0))
        if len(twice):
            raise InputError(
                f"{data.labels()[twice[0]]} is selected for {SPLITS[part[twice[0]]]} and for {name}.",
                "Give every scenario and year to one split only.",
            )
        part[rows] = number
    return part


def _cut(at: np.ndarray) -> np.ndarray:
    """0, 1, 2 for train, validation, test: the same dates in every scenario, at whole years where there are ten."""
    years = at.astype("datetime64[Y]")
    unit = years if len(np.unique(years)) >= 10 else at
    distinct = np.unique(unit)
    if len(distinct) < 3:
        return np.zeros(len(at), np.int64)
    first = min(max(1, round(0.7 * len(distinct))), len(distinct) - 2)
    second = min(max(first + 1, round(0.85 * len(distinct))), len(distinct) - 1)
    return np.searchsorted(distinct[[first, second]], unit, side="right")


def _purge(examples: Examples, splits: dict[Split, np.ndarray]) -> tuple[np.ndarray, int]:
    """Train without the windows whose history holds a map that is to be predicted elsewhere."""
    if examples.history == 1:
        return splits["train"], 0
    held_out = np.zeros(int(examples.target.max()) + 2, np.int64)
    for name in ("validation", "test"):
        held_out[examples.target[splits[name]] + 1] = 1
    before = np.cumsum(held_out)
    start = examples.start[splits["train"]]
    clean = before[start + examples.history] == before[start]
    return splits["train"][clean], int((~clean).sum())


def _groups(data: Prepared, examples: Examples, splits: dict[Split, np.ndarray]) -> np.ndarray:
    """Scenario and year; or each example its own, where a year is divided between splits."""
    years = np.array(
        [f"{data.scenarios[data.scenario[row]]}/{data.parts[row, 0]:04d}" for row in examples.target]
    )
    sets = [set(years[positions]) for positions in splits.values()]
    whole = sum(len(one) for one in sets) == len(set().union(*sets))
    return years if whole else examples.keys


def _described(data: Prepared, rows: np.ndarray) -> str:
    texts = []
    for number in dict.fromkeys(data.scenario[rows].tolist()):
        mine = rows[data.scenario[rows] == number]
        names = moments.labels(data.parts[mine[[0, -1]]], data.frequency)
        texts.append(f"{data.scenarios[number]} {names[0]} to {names[1]} ({len(mine)})")
    return ", ".join(texts) or "nothing"


def _extent(data: Prepared) -> str:
    return ", ".join(
        f"{name} {data.parts[data.scenario == number, 0].min()}-{data.parts[data.scenario == number, 0].max()}"
        for number, name in enumerate(data.scenarios)
    )
