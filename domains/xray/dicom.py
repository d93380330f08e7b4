"""Reads a radiograph from DICOM: rescale, then window or LUT, then invert once.

The order and the formulas are those of DICOM PS3.3, C.11.1 (modality LUT), C.11.2 (VOI LUT) and
C.11.6 (presentation LUT shape). No name, birth date or other identity is read, except PatientID,
which ingest turns into a pseudonym.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.xray.config import FilmSection
from domains.xray.film import Film, NotAChestFilm, Unreadable

if TYPE_CHECKING:
    from pydicom import Dataset

# What pip installs for a family of transfer syntaxes.
_PACKAGES = {"JPEG 2000": "pylibjpeg-openjpeg", "HTJ2K": "pylibjpeg-openjpeg", "JPEG": "pylibjpeg-libjpeg"}
# The body parts of PS3.16 annex L that a misrouted radiograph shows.
_KNOWN_CODES = frozenset(
    [
        "ABDOMEN",
        "ANKLE",
        "ARM",
        "BREAST",
        "CALCANEUS",
        "CLAVICLE",
        "COCCYX",
        "CSPINE",
        "ELBOW",
        "EXTREMITY",
        "FEMUR",
        "FINGER",
        "FOOT",
        "FOREARM",
        "HAND",
        "HEAD",
        "HIP",
        "HUMERUS",
        "JAW",
        "KNEE",
        "LEG",
        "LSPINE",
        "MANDIBLE",
        "NECK",
        "PATELLA",
        "PELVIS",
        "RADIUS",
        "RIB",
        "SACRUM",
        "SCAPULA",
        "SHOULDER",
        "SKULL",
        "SPINE",
        "SSPINE",
        "THIGH",
        "THUMB",
        "TIBIA",
        "TOE",
        "TSPINE",
        "ULNA",
        "WRIST",
        "ZYGOMA",
        "RTDOSE",
        "RTIMAGE",
        "SEG",
    ]
)
_END_OF_IMAGE = b"\xff\xd9"


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block pydicom tells nothing: its warnings quote values of the header."""
    logger = logging.getLogger("pydicom")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def read(path: Path, settings: FilmSection) -> Film:
    """The film in a DICOM file.

    Raises:
        Unreadable: No pixels, cut off, a codec is missing, not a single grey frame.
        NotAChestFilm: The header states another body part or modality.
    """
    try:
        return _read(path, settings)
    except Unreadable:
        raise
    except Exception as error:  # header values are parsed when they are first looked at
        raise Unreadable(f"the header holds values that cannot be read ({type(error).__name__})") from None


def _read(path: Path, settings: FilmSection) -> Film:
    import pydicom

    try:
        dataset = pydicom.dcmread(path, force=True)
    except Exception as error:  # pydicom raises a dozen kinds on damaged headers
        raise Unreadable(f"the header cannot be read ({type(error).__name__})") from None
    if "PixelData" not in dataset:
        if "Rows" in dataset:
            raise Unreadable("cut off: the header of an image without its pixel data")
        raise Unreadable("not a DICOM image: it has no pixel data")
    flags = _check_kind(dataset, settings)
    stored = _decode(dataset)
    pixels = to_display(stored, dataset, settings)
    if _text(dataset, "BurnedInAnnotation") == "YES":
        flags.append("the header says that text is burned into the picture")
    facts = {
        "format": "DICOM",
        "syntax": _syntax_name(dataset),
        "photometric": _text(dataset, "PhotometricInterpretation"),
        "bits": int(dataset.get("BitsStored", 0) or 0),
        "view": _text(dataset, "ViewPosition"),
        "height": int(stored.shape[0]),
        "width": int(stored.shape[1]),
    }
    words = f"{dataset.get('ImageComments', '')} {dataset.get('SeriesDescription', '')}".lower()
    patient = str(dataset.get("PatientID", "") or "").strip()
    return Film(pixels, patient, facts, tuple(flags), "casebook synthetic" in words)


