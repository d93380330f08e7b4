"""When what runs: one TOML file, read and checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from shared.config import build, read_toml
from shared.contract import domain_names, find
from shared.errors import InputError, did_you_mean

KINDS = ("train", "predict")
UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
LONGEST = 3660 * UNITS["days"]
KEYS = ("cron", "timezone", *UNITS, "source", "out", "config")

EXAMPLE = """\
# Schedules of `casebook serve --config schedules.toml`.
# A table is a flow: [DOMAIN.train] or [DOMAIN.predict], with either a cron line and its time
# zone, or an interval in seconds, minutes, hours or days. Without either the flow runs only
# when triggered by hand. Flows that are not named here are served too, by hand only.

timezone = "UTC"  # of every cron line that names none

[{domain}.train]
cron = "0 3 * * 6"  # Saturdays at three
timezone = "America/New_York"
config.train.epochs = 20  # settings, as in the file for `casebook run --config`

[{domain}.predict]
minutes = 30
source = "incoming"  # what to score; needed for a schedule of predict
out = "scored"  # default: a folder by time under the runs folder
"""


@dataclass(frozen=True)
class Schedule:
    """One flow and when it runs.

    Attributes:
        domain, kind: Which flow: ``kind`` is ``train`` or ``predict``.
        cron, timezone: A cron line and its IANA time zone; or
        seconds: an interval. Neither: only by hand.
        parameters: What the flow is called with.
    """

    domain: str
    kind: Literal["train", "predict"]
    cron: str | None = None
    timezone: str = "UTC"
    seconds: float | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.domain}-{self.kind}"

    @property
    def when(self) -> str:
        """For people: ``cron 0 3 * * 6 (UTC)``, ``every 30 min``, ``by hand``."""
        if self.cron:
            return f"cron {self.cron} ({self.timezone})"
        if self.seconds:
            unit = next(
                unit for unit in reversed(UNITS) if self.seconds % UNITS[unit] == 0 or unit == "seconds"
            )
            return f"every {self.seconds / UNITS[unit]:g} {unit}"
        return "by hand"


def read(file: Path | None) -> list[Schedule]:
    """The train and predict flow of every domain, with the schedules that ``file`` gives them.

    Raises:
        InputError: Unknown domain, flow or key; a cron line, time zone, interval or setting
            that cannot be used. Names the table.
    """
    given = dict(read_toml(file)) if file is not None else {}
    timezone = given.pop("timezone", "UTC")
    tables: dict[tuple[str, str], Mapping[str, Any]] = {}
    for domain, flows in given.items():
        find(domain)
        if not isinstance(flows, Mapping):
            raise InputError(
                f"{domain} must be tables [{domain}.train], [{domain}.predict], received {flows!r}."
            )
        for kind, table in flows.items():
            if kind not in KINDS or not isinstance(table, Mapping):
                raise InputError(f"[{domain}.{kind}] is not a flow.", did_you_mean(str(kind), KINDS))
            tables[domain, kind] = table
    return [
        _schedule(domain, kind, tables.get((domain, kind), {}), timezone)
        for domain in domain_names()
        for kind in KINDS
    ]


def _schedule(domain: str, kind: Any, table: Mapping[str, Any], timezone: str) -> Schedule:
    where = f"[{domain}.{kind}]"
    for key in table:
        if key not in KEYS:
            raise InputError(f"Unknown key {key!r} in {where}.", did_you_mean(key, KEYS))
    cron, seconds = table.get("cron"), _interval(where, table)
    if cron is not None and seconds is not None:
        raise InputError(f"{where} has a cron line and an interval.", "Keep one of them.")
    if cron is not None:
        _check_cron(where, cron)
    zone = table.get("timezone", timezone)
    _check_zone(where, zone)
    return Schedule(
        domain=domain,
        kind=kind,
        cron=cron,
        timezone=zone,
        seconds=seconds,
        parameters=_parameters(where, domain, kind, table, scheduled=cron is not None or seconds is not None),
    )


def _parameters(
    where: str, domain: str, kind: str, table: Mapping[str, Any], *, scheduled: bool
) -> dict[str, Any]:
    config = table.get("config", {})
    if not isinstance(config, Mapping):
        raise InputError(f"config in {where} must be a table of settings, received {config!r}.")
    try:
        build(find(domain).Config, base=config)
    except InputError as error:
        raise InputError(f"{where}: {error.message}", error.remedy) from None
    source = table.get("source")
    if kind == "train":
        if "out" in table:
            raise InputError(f"{where} has `out`, which only predict takes.")
        return {"config": {**config, "source": str(source)} if source is not None else dict(config)}
    if scheduled and not source:
        raise InputError(f"{where} has no source.", 'Name what to score: source = "incoming".')
    parameters: dict[str, Any] = {"config": dict(config)}
    if source is not None:
        parameters["source"] = str(source)
    if table.get("out") is not None:
        parameters["out"] = str(table["out"])
    return parameters


def _interval(where: str, table: Mapping[str, Any]) -> float | None:
    total = None
    for unit, length in UNITS.items():
        amount = table.get(unit)
        if amount is None:
            continue
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not amount > 0:
            raise InputError(f"{unit} in {where} must be a number above 0, received {amount!r}.")
        total = (total or 0.0) + float(amount) * length
    if total is not None and not 1 <= total <= LONGEST:
        raise InputError(
            f"The interval in {where} is {total:g} seconds.",
            "Give one of at least a second and at most ten years.",
        )
    return total


def _check_cron(where: str, cron: Any) -> None:
    from prefect.schedules import Cron

    try:
        Cron(cron)
    except Exception as error:
        raise InputError(
            f"cron in {where} cannot be read: {cron!r}.",
            'Five fields: minute, hour, day, month, weekday, e.g. "0 3 * * 6".',
        ) from error


def _check_zone(where: str, zone: Any) -> None:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise InputError(
            f"timezone in {where} is not known: {zone!r}.", 'An IANA name, e.g. "America/New_York".'
        ) from error
