"""Raw films to prepared ones: read, check, shrink, name by pseudonym, in constant memory.

The prepared folder holds ``films.u16`` (uint16 ``[rows, size, size]``, one film after the other),
``table.npz`` (keys, patients, labels, which row is whose) and ``meta.json``.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from domains.xray import dicom, film, labels, synthetic
from domains.xray.config import XrayConfig
from domains.xray.labels import Listed, Listing
from domains.xray.privacy import Pseudonyms
from shared import files, progress
from shared.contract import DataCard, Quarantined
from shared.errors import InputError

_CHUNK = 64
_NO_PATIENT = "no patient key"
_REMEDY_PATIENT = (
    "Two films of one patient in train and test would make every result worthless. Add a column `patient` to the "
    "label table, or set labels.patient_pattern to a regular expression that finds the patient in the path."
)
T = TypeVar("T")


@dataclass(frozen=True)
class Loaded:
    """A film that was read and shrunk; or the reason why not."""

    listed: Listed
    small: np.ndarray | None = None
    pixels: str = ""
    patient: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    synthetic: bool = False
    reason: str = ""


def ingest(source: str, config: XrayConfig, out: Path) -> DataCard:
    """See :meth:`shared.contract.Domain.ingest`."""
    out.mkdir(parents=True, exist_ok=True)
    if source == "synthetic":
        s = config.synthetic
        synthetic.write(out / "drawn", films=s.films, size=s.size, seed=s.seed, strength=s.strength)
        folder = out / "drawn"
    else:
        folder = Path(source).expanduser()
    listing = labels.list_films(folder, config.labels)
    marked = ((folder if folder.is_dir() else folder.parent) / synthetic.MARK).is_file()
    names = Pseudonyms.of(config.privacy, synthetic=marked)
    kept, quarantine = _read_all(listing, config, names, out)
    if not kept.rows:
        _nothing_left(folder, listing, quarantine)
    _require_patients(kept, quarantine, listing)
    shutil.rmtree(out / "drawn", ignore_errors=True)
    return _finish(listing, kept, quarantine, config, names, out, made_up=marked or all(kept.synthetic))


@dataclass
class _Kept:
    """Columns of the table that grows while films are read."""

    keys: list[str] = field(default_factory=list)
    patients: list[str] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    flags: Counter[str] = field(default_factory=Counter)
    synthetic: list[bool] = field(default_factory=list)


def _read_all(
    listing: Listing, config: XrayConfig, names: Pseudonyms, out: Path
) -> tuple[_Kept, list[Quarantined]]:
    kept, quarantine = _Kept(), []
    seen: dict[str, int] = {}  # hash of the prepared film -> position in kept
    conflicting: set[int] = set()
    written = 0
    with dicom.quiet(), (out / "films.u16").open("wb") as store, ThreadPoolExecutor(4) as pool:
        done = 0
        for chunk in chunks(listing.films, _CHUNK):
            for loaded in pool.map(lambda item: load(item, config), chunk):
                done += 1
                item = names.file(loaded.listed.number, loaded.listed.relative)
                if loaded.small is None:
                    quarantine.append(Quarantined(item, loaded.reason))
                    continue
                if not loaded.patient:
                    quarantine.append(Quarantined(item, _NO_PATIENT))
                    continue
                twin = seen.get(content := hashlib.sha256(loaded.small.tobytes()).hexdigest())
                if twin is not None:
                    same = np.array_equal(kept.labels[twin], loaded.listed.labels, equal_nan=True)
                    conflicting |= set() if same else {twin}
                    quarantine.append(Quarantined(item, _twin_reason(kept, twin, names, loaded, same)))
                    continue
                seen[content] = len(kept.rows)
                _keep(kept, loaded, names, written)
                store.write(loaded.small.astype("<u2").tobytes())
                written += 1
            progress.emit("reading films", done, len(listing.films))
    for position in sorted(conflicting, reverse=True):
        quarantine.append(
            Quarantined(kept.keys[position], "its pixels come again with other labels: both are set aside")
        )
        for column in (kept.keys, kept.patients, kept.labels, kept.rows, kept.facts, kept.synthetic):
            del column[position]
    return kept, quarantine


def load(listed: Listed, config: XrayConfig) -> Loaded:
    """One film read and shrunk; never raises for what is wrong with the file. Call it in ``dicom.quiet()``."""
    if not listed.path.is_file():
        return Loaded(listed, reason="no such file")
    try:
        one = film.read(listed.path, config.film)
    except film.Unreadable as error:
        return Loaded(listed, reason=str(error))
    return Loaded(
        listed,
        film.prepare(one.pixels, config.film),
        film.pixel_hash(one.pixels),
        listed.patient or one.patient,
        dict(one.facts),
        one.flags,
        one.synthetic,
    )


def _keep(kept: _Kept, loaded: Loaded, names: Pseudonyms, row: int) -> None:
    patient = names.patient(loaded.patient)
    kept.keys.append(f"{patient}/{names.film(loaded.pixels)}")
    kept.patients.append(patient)
    kept.labels.append(loaded.listed.labels)
    kept.rows.append(row)
    kept.facts.append(loaded.facts)
    kept.flags.update(loaded.flags)
    kept.synthetic.append(loaded.synthetic)


def _twin_reason(kept: _Kept, twin: int, names: Pseudonyms, loaded: Loaded, same: bool) -> str:
    other = "" if names.patient(loaded.patient) == kept.patients[twin] else ", of another patient"
    label = "" if same else ", with other labels: both are set aside"
    return f"the same pixels as {kept.keys[twin]}{other}{label}"


def _nothing_left(folder: Path, listing: Listing, quarantine: Sequence[Quarantined]) -> None:
    reasons = Counter(item.reason for item in quarantine)
    if reasons[_NO_PATIENT] == len(quarantine):
        raise InputError(f"None of {len(listing.films)} films has a patient key.", _REMEDY_PATIENT)
    most = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
    raise InputError(
        f"None of the {len(listing.films)} films that {folder} speaks of can be used: {most}.",
        "Check the reasons; paths in a label table are relative to the table.",
    )


def _require_patients(kept: _Kept, quarantine: Sequence[Quarantined], listing: Listing) -> None:
    without = sum(item.reason == _NO_PATIENT for item in quarantine)
    if without > 0.1 * (without + len(kept.rows)):
        raise InputError(f"{without} of {len(listing.films)} films have no patient key.", _REMEDY_PATIENT)
    if len(set(kept.patients)) == 1 and len(kept.rows) > 1:
        raise InputError(
            f"All {len(kept.rows)} films have the same patient key: a placeholder of de-identification?",
            _REMEDY_PATIENT,
        )


def _finish(
    listing: Listing,
    kept: _Kept,
    quarantine: list[Quarantined],
    config: XrayConfig,
    names: Pseudonyms,
    out: Path,
    *,
    made_up: bool,
) -> DataCard:
    truth = np.stack(kept.labels).astype("float32")
    acquisition = [
        "|".join(str(facts.get(k, "")) for k in ("format", "syntax", "photometric", "bits", "view"))
        for facts in kept.facts
    ]
    sizes = np.array([[facts["height"], facts["width"]] for facts in kept.facts], "int64")
    files.write_npz(
        out / "table.npz",
        keys=np.array(kept.keys),
        patients=np.array(kept.patients),
        labels=truth,
        rows=np.array(kept.rows, "int64"),
        acquisition=np.array(acquisition),
        sizes=sizes,
    )
    fingerprint = _fingerprint(kept, truth, config)
    meta = {
        "size": config.film.size,
        "labels": list(listing.names),
        "rows": max(kept.rows) + 1,
        "synthetic": made_up,
        "fingerprint": fingerprint,
    }
    files.write_json(out / "meta.json", meta)
    return DataCard(
        title=f"{'Synthetic chest films' if made_up else 'Chest films'}, {listing.about}",
        synthetic=made_up,
        examples=len(kept.rows),
        facts=_facts(listing, kept, truth, sizes),
        quarantine=tuple(quarantine),
        warnings=tuple(_warnings(listing, truth, names, made_up)),
        fingerprint=fingerprint,
    )


def _facts(listing: Listing, kept: _Kept, truth: np.ndarray, sizes: np.ndarray) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "films": len(kept.rows),
        "patients": len(set(kept.patients)),
        "pixels": f"{sizes.min()} to {sizes.max()} a side",
    }
    for index, name in enumerate(listing.names):
        column = truth[:, index]
        facts[f"label {name}"] = (
            f"{int((column == 1).sum())} yes, {int((column == 0).sum())} no, {int(np.isnan(column).sum())} unknown"
        )
    for what in ("format", "photometric", "bits", "syntax"):
        counts = Counter(str(one[what]) for one in kept.facts if one.get(what) not in ("", None, 0))
        if counts:
            facts[what] = ", ".join(f"{value} ({count})" for value, count in counts.most_common(6))
    for flag, count in kept.flags.most_common(5):
        facts[f"flag: {flag}"] = count
    return facts


def _warnings(listing: Listing, truth: np.ndarray, names: Pseudonyms, made_up: bool) -> Iterator[str]:
    if listing.unlabelled:
        yield f"{listing.unlabelled} films have no labels and were left out."
    for index, name in enumerate(listing.names):
        if len(np.unique(truth[:, index][~np.isnan(truth[:, index])])) < 2:
            yield f"The label {name} has one value only: nothing can be learned of it."
    if not made_up and not names.secret:
        yield (
            "Pseudonyms were made without a secret (privacy.salt_file): whoever has a list of patient ids can "
            "recognise them."
        )
    if not made_up:
        yield "Text burned into pixels is not looked for, whatever the headers say."


def _fingerprint(kept: _Kept, truth: np.ndarray, config: XrayConfig) -> str:
    digest = hashlib.sha256(config.film.model_dump_json().encode())
    digest.update("\n".join(kept.keys).encode())
    digest.update(truth.tobytes())
    return digest.hexdigest()[:16]


def chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """Runs of at most ``size`` items, in order."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
