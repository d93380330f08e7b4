"""PNG at the depth it was saved with."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from domains.xray import film, picture
from domains.xray.config import FilmSection


def test_16_bits_stay_16_bits(tmp_path):
    values = np.arange(64 * 64, dtype="uint16").reshape(64, 64) * 16
    Image.fromarray(values).save(tmp_path / "film.png")
    one = picture.read(tmp_path / "film.png")
    assert len(np.unique(one.pixels)) == 4096
    assert np.array_equal(np.rint(one.pixels * 65535).astype("uint16"), values)
    assert one.facts["bits"] == 16


def test_depth_survives_preparation(tmp_path):
    """Twelve bits in the lowest quarter of sixteen: eight bits would leave 64 levels."""
    values = np.arange(128 * 128, dtype="uint16").reshape(128, 128)
    Image.fromarray(values).save(tmp_path / "film.png")
    prepared = film.prepare(picture.read(tmp_path / "film.png").pixels, FilmSection(size=128))
    assert np.array_equal(prepared, values)


def test_8_bits_and_grey_saved_as_colour(tmp_path):
    values = np.tile(np.arange(0, 256, 4, dtype="uint8"), (64, 1))
    Image.fromarray(values).save(tmp_path / "grey.png")
    Image.fromarray(np.stack([values] * 3, axis=-1)).save(tmp_path / "rgb.png")
    grey, colour = picture.read(tmp_path / "grey.png"), picture.read(tmp_path / "rgb.png")
    assert grey.pixels == pytest.approx(values / 255.0)
    assert colour.pixels == pytest.approx(values / 255.0)
    assert colour.flags == ()


def test_colour_pictures_and_marks(tmp_path):
    values = np.zeros((64, 64, 3), "uint8")
    values[..., 0] = 200
    Image.fromarray(values).save(tmp_path / "red.png")
    with pytest.raises(film.NotAChestFilm, match="colour picture"):
        picture.read(tmp_path / "red.png")
    marked = np.full((64, 64, 3), 90, "uint8")
    marked[:4, :4] = (255, 0, 0)
    Image.fromarray(marked).save(tmp_path / "marked.png")
    assert picture.read(tmp_path / "marked.png").flags == ("coloured marks in the picture",)


def test_damaged_pictures_are_set_aside(tmp_path):
    values = np.random.default_rng(0).integers(0, 255, (64, 64), "uint8")
    Image.fromarray(values).save(tmp_path / "film.png")
    whole = (tmp_path / "film.png").read_bytes()
    (tmp_path / "half.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "empty.png").write_bytes(b"")
    for name in ("half.png", "text.png", "empty.png"):
        with pytest.raises(film.Unreadable):
            picture.read(tmp_path / name)


def test_a_16_bit_colour_png_is_refused_rather_than_flattened(tmp_path):
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\x01\x02" * 3 * 64 for _ in range(64))
    header = struct.pack(">IIBBBBB", 64, 64, 16, 2, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    (tmp_path / "deep.png").write_bytes(png)
    with pytest.raises(film.Unreadable, match="lose its depth"):
        picture.read(tmp_path / "deep.png")


@pytest.mark.parametrize(
    ("shape", "where"), [((64, 100), (slice(0, 11), slice(None))), ((100, 64), (slice(None), slice(0, 11)))]
)
def test_padding_keeps_proportions_and_adds_air(shape, where):
    prepared = film.prepare(np.ones(shape, "float32"), FilmSection(size=64))
    assert prepared.shape == (64, 64)
    assert (prepared[where] == 0).all()
    assert prepared[32, 32] == 65535
