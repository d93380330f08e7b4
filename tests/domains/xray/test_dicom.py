"""Films come out as a person would see them, or are set aside with a reason."""

from __future__ import annotations

import numpy as np
import pydicom
import pydicom.pixels
import pytest
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset
from pydicom.uid import JPEG2000Lossless, RLELossless

from domains.xray import dicom, film
from domains.xray.config import FilmSection

SETTINGS = FilmSection()
WHOLE = {"WindowCenter": "2048", "WindowWidth": "4096"}


def read(path, **settings):
    with dicom.quiet():
        return film.read(path, FilmSection(**settings))


@pytest.mark.parametrize(
    ("photometric", "shape", "rises"),
    [
        ("MONOCHROME2", None, True),
        ("MONOCHROME2", "IDENTITY", True),
        ("MONOCHROME1", None, False),
        ("MONOCHROME1", "INVERSE", False),  # both ask for the same one inversion
        ("MONOCHROME2", "INVERSE", False),
    ],
)
def test_inverted_once_whoever_asks_for_it(make_dicom, ramp, photometric, shape, rises):
    path = make_dicom(
        "film.dcm", ramp, PhotometricInterpretation=photometric, PresentationLUTShape=shape, **WHOLE
    )
    pixels = read(path).pixels
    expected = ramp / 4095.0
    assert pixels == pytest.approx(expected if rises else 1 - expected, abs=1e-3)


def test_rescale_then_window_then_inversion(make_dicom, ramp):
    """By hand: 1000 * 2 - 500 = 1500 lies in the middle of the window 1500 +- 500; inverted, 1250 is 0.75."""
    stored = np.where(ramp > 2000, 1000, 875).astype("uint16")
    path = make_dicom(
        "film.dcm",
        stored,
        PhotometricInterpretation="MONOCHROME1",
        RescaleSlope="2",
        RescaleIntercept="-500",
        WindowCenter="1500.5",
        WindowWidth="1001",
    )
    pixels = read(path).pixels
    assert np.unique(pixels.round(6)).tolist() == [0.5, 0.75]


@pytest.mark.parametrize(
    ("slope", "intercept", "middle"), [(None, None, 0.5), ("2", None, 1.0), (None, "-1000", 0.255)]
)
def test_a_missing_slope_or_intercept_is_identity(make_dicom, ramp, slope, intercept, middle):
    path = make_dicom("film.dcm", ramp, RescaleSlope=slope, RescaleIntercept=intercept, **WHOLE)
    value = read(path).pixels[0, 32]
    assert value == pytest.approx(middle, abs=0.02)


def test_the_first_of_several_windows_unless_another_is_asked_for(make_dicom, ramp):
    path = make_dicom("film.dcm", ramp, WindowCenter=["1000", "3000"], WindowWidth=["500", "500"])
    assert read(path).pixels[0, 40] == 1.0
    assert read(path, window=1).pixels[0, 40] == 0.0
    assert read(path, window=9).pixels[0, 40] == 0.0  # there are only two: the last


def test_a_lut_wins_over_a_window(make_dicom, ramp):
    item = Dataset()
    item.LUTDescriptor = [4096, 0, 8]
    item.LUTData = np.repeat([10, 200], 2048).astype("<u2").tobytes()
    path = make_dicom("film.dcm", ramp, VOILUTSequence=[item], **WHOLE)
    assert np.unique(read(path).pixels).tolist() == pytest.approx([10 / 255, 200 / 255])
    assert len(np.unique(read(path, prefer_lut=False).pixels)) == 64


