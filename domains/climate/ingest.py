"""From files to prepared data: scenarios put together, checked against each other, counted."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domains.climate import loader, moments
from domains.climate.config import ClimateConfig
from domains.climate.data import Prepared, numbered
from domains.climate.loader import Series
from domains.climate.moments import Moments
from shared import fingerprint, progress
from shared.contract import DataCard, Quarantined
from shared.errors import InputError

IRIS = {"A1B": "A1B_north_america.nc", "E1": "E1_north_america.nc"}
_TITLES = {
    "iris": "HadGEM2-AO A1B and E1 runs, annual means over North America (iris-sample-data, Open Government Licence)",
    "synthetic": "Two synthetic scenarios with a planted coarse-to-fine relation",
}


@dataclass(frozen=True, eq=False)
class _Scenario:
    name: str
    values: np.ndarray
    moments: Moments


def ingest(source: str, config: ClimateConfig, out: Path) -> DataCard:
    """Reads ``source`` into ``out``; see :meth:`shared.contract.Domain.ingest`."""
    with tempfile.TemporaryDirectory() as scratch:
        named, protocol, title = source_files(source, Path(scratch))
        read, quarantine = _read_all(named, config)
        _same_calendar(read)
        read, unlike = _alike(read)
        quarantine += unlike
        scenarios, more, warnings = _assembled(read)
        quarantine += more
    first = next(iter(read.values()))[1]
    data = Prepared(
        fields=np.concatenate([scenario.values for scenario in scenarios]),
        scenario=np.repeat(np.arange(len(scenarios)), [len(s.values) for s in scenarios]),
        parts=np.concatenate([scenario.moments.fields for scenario in scenarios]),
        steps=np.concatenate([scenario.moments.steps for scenario in scenarios]),
        meta={
            "protocol": protocol,
            "scenarios": [scenario.name for scenario in scenarios],
            "variable": first.variable,
            "standard_name": first.standard_name,
            "long_name": first.long_name,
            "unit": first.converted.unit,
            "given_unit": first.converted.given,
            "calendar": first.calendar,
            "frequency": {
                "unit": scenarios[0].moments.frequency.unit,
                "count": scenarios[0].moments.frequency.count,
            },
            "grid": first.grid.to_dict(),
        },
    )
    data.save(out)
    return DataCard(
        title=title,
        synthetic=any(series.synthetic for _, series in read.values()),
        examples=len(numbered(data, config).target),
        facts={**_facts(data, first), "shared history": _shared_history(data)},
        quarantine=quarantine,
        warnings=warnings,
        fingerprint=_fingerprint(data),
    )


def source_files(source: str, scratch: Path) -> tuple[list[tuple[str, Path]], str, str]:
    """(scenario or "", path) of every file, the split protocol that belongs to them, a title."""
    if source == "iris":
        import iris_sample_data

        folder = Path(iris_sample_data.path)
        return [(name, folder / file) for name, file in IRIS.items()], "iris", _TITLES["iris"]
    if source == "synthetic":
        from domains.climate.synthetic import write

        write(scratch, seed=0)
        return [("", path) for path in loader.find(scratch)], "synthetic", _TITLES["synthetic"]
    place = Path(source).expanduser()
    if not place.exists() and "/" not in source and not place.suffix:
        raise InputError(
            f"There is no source {source!r}.", "Give a path, `iris` (the A1B and E1 runs) or `synthetic`."
        )
    found = loader.find(place)
    return (
        [(p.parent.name if p.parent != place and p != place else "", p) for p in found],
        "",
        f"Maps of {place.name}",
    )


def _read_all(
    named: list[tuple[str, Path]], config: ClimateConfig
) -> tuple[dict[str, tuple[str, Series]], list[Quarantined]]:
    """Series by file name, with their scenario; what can't be read is set aside."""
    read: dict[str, tuple[str, Series]] = {}
    quarantine: list[Quarantined] = []
    remedy = ""
    for number, (scenario, path) in enumerate(named):
        progress.emit("ingest", number, len(named), note=path.name)
        item = f"{scenario}/{path.name}" if scenario and path.parent.name == scenario else path.name
        try:
            series = loader.read(
                path,
                variable=config.variable,
                unit=config.units,
                calendar=config.calendar,
                latitude=config.latitude,
                longitude=config.longitude,
            )
        except InputError as error:
            quarantine.append(Quarantined(item, error.message))
            remedy = remedy or error.remedy
            continue
        read[item] = (scenario or series.scenario or path.stem, series)
    progress.emit("ingest", len(named), len(named))
    if not read:
        reasons = "; ".join(f"{one.item}: {one.reason}" for one in quarantine[:3])
        raise InputError(
            f"No usable file among {len(named)}. {reasons}",
            remedy or "Look into the first with `ncdump -h`, or download it again.",
        )
    return read, quarantine


def _same_calendar(read: dict[str, tuple[str, Series]]) -> None:
    by_calendar: dict[str, list[str]] = defaultdict(list)
    for item, (_, series) in read.items():
        by_calendar[series.calendar].append(item)
    if len(by_calendar) > 1:
        told = "; ".join(f"{calendar}: {', '.join(items[:3])}" for calendar, items in by_calendar.items())
        raise InputError(
            f"The files have different calendars. {told}.",
            f"Convert all with --calendar, e.g. --calendar {max(by_calendar, key=lambda c: len(by_calendar[c]))}.",
        )