def to_display(stored: np.ndarray, dataset: Dataset, settings: FilmSection) -> np.ndarray:
    """Stored values ``[h, w]`` as display values in 0..1, air dark.

    Rescale (slope and intercept default to 1 and 0, each on its own), then the VOI LUT or window,
    then one inversion, in the output range: MONOCHROME1 or PresentationLUTShape INVERSE ask for
    it, and both together ask for the same one.
    """
    values, padding = _rescale(stored, dataset), _padding(stored, dataset)
    shown = _value_of_interest(values, padding, dataset, settings)
    inverse = (
        _text(dataset, "PhotometricInterpretation") == "MONOCHROME1"
        or _text(dataset, "PresentationLUTShape") == "INVERSE"
    )
    if inverse:
        shown = 1.0 - shown
    if padding is not None:
        shown = np.where(padding, 0.0, shown)
    return shown.astype("float32")


def _check_kind(dataset: Dataset, settings: FilmSection) -> list[str]:
    photometric = _text(dataset, "PhotometricInterpretation")
    if int(dataset.get("NumberOfFrames", 1) or 1) > 1:
        raise NotAChestFilm(f"{dataset.NumberOfFrames} frames, a film has one")
    if photometric not in ("MONOCHROME1", "MONOCHROME2"):
        kind = photometric if photometric.replace("_", "").isalnum() and len(photometric) < 20 else "unknown"
        raise NotAChestFilm(f"photometric interpretation {kind or 'missing'}, a film is MONOCHROME1 or 2")
    modality = _text(dataset, "Modality")
    if settings.modalities and modality and modality not in settings.modalities:
        raise NotAChestFilm(f"modality {_code(modality)}, expected {', '.join(settings.modalities)}")
    part = _text(dataset, "BodyPartExamined")
    if settings.body_parts and part and part not in settings.body_parts:
        raise NotAChestFilm(f"body part {_code(part)}, not a chest film")
    flags = []
    if not part:
        flags.append("body part not stated")
    if _text(dataset, "ViewPosition") in ("LL", "RL", "LATERAL", "LAT"):
        flags.append("lateral view")
    return flags


def _code(text: str) -> str:
    """A header's code word if it is a known one: free text may be a name, and reasons are shown."""
    return text if text in _KNOWN_CODES or (len(text) == 2 and text.isalpha()) else "(another)"


def _decode(dataset: Dataset) -> np.ndarray:
    syntax = dataset.file_meta.get("TransferSyntaxUID") if hasattr(dataset, "file_meta") else None
    if syntax is None:
        raise Unreadable("the header names no transfer syntax")
    _require_codec(syntax)
    if syntax.is_compressed and syntax.name.startswith(("JPEG", "High-Throughput JPEG")):
        _require_whole(dataset)
    elif not syntax.is_compressed:
        expected = int(dataset.Rows) * int(dataset.Columns) * int(dataset.BitsAllocated) // 8
        if len(dataset.PixelData) < expected:
            raise Unreadable(f"cut off: {len(dataset.PixelData):,} of {expected:,} bytes of pixel data")
    try:
        pixels = np.asarray(dataset.pixel_array)
    except Exception as error:  # decoders of other projects raise whatever they like
        raise Unreadable(f"pixel data of {syntax.name} cannot be decoded ({type(error).__name__})") from None
    if pixels.ndim != 2:
        raise NotAChestFilm(f"pixel data of {pixels.ndim} axes, a film has two")
    return pixels


def _require_codec(syntax: Any) -> None:
    """Refuses a transfer syntax that nothing installed here can decode, naming what to install."""
    if not syntax.is_compressed:
        return
    from pydicom.pixels import get_decoder

    try:
        decoder = get_decoder(syntax)
    except (NotImplementedError, ValueError):
        name = syntax.name if syntax.name != str(syntax) else str(syntax)[:40]
        raise NotAChestFilm(f"transfer syntax {name} is none of a still film that can be read here") from None
    if not decoder.is_available:
        wanted = syntax.name.replace("High-Throughput JPEG 2000", "HTJ2K")
        package = next((p for family, p in _PACKAGES.items() if family in wanted), "pylibjpeg[all]")
        raise Unreadable(f"no codec for the transfer syntax {syntax.name} ({syntax}): pip install {package}")


def _require_whole(dataset: Dataset) -> None:
    """A JPEG stream ends with its end marker; without it decoders fill the rest with grey."""
    from pydicom.encaps import generate_frames

    try:
        frame = next(generate_frames(dataset.PixelData, number_of_frames=1))
    except Exception as error:
        raise Unreadable(
            f"cut off: the compressed pixel data ends too early ({type(error).__name__})"
        ) from None
    if _END_OF_IMAGE not in frame.rstrip(b"\x00")[-4:]:
        raise Unreadable("cut off: the compressed picture has no end marker")


