"""Which films there are and what is known of each: a label table, or one folder a class.

What a blank and a -1 mean is a stated policy per label, resolved here to 0, 1 or NaN (unknown);
no later stage sees anything else.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import numpy as np

from domains.xray.config import LabelSection, Missing
from domains.xray.film import DICOM_SUFFIXES, PICTURE_SUFFIXES, is_dicom
from shared.errors import InputError, did_you_mean

_PATHS = ("path", "file", "filename", "file_name", "image", "image_path", "image index")
_PATIENTS = ("patient", "patient_id", "patientid", "patient id", "subject", "subject_id")
_FINDINGS = "finding labels"  # NIH's column: names joined by |
_NEGATIVE = ("normal", "negative", "healthy", "no finding", "no_finding", "nofinding", "none", "0")
_SLIPS = 0.1
"""A column with up to this share of other values is one of labels with slips in it."""
_NOTHING = ("", "nan", "na", "n/a", "null", "none")


@dataclass(frozen=True)
class Listed:
    """A film that the source speaks of: its number (from 1), file, patient and labels.

    ``labels`` is float32 ``[labels]`` of 0, 1 and NaN; ``patient`` is empty where the table has none.
    """

    number: int
    path: Path
    relative: str
    patient: str
    labels: np.ndarray


@dataclass(frozen=True)
class Listing:
    """All films of a source, in a fixed order, and what was noticed."""

    names: tuple[str, ...]
    films: tuple[Listed, ...]
    unlabelled: int = 0
    about: str = ""


def films_under(folder: Path) -> list[Path]:
    """Every film file under ``folder``, in the order of its path; hidden files and DICOMDIR left out."""
    found = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if (
            any(part.startswith(".") for part in relative.parts)
            or path.name == "DICOMDIR"
            or not path.is_file()
        ):
            continue
        suffix = path.suffix.lower()
        if suffix in DICOM_SUFFIXES + PICTURE_SUFFIXES or (not path.suffix[1:].isalpha() and is_dicom(path)):
            found.append(path)
    return found


def list_films(source: Path, settings: LabelSection) -> Listing:
    """The films and labels of ``source``: a label table, or a folder with one, or with class folders.

    Raises:
        InputError: Nothing there, no labels, a column missing, or a label that is none; names
            the file, the row and the column.
    """
    if not source.exists():
        raise InputError(f"There is no {source}.", "Give --source a folder of films or a label table (CSV).")
    if source.is_file():
        if source.suffix.lower() != ".csv":
            raise InputError(
                f"{source.name} is one file; training takes a folder of films or a label table (CSV).",
                "Give the folder, or a CSV with the columns path, patient and one column a label.",
            )
        return _from_table(source, settings)
    table = source / settings.table
    if table.is_file():
        return _from_table(table, settings)
    return _from_folders(source, settings)


def list_unlabelled(source: Path, settings: LabelSection) -> tuple[Listed, ...]:
    """Films to score: of a folder, of a CSV with a column of paths, or the one file given.

    Raises:
        InputError: Nothing there.
    """
    nothing = np.zeros(0, "float32")
    if source.is_file() and source.suffix.lower() == ".csv":
        rows, columns = _read_rows(source)
        path_column = _column(
            columns, settings.path_column, _PATHS, source, "file paths", "labels.path_column"
        )
        found = [source.parent / row[path_column].strip().replace("\\", "/") for row in rows]
        root = source.parent
    elif source.is_file():
        root, found = source.parent, [source]
    elif source.is_dir():
        root, found = source, films_under(source)
    else:
        raise InputError(
            f"There is no {source}.", "Give --source a folder of films, one film, or a CSV of paths."
        )
    if not found:
        raise InputError(
            f"No film under {source}: no file {', '.join(DICOM_SUFFIXES + PICTURE_SUFFIXES)} and none with a DICOM "
            "header.",
            "Give a folder that holds films.",
        )
    films = []
    for number, path in enumerate(found, start=1):
        relative = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        films.append(Listed(number, path, relative, _by_pattern(relative, settings), nothing))
    return tuple(films)


def _from_folders(source: Path, settings: LabelSection) -> Listing:
    paths = films_under(source)
    classes = sorted({path.relative_to(source).parts[0] for path in paths if path.parent != source})
    if not paths:
        raise InputError(
            f"No film under {source}: no file {', '.join(DICOM_SUFFIXES + PICTURE_SUFFIXES)} and none with a DICOM "
            "header.",
            "Give a folder of films with a labels.csv, or with one sub-folder a class.",
        )
    if len(classes) < 2:
        raise InputError(
            f"{len(paths)} films under {source}, but no labels: no {settings.table} and fewer than two class folders.",
            f"Add {settings.table} (columns path, patient, one column a label), or one sub-folder a class.",
        )
    wanted = settings.negative_class.lower()
    if wanted and wanted not in [name.lower() for name in classes]:
        raise InputError(
            f"labels.negative_class is {settings.negative_class!r}, which is no folder of {source}.",
            did_you_mean(settings.negative_class, classes),
        )
    negative = [n for n in classes if n.lower() == wanted or (not wanted and n.lower() in _NEGATIVE)]
    names = _chosen(
        [name for name in classes if name not in negative], settings, f"the folders of {source.name}"
    )
    films = []
    for number, path in enumerate(paths, start=1):
        relative = path.relative_to(source)
        if path.parent == source:
            continue
        values = np.array([float(relative.parts[0] == name) for name in names], "float32")
        films.append(
            Listed(number, path, relative.as_posix(), _by_pattern(relative.as_posix(), settings), values)
        )
    return Listing(tuple(names), tuple(films), len(paths) - len(films), f"{len(classes)} class folders")


def _from_table(table: Path, settings: LabelSection) -> Listing:
    rows, columns = _read_rows(table)
    path_column = _column(columns, settings.path_column, _PATHS, table, "file paths", "labels.path_column")
    patient_column = _column(columns, settings.patient_column, _PATIENTS, table, "", "labels.patient_column")
    findings = next((c for c in columns if c.lower() == _FINDINGS), "")
    if findings and not settings.names:
        names = sorted(
            {f for row in rows for f in row[findings].split("|") if f.lower() not in _NEGATIVE and f}
        )
    elif findings:
        names = list(settings.names)
    else:
        names = _label_columns(rows, columns, (path_column, patient_column), settings, table)
    policies = _policies(names, settings)
    films = []
    for number, row in enumerate(rows, start=1):
        if findings:
            found = row[findings].split("|")
            values = np.array([float(name in found) for name in names], "float32")
        else:
            values = np.array(
                [_value(row[name], *policies[name], _place(table, number + 1, name)) for name in names],
                "float32",
            )
        relative = row[path_column].strip().replace("\\", "/")
        patient = row[patient_column].strip() if patient_column else ""
        patient = patient or _by_pattern(relative, settings)
        films.append(Listed(number, table.parent / relative, relative, patient, values))
    listed = {film.path for film in films}
    unlabelled = sum(path not in listed for path in films_under(table.parent))
    return Listing(tuple(names), tuple(films), unlabelled, f"a label table of {len(rows)} rows")


def _read_rows(table: Path) -> tuple[list[dict[str, str]], list[str]]:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = columns
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{table.name} cannot be read as CSV: {error}.", "Save it as CSV in UTF-8."
        ) from error
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise InputError(
            f"{table.name} has two columns named {twice[0]!r}.", "Leave one of them, or rename it."
        )
    if not rows:
        raise InputError(f"{table.name} has no rows.", "Give one row a film, with a header line.")
    for number, row in enumerate(rows, start=2):
        if None in row or any(value is None for value in row.values()):
            raise InputError(
                f"{table.name}, row {number}: the number of fields is not that of the header ({len(columns)}).",
                "Quote fields that hold commas.",
            )
    return rows, columns


def _column(
    columns: Sequence[str], wanted: str, usual: Sequence[str], table: Path, what: str, knob: str
) -> str:
    """The column ``wanted`` or one of the usual names; '' where none is needed (no ``what``) or found."""
    if wanted:
        if wanted in columns:
            return wanted
        raise InputError(f"{table.name} has no column {wanted!r}.", did_you_mean(wanted, columns))
    found = next((c for name in usual for c in columns if c.lower() == name), "")
    if not found and what:
        raise InputError(
            f"{table.name} has no column of {what}; its columns are {', '.join(columns) or 'none'}.",
            f"Name the column `path`, or set {knob}.",
        )
    return found


def _label_columns(
    rows: Sequence[dict[str, str]],
    columns: Sequence[str],
    taken: Sequence[str],
    settings: LabelSection,
    table: Path,
) -> list[str]:
    if settings.names:
        return _chosen(columns, settings, table.name)
    names = []
    for column in (c for c in columns if c and c not in taken):
        wrong = [number for number, row in enumerate(rows, start=2) if not _is_label(row[column])]
        # A few slips in a column of labels are told, so that no label vanishes because of them.
        if 0 < len(wrong) <= _SLIPS * len(rows):
            _value(rows[wrong[0] - 2][column], "ignore", "ignore", _place(table, wrong[0], column))
        if not wrong:
            names.append(column)
    if not names:
        raise InputError(
            f"{table.name} has no label column: none of {', '.join(columns)} holds only 0, 1, -1 and blanks.",
            "Give one column a label with 1 (present), 0 (absent), blank or -1 (unknown), or set labels.names.",
        )
    return names


def _chosen(known: Sequence[str], settings: LabelSection, where: str) -> list[str]:
    for name in settings.names:
        if name not in known:
            raise InputError(f"There is no label {name!r} in {where}.", did_you_mean(name, known))
    return list(settings.names or known)


def _policies(names: Sequence[str], settings: LabelSection) -> dict[str, tuple[Missing, Missing]]:
    blank = _exceptions(names, settings.blank_by_label, "labels.blank_by_label")
    uncertain = _exceptions(names, settings.uncertain_by_label, "labels.uncertain_by_label")
    return {
        name: (blank.get(name, settings.blank), uncertain.get(name, settings.uncertain)) for name in names
    }


def _exceptions(names: Sequence[str], given: Sequence[str], knob: str) -> dict[str, Missing]:
    """``("Edema=ones",)`` as ``{"Edema": "ones"}``."""
    found: dict[str, Missing] = {}
    for text in given:
        name, _, policy = text.rpartition("=")
        if policy not in get_args(Missing):
            raise InputError(
                f"{knob} takes LABEL=POLICY, received {text!r}.",
                f"The policy is one of {', '.join(get_args(Missing))}.",
            )
        if name not in names:
            raise InputError(f"There is no label {name!r} to set a policy for.", did_you_mean(name, names))
        found[name] = cast(Missing, policy)
    return found


def _place(table: Path, row: int, column: str) -> str:
    return f"{table.name}, row {row}, column {column!r}"


def _is_label(text: str) -> bool:
    try:
        return text.strip().lower() in _NOTHING or float(text) in (0.0, 1.0, -1.0)
    except ValueError:
        return False


def _value(text: str, blank: Missing, uncertain: Missing, where: str) -> float:
    """A label's text as 0, 1 or NaN.

    >>> _value("", "zeros", "ignore", ""), _value("-1.0", "zeros", "ones", ""), _value("1", "zeros", "ones", "")
    (0.0, 1.0, 1.0)
    """
    if not _is_label(text):
        raise InputError(
            # A long text may be a name, from a column that was meant for something else.
            f"{where}: a label is 0, 1, -1 or blank, received {repr(text) if len(text) < 5 else 'a longer text'}.",
            "Correct the row, or leave the column out with labels.names.",
        )
    if text.strip().lower() in _NOTHING:
        policy: Missing = blank
    elif float(text) == -1.0:
        policy = uncertain
    else:
        return float(text)
    return {"ignore": float("nan"), "zeros": 0.0, "ones": 1.0}[policy]


def _by_pattern(relative: str, settings: LabelSection) -> str:
    if not settings.patient_pattern:
        return ""
    try:
        pattern = re.compile(settings.patient_pattern)
    except re.error as error:
        raise InputError(
            f"labels.patient_pattern is no regular expression: {error}.",
            "Give one with a group, e.g. ^([0-9]+)_.",
        ) from None
    if pattern.groups < 1:
        raise InputError(
            "labels.patient_pattern has no group.", "Put the patient's part in brackets: ^([0-9]+)_."
        )
    match = pattern.search(relative)
    return match.group(1) if match and match.group(1) else ""
