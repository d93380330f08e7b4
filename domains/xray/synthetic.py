"""Draws radiograph-like films with a planted disease, as DICOM and PNG with a label table.

They are made up, and say so in every header, in ``SYNTHETIC.txt`` and in the data card. Two
findings are planted: an *opacity* (a cloud of soft spots in one lung) and *nodules* (a few small
round ones in both). Everything else (build, size of the heart, exposure, contrast, turn, noise,
collimation, the maker's taste) varies without regard to them, and every film is brought to a mean
and contrast drawn at random, so that how bright a film is says nothing of what it shows.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shared import files

LABELS = ("opacity", "nodules")
MARK = "SYNTHETIC.txt"
SAMPLE = {"films": 48, "size": 88, "seed": 6}
"""What ``data/samples/xray`` was written with; seed 6 fills all three splits."""
COMMENT = "Casebook synthetic film: drawn by a program, shows no person"


@dataclass(frozen=True)
class Drawn:
    """One film: display values float32 ``[size, size]`` in 0..1 with air dark, and its truth ``[labels]``."""

    pixels: np.ndarray
    truth: np.ndarray


def write(out: Path, *, films: int, size: int, seed: int, strength: float = 1.0) -> None:
    """Writes ``films`` films of about half as many patients under ``out``, with ``labels.csv``.

    Args:
        size: Side in pixels.
        strength: 1: the findings are drawn in full; 0: they aren't drawn and labels are chance.
    """
    out.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng([seed, 0])
    rows: list[list[str]] = []
    patient, left = 0, 0
    truth = np.zeros(len(LABELS))
    build = np.zeros(6)
    for number in range(films):
        if left == 0:
            patient, left = patient + 1, int(generator.integers(1, 4))
            truth = (generator.random(len(LABELS)) < (0.42, 0.38)).astype("float64")
            build = generator.normal(size=6)
        left -= 1
        drawn = draw(np.random.default_rng([seed, 1, number]), size, truth, build.tolist(), strength)
        name = f"film-{number:04d}"
        if number % 5 < 2:
            name += ".dcm"
            _write_dicom(out / name, drawn, patient, number, seed)
        else:
            name += ".png"
            _write_png(out / name, drawn, bits=16 if number % 5 == 2 else 8)
        rows.append([name, _patient(seed, patient), *_told(generator, truth)])
    with (
        files.atomic(out / "labels.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path", "patient", *LABELS])
        writer.writerows(rows)
    files.write_text(
        out / MARK,
        f"{COMMENT}.\n{films} films of {patient} patients, {size} x {size}, seed {seed}, strength {strength:g}.\n",
    )


def _patient(seed: int, number: int) -> str:
    """Another seed draws other patients, also by name: they fall into other splits."""
    return f"SYN{seed}-{number:04d}"


def _told(generator: np.random.Generator, truth: np.ndarray) -> list[str]:
    """Labels as a reader's table has them: some blank, some uncertain."""
    kinds = generator.random(len(truth))
    return ["" if k < 0.03 else "-1" if k < 0.05 else str(int(v)) for k, v in zip(kinds, truth, strict=True)]


def draw(
    generator: np.random.Generator, size: int, truth: np.ndarray, build: Sequence[float], strength: float
) -> Drawn:
    """One film of a patient of ``build`` (standard normal ``[6]``: width, height, heart, lungs, ribs, bones).

    ``build`` holds Python's floats, which leave the arrays in float32.
    """
    u, v = _coordinates(generator, size)
    wide, tall = 1 + 0.05 * build[0], 1 + 0.05 * build[1]
    x, y = u / wide, v / tall
    soft = size / 160.0  # edges keep their width in pixels relative to the film

    def inside(distance: np.ndarray, edge: float) -> np.ndarray:
        return 0.5 + 0.5 * np.tanh(distance * (0.5 / edge))

    body = inside(1.0 - (np.abs(x) / 0.95) ** 2.6 - np.maximum(0, (-y - 0.62)) * 1.6, 0.05)
    density = 0.62 * body + 0.16 * body * np.clip(y, -1, 1)
    lungs, fields = np.zeros_like(x), []
    for side in (-1.0, 1.0):
        center, low = side * (0.42 + 0.01 * build[3]), 0.56 + 0.03 * side
        half_width = 0.27 * np.clip(1.0 - 0.42 * np.clip((-y - 0.05) / 0.7, 0, 1) ** 1.6, 0.1, 1)
        reach = 1.0 - ((x - center) / half_width) ** 2
        dome = low - 0.10 * np.clip(1 - ((x - center) / 0.3) ** 2, 0, 1)
        field = inside(reach, 0.25) * inside(dome - y, 0.025) * inside(y + 0.74, 0.05)
        fields.append(field)
        lungs += field
    density -= (0.40 + 0.03 * build[3]) * lungs
    density += 0.16 * body * inside(y - 0.55, 0.06)

    size_of_heart = 1 + 0.08 * build[2]
    heart = inside(
        # Tilted: the apex points down and to the patient's left, which is the right of the film.
        1.0
        - ((x - 0.11 - 0.30 * (y - 0.34)) / (0.225 * size_of_heart)) ** 2
        - ((y - 0.34) / (0.31 * size_of_heart)) ** 2,
        0.16,
    )
    middle = inside(0.105 - np.abs(x - 0.01), 0.03) * inside(y + 0.95, 0.05)
    density += (0.30 * heart + 0.22 * middle * (1 - 0.5 * heart)) * body
    spine = inside(0.06 - np.abs(x), 0.02) * (0.07 + 0.025 * np.cos(2 * np.pi * y / 0.15 + build[5]))
    density += spine * body

    slope, spacing = 0.55 + 0.05 * build[4], 0.155 + 0.006 * build[4]
    for rib in range(10):
        start = -0.78 + rib * spacing
        across = np.abs(x) - 0.10
        middle_line = start - 0.10 * np.sin(np.clip(across / 0.75, 0, 1) * np.pi) + slope * 0.35 * across
        band = inside(0.026 - np.abs(y - middle_line), 0.009)
        density += (0.055 + 0.01 * build[5]) * band * inside(across, 0.03) * body
    for side in (-1.0, 1.0):
        line = -0.72 + 0.16 * (np.abs(x) - 0.1)
        density += 0.08 * inside(0.03 - np.abs(y - line), 0.01) * inside(side * x - 0.08, 0.02) * body

    density += lungs * _vessels(generator, x, y, soft)
    if truth[0] and strength > 0:
        density += strength * _opacity(generator, x, y, fields) * np.clip(lungs, 0, 1)
    if truth[1] and strength > 0:
        density += strength * _nodules(generator, x, y, fields) * np.clip(lungs, 0, 1)
    return Drawn(_expose(generator, density, body, size), truth)


