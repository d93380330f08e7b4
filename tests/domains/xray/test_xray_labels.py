"""What a source says of its films: blanks and -1 by a stated policy, errors that name the row."""

from __future__ import annotations

import numpy as np
import pytest

from domains.xray.config import LabelSection
from domains.xray.labels import list_films
from shared.errors import InputError


def table(tmp_path, text, **settings):
    (tmp_path / "labels.csv").write_text(text)
    return list_films(tmp_path, LabelSection(**settings))


ROWS = "path,patient,a,b\n1.png,P1,1,0\n2.png,P1,,-1\n3.png,P2,nan,-1.0\n4.png,P3,0.0,1.0\n"


def test_unknown_labels_are_unknown_unless_a_policy_says_otherwise(tmp_path):
    films = table(tmp_path, ROWS).films
    assert np.array_equal(
        np.stack([film.labels for film in films]),
        np.array([[1, 0], [np.nan, np.nan], [np.nan, np.nan], [0, 1]], "float32"),
        equal_nan=True,
    )
    assert [film.patient for film in films] == ["P1", "P1", "P2", "P3"]


@pytest.mark.parametrize(
    ("settings", "second"),
    [
        ({"blank": "zeros"}, [0, np.nan]),
        ({"blank": "ones", "uncertain": "zeros"}, [1, 0]),
        ({"uncertain": "zeros", "uncertain_by_label": ("b=ones",)}, [np.nan, 1]),
        ({"blank": "ones", "blank_by_label": ("a=ignore",)}, [np.nan, np.nan]),
    ],
)
def test_policies_by_label(tmp_path, settings, second):
    assert np.array_equal(table(tmp_path, ROWS, **settings).films[1].labels, second, equal_nan=True)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("path,patient,a\n1.png,P1,2\n", {"names": ("a",)}, r"row 2, column 'a'.*'2'"),
        ("path,patient,a\n1.png,P1,yes\n", {}, "no label column"),
        ("patient,a\nP1,1\n", {}, "no column of file paths"),
        ("path,a\n1.png,1\n", {"names": ("b",)}, "no label 'b'"),
        ("path,a\n1.png,1\n", {"patient_column": "who"}, "no column 'who'"),
        ("path,a\n1.png,1\n", {"blank_by_label": ("c=ones",)}, "no label 'c'"),
        ("path,a\n1.png,1\n", {"blank_by_label": ("a=maybe",)}, "LABEL=POLICY"),
        ("path,a\n1.png,1,0\n", {}, "row 2: the number of fields"),
        ("path,a\n1.png,1\n", {"patient_pattern": "("}, "no regular expression"),
        ("path,a\n1.png,1\n", {"patient_pattern": "1"}, "no group"),
        ("path,a\n", {}, "no rows"),
        ("path,a,b,a\n1.png,1,0,1\n", {}, "two columns named 'a'"),
        ("path,a,b\n" + "1.png,1,0\n" * 15 + "1.png,7,0\n", {}, r"row 17, column 'a'.*'7'"),
    ],
)
def test_wrong_tables_are_refused_with_the_place(tmp_path, text, settings, message):
    with pytest.raises(InputError, match=message) as caught:
        table(tmp_path, text, **settings)
    assert caught.value.remedy


def test_class_folders_name_the_labels_and_normal_is_none(tmp_path):
    for name in ("NORMAL/a.png", "NORMAL/b.png", "PNEUMONIA/c.png", "covid/d.png", "PNEUMONIA/.hidden.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    listing = list_films(tmp_path, LabelSection())
    assert listing.names == ("PNEUMONIA", "covid")
    assert {film.relative: film.labels.tolist() for film in listing.films} == {
        "NORMAL/a.png": [0, 0],
        "NORMAL/b.png": [0, 0],
        "PNEUMONIA/c.png": [1, 0],
        "covid/d.png": [0, 1],
    }


def test_the_tables_of_nih_are_read_as_they_come(tmp_path):
    text = "Image Index,Finding Labels,Patient ID\n1_0.png,Mass|Nodule,1\n2_0.png,No Finding,2\n"
    listing = table(tmp_path, text)
    assert listing.names == ("Mass", "Nodule")
    assert [film.labels.tolist() for film in listing.films] == [[1, 1], [0, 0]]
    assert [film.patient for film in listing.films] == ["1", "2"]


def test_the_patient_can_stand_in_the_path(tmp_path):
    films = table(tmp_path, "path,a\n00012_001.png,1\n", patient_pattern=r"^(\d+)_").films
    assert films[0].patient == "00012"


def test_folders_without_films_or_labels_are_refused(tmp_path):
    with pytest.raises(InputError, match="No film under"):
        list_films(tmp_path, LabelSection())
    (tmp_path / "a.png").touch()
    with pytest.raises(InputError, match="no labels"):
        list_films(tmp_path, LabelSection())
    with pytest.raises(InputError, match="There is no"):
        list_films(tmp_path / "missing", LabelSection())
