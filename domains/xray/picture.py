"""Reads a radiograph from PNG or JPEG, at the depth it was saved with."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from domains.xray.film import Film, NotAChestFilm, Unreadable

_GREY = 0  # PNG's colour type


def read(path: Path) -> Film:
    """The film in a PNG or JPEG file, scaled by its bit depth: 65535 of 16 bits is 1, and so is 255 of 8.

    Raises:
        Unreadable: Damaged, cut off, or of a kind that would lose depth.
        NotAChestFilm: A colour picture.
    """
    from PIL import Image

    bits = 8
    if path.suffix.lower() == ".png":
        bits, colour = _png_header(path)
        if bits == 16 and colour != _GREY:
            raise Unreadable("a PNG of 16 bits in colour would lose its depth here; save it in grey")
    try:
        with Image.open(path) as image:
            image.load()
            pixels, flags = _grey(image)
    except Unreadable:
        raise
    except Exception as error:  # PIL raises OSError, SyntaxError, ValueError, struct.error and its own
        raise Unreadable(f"damaged or cut off ({type(error).__name__})") from None
    facts = {
        "format": path.suffix.lower().lstrip(".").upper(),
        "syntax": "",
        "photometric": "",
        "bits": bits,
        "view": "",
        "height": pixels.shape[0],
        "width": pixels.shape[1],
    }
    # PIL gives the text chunks of a PNG too; they are not looked at: free text may hold names.
    return Film(pixels, "", facts, flags)


def _grey(image: object) -> tuple[np.ndarray, tuple[str, ...]]:
    from PIL import Image

    assert isinstance(image, Image.Image)
    if image.mode in ("I;16", "I;16B", "I"):
        values = np.asarray(image).astype("float32")
        return values / np.float32(65535.0), ()
    if image.mode in ("1", "L"):
        return np.asarray(image.convert("L"), "float32") / np.float32(255.0), ()
    colours = np.asarray(image.convert("RGB"), "int16")
    differing = float(np.mean(np.ptp(colours, axis=-1) > 12))
    if differing > 0.2:
        raise NotAChestFilm(f"a colour picture: {differing:.0%} of its pixels are not grey")
    flags = ("coloured marks in the picture",) if differing > 0.001 else ()
    return colours.mean(axis=-1).astype("float32") / np.float32(255.0), flags


def _png_header(path: Path) -> tuple[int, int]:
    """(bits a channel, colour type) of a PNG file."""
    try:
        with path.open("rb") as file:
            head = file.read(26)
    except OSError as error:
        raise Unreadable(f"cannot be opened ({error.strerror})") from None
    if len(head) < 26 or head[:8] != b"\x89PNG\r\n\x1a\n":
        raise Unreadable("not a PNG file")
    _width, _height, bits, colour = struct.unpack(">IIBB", head[16:26])
    return bits, colour