def _coordinates(generator: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """u to the right and v downward, about -1..1, turned, shifted and zoomed as films are."""
    line = np.linspace(-1, 1, size, dtype="float32")
    v, u = np.meshgrid(line, line, indexing="ij")
    angle = math.radians(generator.normal(0, 2.0))
    zoom = 1.0 + generator.normal(0, 0.07)
    u, v = u * zoom + generator.normal(0, 0.04), v * zoom + generator.normal(0, 0.04)
    return u * math.cos(angle) - v * math.sin(angle), u * math.sin(angle) + v * math.cos(angle)


def _vessels(generator: np.random.Generator, x: np.ndarray, y: np.ndarray, soft: float) -> np.ndarray:
    """Branching shadows that fan out from the hilum of each lung, and a fine mottle."""
    total = np.zeros_like(x)
    for side in (-1.0, 1.0):
        for _ in range(7):
            angle = generator.uniform(-1.3, 1.3)
            dx, dy = side * math.cos(angle), math.sin(angle)
            px, py = x - side * 0.16, y - 0.02
            along = px * dx + py * dy
            away = px * dy - py * dx - generator.normal(0, 0.12) * along**2
            width = 0.022 * np.clip(1 - along / 0.7, 0.15, 1)
            total += (
                0.075
                * np.exp(-0.5 * (away / width) ** 2)
                * (along > 0)
                * np.exp(-np.clip(along, 0, 3) / 0.35)
            )
    coarse = _smooth_noise(generator, x.shape[0], max(6, int(14 * min(soft, 1.0) + 4)))
    return total + 0.03 * coarse


def _opacity(
    generator: np.random.Generator, x: np.ndarray, y: np.ndarray, fields: Sequence[np.ndarray]
) -> np.ndarray:
    """A cloud of soft spots somewhere in one lung, where there is lung to see it against."""
    cx, cy = _place(generator, x, y, fields[int(generator.integers(2))])
    cloud = np.zeros_like(x)
    for _ in range(int(generator.integers(5, 9))):
        sx, sy = cx + generator.normal(0, 0.07), cy + generator.normal(0, 0.07)
        radius = generator.uniform(0.035, 0.07)
        cloud += generator.uniform(0.5, 1.0) * np.exp(-0.5 * ((x - sx) ** 2 + (y - sy) ** 2) / radius**2)
    return 0.36 * np.tanh(1.1 * cloud)


def _nodules(
    generator: np.random.Generator, x: np.ndarray, y: np.ndarray, fields: Sequence[np.ndarray]
) -> np.ndarray:
    """Three to six small round shadows with a clear edge, in both lungs."""
    total = np.zeros_like(x)
    for number in range(int(generator.integers(3, 7))):
        cx, cy = _place(generator, x, y, fields[number % 2])
        distance = np.sqrt((x - cx) ** 2 + (y - cy) ** 2)
        total += 0.5 - 0.5 * np.tanh((distance - generator.uniform(0.03, 0.045)) / 0.014)
    return 0.20 * np.clip(total, 0, 1)


def _place(
    generator: np.random.Generator, x: np.ndarray, y: np.ndarray, field: np.ndarray
) -> tuple[float, float]:
    """A point inside a lung, clear of the heart and the rim."""
    places = np.flatnonzero((field > 0.8) & (np.abs(x) < 0.62) & (np.abs(x) > 0.24))
    middle = places[int(generator.integers(len(places)))]
    return float(x.ravel()[middle]), float(y.ravel()[middle])


def _smooth_noise(generator: np.random.Generator, size: int, cells: int) -> np.ndarray:
    """Noise of unit spread with about ``cells`` bumps across, by linear interpolation."""
    coarse = generator.normal(size=(cells, cells)).astype("float32")
    at = np.linspace(0, cells - 1, size, dtype="float32")
    low = np.minimum(at.astype(int), cells - 2)
    share = at - low
    rows = coarse[low] * (1 - share)[:, None] + coarse[low + 1] * share[:, None]
    return rows[:, low] * (1 - share) + rows[:, low + 1] * share


def _expose(generator: np.random.Generator, density: np.ndarray, body: np.ndarray, size: int) -> np.ndarray:
    """The film of a density: haze, the maker's curve, noise, collimation, a side marker; then mean and contrast."""
    film = density + 0.05 * _smooth_noise(generator, size, 3) * body
    film += generator.uniform(0.008, 0.02) * generator.standard_normal(film.shape, "float32")
    film = (film - film.mean()) / film.std()
    film = np.tanh(film * generator.uniform(0.45, 0.65)) / generator.uniform(0.9, 1.1)
    inside = np.ones_like(film, dtype=bool)
    if generator.random() < 0.3:
        border = [int(size * share) for share in generator.uniform(0.0, 0.06, 4)]
        inside[: border[0]] = inside[size - border[1] :] = False
        inside[:, : border[2]] = inside[:, size - border[3] :] = False
    # The same mean and spread whatever was drawn, then one's own by chance: both say nothing.
    film = (film - film[inside].mean()) / film[inside].std()
    film = np.clip(generator.uniform(0.42, 0.56) + generator.uniform(0.17, 0.23) * film, 0, 1)
    film[~inside] = 0.0
    mark, side = max(3, size // 26), generator.random() < 0.5
    top, left = int(size * 0.06), int(size * (0.05 if side else 0.91))
    film[top : top + mark, left : left + max(2, mark // 3)] = 0.97
    film[top + mark - max(2, mark // 3) : top + mark, left : left + mark] = 0.97
    return film.astype("float32")


def _write_png(path: Path, drawn: Drawn, bits: int) -> None:
    from PIL import Image

    values = np.rint(drawn.pixels.astype("float64") * (2**bits - 1))
    buffer = io.BytesIO()
    Image.fromarray(values.astype("uint16" if bits == 16 else "uint8")).save(buffer, "PNG")
    path.write_bytes(buffer.getvalue())


def _write_dicom(path: Path, drawn: Drawn, patient: int, number: int, seed: int) -> None:
    """A true Digital X-Ray file: 12 bits, every other one MONOCHROME1, with rescale and window."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import UID, ExplicitVRLittleEndian, generate_uid

    def uid(*parts: Any) -> Any:
        return generate_uid(prefix="2.25.", entropy_srcs=[str(part) for part in ("casebook", seed, *parts)])

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = UID("1.2.840.10008.5.1.4.1.1.1.1")  # Digital X-Ray, for presentation
    meta.MediaStorageSOPInstanceUID = uid("film", number)
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.ImplementationClassUID = UID("2.25.1")
    dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID = meta.MediaStorageSOPClassUID
    dataset.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = uid("study", number), uid("series", number)
    dataset.PatientID, dataset.PatientName = _patient(seed, patient), "SYNTHETIC^FILM"
    dataset.PatientBirthDate = ""
    dataset.Modality, dataset.BodyPartExamined, dataset.ViewPosition = "DX", "CHEST", "PA"
    dataset.SeriesDescription = "Casebook synthetic film"
    dataset.ImageComments = COMMENT
    inverse = number % 2 == 1
    shown = 1.0 - drawn.pixels if inverse else drawn.pixels
    # Rescale and window differ by file, as makers' do; read in the right order they cancel out.
    slope, intercept = (1.0, 0.0) if number % 3 else (2.0, -200.0)
    stored = np.rint(shown.astype("float64") * 4095).astype("<u2")
    dataset.Rows, dataset.Columns = stored.shape
    dataset.SamplesPerPixel, dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 1, 16, 12, 11
    dataset.PixelRepresentation = 0
    dataset.PhotometricInterpretation = "MONOCHROME1" if inverse else "MONOCHROME2"
    dataset.PresentationLUTShape = "INVERSE" if inverse else "IDENTITY"
    dataset.RescaleSlope, dataset.RescaleIntercept, dataset.RescaleType = str(slope), str(intercept), "US"
    dataset.WindowCenter = str(2047.5 * slope + intercept + 0.5)
    dataset.WindowWidth = str(4095 * slope + 1)
    dataset.PixelData = stored.tobytes()
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    path.write_bytes(buffer.getvalue())