def _rescale(stored: np.ndarray, dataset: Dataset) -> np.ndarray:
    if "ModalityLUTSequence" in dataset:
        from pydicom.pixels import apply_modality_lut

        return np.asarray(apply_modality_lut(stored, dataset), "float32")
    slope = _number(dataset, "RescaleSlope", 1.0)
    intercept = _number(dataset, "RescaleIntercept", 0.0)
    if slope == 0:
        raise Unreadable("RescaleSlope is 0")
    return stored.astype("float32") * np.float32(slope) + np.float32(intercept)


def _padding(stored: np.ndarray, dataset: Dataset) -> np.ndarray | None:
    value = dataset.get("PixelPaddingValue")
    if value is None:
        return None
    limit = dataset.get("PixelPaddingRangeLimit", value)
    mask = (stored >= min(value, limit)) & (stored <= max(value, limit))
    return mask if mask.any() and not mask.all() else None


def _value_of_interest(
    values: np.ndarray, padding: np.ndarray | None, dataset: Dataset, settings: FilmSection
) -> np.ndarray:
    centers, widths = _numbers(dataset, "WindowCenter"), _numbers(dataset, "WindowWidth")
    windows = [(c, w) for c, w in zip(centers, widths, strict=False) if w >= 1]
    luts = dataset.get("VOILUTSequence") or []
    if len(luts) and (settings.prefer_lut or not windows):
        return _lookup(values, luts[min(settings.window, len(luts) - 1)])
    if windows:
        center, width = windows[min(settings.window, len(windows) - 1)]
        return window(values, center, width, _text(dataset, "VOILUTFunction") or "LINEAR")
    inside = values if padding is None else values[~padding]
    low, high = np.percentile(inside, [settings.low_percentile, settings.high_percentile])
    if high <= low:
        low, high = float(inside.min()), float(inside.max())
    return np.clip((values - low) / max(high - low, 1e-12), 0.0, 1.0)


def window(values: np.ndarray, center: float, width: float, function: str = "LINEAR") -> np.ndarray:
    """Values through a window into 0..1 (PS3.3 C.11.2.1.2 and C.11.2.1.3).

    >>> window(np.array([0.0, 50.0, 100.0]), 50.5, 101.0).round(2).tolist()
    [0.0, 0.5, 1.0]
    """
    if function == "SIGMOID":
        return 1.0 / (1.0 + np.exp(np.clip(-4.0 * (values - center) / width, -80, 80)))
    if function == "LINEAR_EXACT":
        return np.clip((values - center) / width + 0.5, 0.0, 1.0)
    if width == 1:
        return (values > center - 0.5).astype("float32")
    return np.clip((values - (center - 0.5)) / (width - 1) + 0.5, 0.0, 1.0)


def _lookup(values: np.ndarray, item: Any) -> np.ndarray:
    """Values through a VOI LUT into 0..1; below the first entry the first, above the last the last."""
    count, first, bits = (int(number) for number in item.LUTDescriptor)
    count = count or 65536
    data = item.LUTData
    if isinstance(data, bytes):
        table = np.frombuffer(data, "<u1" if len(data) == count else "<u2").astype("float32")
    else:
        table = np.asarray(data, "float32")
    if len(table) < count:
        raise Unreadable(f"the VOI LUT has {len(table)} of {count} entries")
    if first >= 2**15 and float(values.min()) < 0:
        first -= 2**16  # the descriptor is read as unsigned where the pixels are signed
    index = np.clip(np.rint(values).astype("int64") - first, 0, count - 1)
    return np.clip(table[index] / (2**bits - 1), 0.0, 1.0)


def _syntax_name(dataset: Dataset) -> str:
    return str(dataset.file_meta.TransferSyntaxUID.name)


def _text(dataset: Dataset, keyword: str) -> str:
    return str(dataset.get(keyword, "") or "").strip().upper()


def _number(dataset: Dataset, keyword: str, default: float) -> float:
    numbers = _numbers(dataset, keyword)
    return numbers[0] if numbers else default


def _numbers(dataset: Dataset, keyword: str) -> list[float]:
    value = dataset.get(keyword)
    if value is None or value == "":
        return []
    try:
        several = value if hasattr(value, "__iter__") and not isinstance(value, str) else [value]
        return [float(item) for item in several]
    except (TypeError, ValueError):
        raise Unreadable(f"{keyword} is not a number") from None
