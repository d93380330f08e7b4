"""One film in memory, whatever file it came from; and the checks that hold for every kind."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from domains.xray.config import FilmSection

DICOM_SUFFIXES = (".dcm", ".dicom", ".ima")
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg")


class Unreadable(Exception):
    """This file cannot be used; the text says why and never holds anything from the file that identifies."""


class NotAChestFilm(Unreadable):
    """The file reads well and shows something else."""


@dataclass(frozen=True)
class Film:
    """A film as a person would see it on a light box.

    Attributes:
        pixels: float32 ``[height, width]`` in 0..1; air is dark (0), bone is bright.
        patient: The patient's key as the file states it. Never leaves ingest.
        facts: Of the acquisition, e.g. ``{"format": "DICOM", "bits": 12}``; nothing that identifies.
        flags: What a reader should know of the quality, e.g. ``"body part not stated"``.
        synthetic: The file says that it was drawn.
    """

    pixels: np.ndarray
    patient: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    synthetic: bool = False


def read(path: Path, settings: FilmSection) -> Film:
    """The film in ``path``, checked to be one that may be scored.

    Raises:
        Unreadable: With the reason, fit for a report.
    """
    from domains.xray import dicom, picture

    with contextlib.suppress(OSError):  # the reader says why
        if path.stat().st_size == 0:
            raise Unreadable("an empty file")
    film = dicom.read(path, settings) if is_dicom(path) else picture.read(path)
    return check(film, settings)


def is_dicom(path: Path) -> bool:
    """Whether ``path`` is a DICOM file, by its suffix or by the four letters at byte 128."""
    if path.suffix.lower() in DICOM_SUFFIXES:
        return True
    if path.suffix.lower() in PICTURE_SUFFIXES:
        return False
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def check(film: Film, settings: FilmSection) -> Film:
    """Size and content checks that need no header.

    Raises:
        NotAChestFilm: Too small, too oblong, or without any content.
    """
    height, width = film.pixels.shape
    if min(height, width) < settings.smallest_side:
        raise NotAChestFilm(f"only {height} x {width} pixels, at least {settings.smallest_side} expected")
    aspect = max(height, width) / min(height, width)
    if aspect > settings.largest_aspect:
        raise NotAChestFilm(
            f"{height} x {width} pixels, {aspect:.1f} times as long as wide: not the shape of a chest film"
        )
    if not np.isfinite(film.pixels).all():
        raise Unreadable("pixels that are no numbers after rescaling")
    low, high = np.percentile(film.pixels, [1, 99])
    if high - low < 1e-3:
        raise Unreadable("an empty picture: every pixel has the same value")
    flags = list(film.flags)
    saturated = float(np.mean((film.pixels <= 0) | (film.pixels >= 1)))
    if saturated > 0.5:
        flags.append(f"{saturated:.0%} of the pixels are saturated")
    rim = np.concatenate(
        [film.pixels[:, : width // 20 + 1].ravel(), film.pixels[:, -(width // 20 + 1) :].ravel()]
    )
    if np.median(rim) > np.median(film.pixels[height // 3 : -height // 3, width // 3 : -width // 3]) + 0.25:
        flags.append("brighter outside than inside: check whether it is inverted")
    return Film(film.pixels, film.patient, film.facts, tuple(flags), film.synthetic)


def prepare(pixels: np.ndarray, settings: FilmSection) -> np.ndarray:
    """A square uint16 ``[size, size]`` film; averaged when it shrinks, padded with air to a square."""
    from PIL import Image

    height, width = pixels.shape
    size = settings.size
    if settings.fit == "stretch":
        new_height, new_width = size, size
    else:
        scale = size / max(height, width)
        new_height, new_width = max(1, round(height * scale)), max(1, round(width * scale))
    small = Image.fromarray(np.ascontiguousarray(pixels, "float32"))
    # PIL widens the bilinear kernel when it shrinks, so fine detail is averaged and not skipped.
    small = small.resize((new_width, new_height), Image.Resampling.BILINEAR)
    square = np.zeros((size, size), "uint16")
    top, left = (size - new_height) // 2, (size - new_width) // 2
    values = np.clip(np.asarray(small), 0.0, 1.0) * 65535.0
    square[top : top + new_height, left : left + new_width] = np.rint(values).astype("uint16")
    return square


def pixel_hash(pixels: np.ndarray) -> str:
    """Hash of a film's content: equal for two files that show the same pixels."""
    values = np.rint(np.clip(pixels, 0, 1) * 65535).astype("<u2")
    return hashlib.sha256(repr(values.shape).encode() + values.tobytes()).hexdigest()
