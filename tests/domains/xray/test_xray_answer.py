"""One film a line: by path or in base64, answered without anything that identifies."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from PIL import Image

from domains.xray import domain
from domains.xray.config import XrayConfig
from shared.contract import Published
from shared.errors import InputError

NAME, IDENTITY = "Quixotic^Wilhelmina", "HOSP-889977"
DECISION = {
    "labels": ["opacity", "nodules"],
    "temperature": [1.0, 1.0],
    "intercept": [0.0, 0.0],
    "threshold": [0.5, 0.2],
    "sensitivity": 0.9,
}


@pytest.fixture
def answer(monkeypatch, tmp_path):
    """Of a stand-in for the network: the brighter a film, the likelier the first label."""
    from shared.runs.predictor import Predictor

    def say(x):
        assert x.shape == (1, 32, 32, 1)
        mean = x.mean(axis=(1, 2, 3))
        return np.stack([mean, np.full_like(mean, 0.001)], axis=1)

    monkeypatch.setattr(Predictor, "load", classmethod(lambda cls, path, *, warm: say))
    config = XrayConfig.model_validate({"film": {"size": 32}})
    published = Published(tmp_path, DECISION, config.model_dump(), "xray v1 (champion)")
    return domain.answerer(published, XrayConfig()).answer


@pytest.fixture
def film(make_dicom, ramp, tmp_path):
    def make(name=f"{NAME}.dcm", values=ramp, **header):
        identity = {"PatientName": NAME, "PatientID": IDENTITY, "WindowCenter": "2048", "WindowWidth": "4096"}
        return make_dicom(name, values, tmp_path / NAME, **{**identity, **header})

    return make


def test_findings_and_flags_and_nothing_that_identifies(answer, film, ramp):
    dark = answer({"path": str(film())})
    bright = answer({"path": str(film("bright.dcm", 3000 + ramp // 4, BodyPartExamined=None))})
    assert set(dark) == {"film", "above_operating_point", "findings", "quality"}
    assert dark["findings"]["opacity"]["above_operating_point"] is (
        dark["findings"]["opacity"]["probability"] >= 0.5
    )
    assert bright["above_operating_point"] is True
    assert bright["findings"]["opacity"]["probability"] > dark["findings"]["opacity"]["probability"]
    assert bright["findings"]["nodules"] == {"probability": 0.001, "above_operating_point": False}
    assert "body part not stated" in bright["quality"]
    assert dark["film"] != bright["film"]
    for secret in (NAME, "Quixotic", IDENTITY):
        assert secret not in json.dumps([dark, bright])


def test_the_file_itself_is_answered_as_its_path_is(answer, film, ramp, tmp_path):
    picture = tmp_path / "film.png"
    Image.fromarray((ramp * 16).astype("uint16")).save(picture)
    photograph = tmp_path / "film.jpg"
    Image.fromarray((ramp // 16).astype("uint8")).save(photograph)
    for path in (film(), picture, photograph):
        content = base64.b64encode(path.read_bytes()).decode()
        assert answer({"film": content}) == answer({"path": str(path)})


def test_films_in_base64_leave_nothing_behind(answer, film, tmp_path, monkeypatch):
    import tempfile

    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    answer({"film": base64.b64encode(film().read_bytes()).decode()})
    with pytest.raises(InputError):
        answer({"film": base64.b64encode(b"no film").decode()})
    assert list(place.iterdir()) == []


def test_what_cannot_be_answered_is_told_without_the_path(answer, film, tmp_path):
    film()
    for line, message in (
        ({}, 'either "path" or "film"'),
        ({"path": 5}, 'either "path" or "film"'),
        ({"path": "a", "film": "b"}, 'either "path" or "film"'),
        ({"path": None, "film": None}, 'either "path" or "film"'),
        ({"film": "not base64!"}, "not base64"),
        ({"film": "é"}, "not base64"),
        ({"film": ""}, "set aside: an empty file"),
        ({"film": base64.b64encode(b"text").decode()}, "set aside: "),
        ({"path": str(tmp_path / NAME / "gone.dcm")}, "set aside: no such file"),
        ({"path": str(tmp_path / NAME)}, "set aside: no such file"),
        ({"path": f"~{NAME}/film.dcm"}, "cannot be read"),
        ({"path": str(tmp_path / (NAME * 40))}, "cannot be read"),
        ({"path": f"{NAME}\0.dcm"}, "no such file"),
        ({"path": str(film("knee.dcm", BodyPartExamined="KNEE"))}, "set aside: body part KNEE"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            answer(line)
        assert caught.value.remedy, line
        assert "Quixotic" not in str(caught.value)