def _alike(
    read: dict[str, tuple[str, Series]],
) -> tuple[dict[str, tuple[str, Series]], list[Quarantined]]:
    """Keeps the files that share the most common grid, variable and unit."""
    kinds = {item: f"{s.variable} in {s.converted.unit} on {s.grid}" for item, (_, s) in read.items()}
    usual = Counter(kinds.values()).most_common(1)[0][0]
    reference = next(read[item][1] for item, kind in kinds.items() if kind == usual)
    kept, quarantine = {}, []
    for item, (name, series) in read.items():
        if kinds[item] == usual and series.grid.like(reference.grid):
            kept[item] = (name, series)
        else:
            quarantine.append(Quarantined(item, f"It holds {kinds[item]}; most files hold {usual}."))
    return kept, quarantine


def _assembled(
    read: dict[str, tuple[str, Series]],
) -> tuple[list[_Scenario], list[Quarantined], list[str]]:
    parts: dict[str, list[tuple[str, Series]]] = defaultdict(list)
    for item, (name, series) in read.items():
        parts[name].append((item, series))
    scenarios, quarantine, warnings = [], [], []
    for name, pieces in sorted(parts.items()):
        values, times, notes = _joined(name, pieces)
        warnings += notes
        empty = ~np.isfinite(values).any(axis=(1, 2))
        for at in np.flatnonzero(empty):
            quarantine.append(
                Quarantined(f"{name}/{times[at].isoformat()[:10]}", "All its values are missing.")
            )
        times = [time for time, gone in zip(times, empty, strict=True) if not gone]
        try:
            counted = moments.count(times, pieces[0][1].calendar, name)
        except InputError as error:
            quarantine += [Quarantined(item, error.message) for item, _ in pieces]
            continue
        gaps = counted.missing()
        if gaps:
            more = f" and {len(gaps) - 3} more gaps" if len(gaps) > 3 else ""
            warnings.append(f"{name} is not contiguous: missing {'; '.join(gaps[:3])}{more}.")
        scenarios.append(_Scenario(name, values[~empty], counted))
    if scenarios and len({float(edge(s.values)) for s in scenarios for edge in (np.nanmin, np.nanmax)}) == 1:
        raise InputError(
            f"All maps hold the same value, {float(np.nanmin(scenarios[0].values)):g}: there is nothing to learn.",
            "Look into the files; --variable names another variable.",
        )
    if not scenarios:
        raise InputError(f"No usable series. {quarantine[-1].item}: {quarantine[-1].reason}")
    kinds = {str(scenario.moments.frequency): scenario.name for scenario in scenarios}
    if len(kinds) > 1:
        raise InputError(
            "The scenarios have different steps: "
            + ", ".join(f"{n} every {k}" for k, n in kinds.items())
            + ".",
            "Give all as e.g. monthly means.",
        )
    return scenarios, quarantine, warnings


def _joined(name: str, pieces: list[tuple[str, Series]]) -> tuple[np.ndarray, list[Any], list[str]]:
    """One scenario's files as one series. The same moment twice must be the same map (xarray#2108)."""
    values = np.concatenate([series.values for _, series in pieces])
    times = np.array([time for _, series in pieces for time in series.times])
    origin = np.array([item for item, series in pieces for _ in series.times])
    order = np.argsort(times, kind="stable")
    values, times, origin = values[order], times[order], origin[order]
    again = np.flatnonzero(times[1:] == times[:-1]) + 1
    for at in again:
        if not np.array_equal(values[at], values[at - 1], equal_nan=True):
            raise InputError(
                f"{name} has two different maps of {times[at].isoformat()[:10]}, "
                f"from {origin[at - 1]} and {origin[at]}.",
                "Put each scenario (and each ensemble member) into a folder of its own, or remove one file.",
            )
    kept = np.setdiff1d(np.arange(len(times)), again)
    notes = [f"{name}: {len(again)} maps came twice and were counted once."] if len(again) else []
    return values[kept], list(times[kept]), notes


def _facts(data: Prepared, first: Series) -> dict[str, Any]:
    fields, known = data.fields, np.isfinite(data.fields)
    years = {
        name: f"{data.parts[rows, 0].min()}-{data.parts[rows, 0].max()}, {int(rows.sum())} maps"
        for number, name in enumerate(data.scenarios)
        for rows in [data.scenario == number]
    }
    return {
        "variable": f"{first.variable} ({first.standard_name or 'no standard_name'})",
        "unit": str(first.converted),
        "grid": str(data.grid),
        "step": str(data.frequency),
        "calendar": data.meta["calendar"],
        "scenarios": years,
        "lowest": float(np.nanmin(fields)),
        "mean": float(fields.mean(dtype=np.float64, where=known)),
        "highest": float(np.nanmax(fields)),
        "missing cells": f"{100 * (1 - known.mean()):.1f}%",
    }


def _shared_history(data: Prepared) -> str:
    """Which scenarios are identical when: such maps must not stand on two sides of a split."""
    seen: dict[str, str] = {}
    pairs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row, label in enumerate(data.labels()):
        name, _, moment = label.rpartition("/")
        key = moment + hashlib.sha256(np.ascontiguousarray(data.fields[row]).tobytes()).hexdigest()
        if key in seen:
            pairs[seen[key], name].append(moment)
        seen.setdefault(key, name)
    told = [f"{a} and {b} are identical {m[0]} to {m[-1]} ({len(m)} maps)" for (a, b), m in pairs.items()]
    return "; ".join(told) or "none"


def _fingerprint(data: Prepared) -> str:
    digest = hashlib.sha256()
    for array in (data.fields, data.scenario, data.parts, data.steps):
        digest.update(np.ascontiguousarray(array).tobytes())
    return fingerprint.of(digest.hexdigest(), data.meta)