def test_without_window_the_films_own_range_is_shown(make_dicom, ramp):
    path = make_dicom("film.dcm", (1000 + ramp // 8).astype("uint16"))
    pixels = read(path, low_percentile=0, high_percentile=100).pixels
    assert (pixels.min(), pixels.max()) == (0.0, 1.0)


def test_padding_is_air_and_no_part_of_the_range(make_dicom, ramp):
    stored = (1000 + ramp // 8).astype("uint16")
    stored[:, :8] = 4000
    path = make_dicom("film.dcm", stored, PixelPaddingValue=4000, PhotometricInterpretation="MONOCHROME1")
    pixels = read(path).pixels
    assert (pixels[:, :8] == 0).all()
    assert pixels[:, 8].mean() > 0.95
    assert pixels[:, -1].mean() < 0.05


def test_window_functions_by_hand():
    values = np.array([-10.0, 0.0, 10.0])
    assert dicom.window(values, 0, 20, "LINEAR_EXACT").tolist() == [0.0, 0.5, 1.0]
    assert dicom.window(values, 0, 20, "SIGMOID") == pytest.approx(1 / (1 + np.exp([2.0, 0.0, -2.0])))


def test_cut_off_pixel_data_is_set_aside_and_never_filled(make_dicom, ramp):
    path = make_dicom("film.dcm", ramp, PixelData=ramp.astype("<u2").tobytes()[:5000])
    with pytest.raises(film.Unreadable, match=r"cut off: 5,000 of 8,192 bytes"):
        read(path)


@pytest.mark.parametrize("name", ["film.dcm", "film.png", "film"])
def test_an_empty_file_is_called_so(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(film.Unreadable, match="an empty file"):
        film.read(tmp_path / name, FilmSection())


def test_a_cut_off_file_is_set_aside(make_dicom, ramp):
    path = make_dicom("film.dcm", ramp)
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(film.Unreadable, match="cut off"):
        read(path)


def _chest(name, tmp_path, **header):
    """One of pydicom's own compressed files, made to say that it is a chest film."""
    dataset = pydicom.dcmread(get_testdata_file(name, download=False))
    dataset.Modality, dataset.BodyPartExamined, dataset.PhotometricInterpretation = (
        "DX",
        "CHEST",
        "MONOCHROME2",
    )
    for keyword, value in header.items():
        setattr(dataset, keyword, value)
    path = tmp_path / "film.dcm"
    dataset.save_as(path)
    return path


@pytest.mark.parametrize(
    "name",
    ["MR_small.dcm", "MR_small_RLE.dcm", "MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm"],
)
def test_every_lossless_syntax_gives_the_same_film(name, tmp_path):
    one = read(_chest("MR_small.dcm", tmp_path)).pixels
    other = read(_chest(name, tmp_path)).pixels
    assert np.array_equal(one, other)


def test_a_compressed_picture_without_its_end_is_set_aside(tmp_path):
    path = _chest("MR_small_jp2klossless.dcm", tmp_path)
    dataset = pydicom.dcmread(path)
    frame = next(pydicom.encaps.generate_frames(dataset.PixelData, number_of_frames=1))
    dataset.PixelData = pydicom.encaps.encapsulate([frame[: len(frame) // 2]])
    dataset.save_as(path)
    with pytest.raises(film.Unreadable, match="no end marker"):
        read(path)


@pytest.mark.parametrize(
    ("name", "syntax", "package"),
    [
        ("MR_small_jp2klossless.dcm", "JPEG 2000", "pylibjpeg-openjpeg"),
        ("MR_small_jpeg_ls_lossless.dcm", "JPEG-LS", "pylibjpeg-libjpeg"),
    ],
)
def test_a_missing_codec_is_named_with_its_package(tmp_path, monkeypatch, name, syntax, package):
    class Missing:
        is_available = False

    path = _chest(name, tmp_path)
    monkeypatch.setattr(pydicom.pixels, "get_decoder", lambda uid: Missing())
    with pytest.raises(film.Unreadable, match=f"{syntax}.*pip install {package}"):
        read(path)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"BodyPartExamined": "KNEE"}, "body part KNEE"),
        ({"Modality": "CT"}, "modality CT"),
        ({"NumberOfFrames": 12}, "12 frames"),
        ({"PhotometricInterpretation": "RGB"}, "photometric interpretation RGB"),
    ],
)
def test_what_is_no_chest_film_is_set_aside_by_its_header(make_dicom, ramp, header, reason):
    with pytest.raises(film.NotAChestFilm, match=reason):
        read(make_dicom("film.dcm", ramp, **header))


@pytest.mark.parametrize("shape", [(64, 150), (40, 40)])
def test_what_is_no_chest_film_is_set_aside_by_its_size(make_dicom, shape):
    stored = np.arange(shape[0] * shape[1], dtype="uint16").reshape(shape) % 4096
    with pytest.raises(film.NotAChestFilm, match="pixels"):
        read(make_dicom("film.dcm", stored, BodyPartExamined=None))


def test_reasons_hold_no_free_text_of_the_header(make_dicom, ramp):
    with pytest.raises(film.NotAChestFilm) as caught:
        read(make_dicom("film.dcm", ramp, BodyPartExamined="SMITH"))
    assert "SMITH" not in str(caught.value)


def test_garbage_and_headers_that_lie_are_set_aside(tmp_path, make_dicom, ramp):
    (tmp_path / "noise.dcm").write_bytes(np.random.default_rng(0).bytes(3000))
    (tmp_path / "empty.dcm").write_bytes(b"")
    lying = make_dicom("lying.dcm", ramp, Rows=6000)
    for path in (tmp_path / "noise.dcm", tmp_path / "empty.dcm", lying):
        with pytest.raises(film.Unreadable):
            read(path)


def test_a_flat_picture_is_set_aside(make_dicom, ramp):
    with pytest.raises(film.Unreadable, match="same value"):
        read(make_dicom("film.dcm", np.full_like(ramp, 77), **WHOLE))


def test_facts_hold_nothing_that_identifies(make_dicom, ramp):
    path = make_dicom(
        "film.dcm", ramp, PatientName="Doe^Jane", PatientBirthDate="19470312", InstitutionName="St Elsewhere"
    )
    one = read(path)
    assert one.patient == "P1"  # the one thing that ingest needs, and turns into a pseudonym
    assert not {"Doe", "Jane", "19470312", "Elsewhere"} & set(" ".join(map(str, one.facts.values())).split())


def test_known_syntaxes_are_what_the_names_say():
    assert JPEG2000Lossless.name.startswith("JPEG 2000")
    assert RLELossless.is_compressed
