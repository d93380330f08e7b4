"""The worklist: most urgent first, every film on it, nothing that identifies."""

from __future__ import annotations

import csv
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from domains.xray import domain, explain, predict, synthetic
from domains.xray.config import XrayConfig
from shared import files
from shared.contract import Published
from shared.errors import InputError

NAME, IDENTITY, BIRTH = "Quixotic^Wilhelmina", "HOSP-889977", "19470312"
DECISION = {
    "labels": ["opacity", "nodules"],
    "temperature": [1.0, 1.0],
    "intercept": [0.0, 0.0],
    "threshold": [0.5, 0.2],
    "sensitivity": 0.9,
}


class Brightness:
    """Stands for an exported model: the brighter a film, the likelier the first label."""

    seen: list[tuple[int, ...]]

    def __init__(self):
        self.seen = []

    def __call__(self, x):
        self.seen.append(x.shape)
        mean = x.mean(axis=(1, 2, 3))
        return np.stack([mean, np.full_like(mean, 0.001)], axis=1)


@pytest.fixture
def model(tmp_path, monkeypatch):
    from shared.runs.predictor import Predictor

    stand_in = Brightness()
    monkeypatch.setattr(Predictor, "load", classmethod(lambda cls, path, **how: stand_in))
    config = XrayConfig.model_validate({"film": {"size": 32}, "read": {"overlays": 0}})
    published = Published(tmp_path / "model", DECISION, config.model_dump(), "xray v1 (champion)")
    return published, config, stand_in


@pytest.fixture
def queue(tmp_path, make_dicom, ramp):
    folder = tmp_path / "queue"
    for number in range(40):
        values = (200 + number * 50 + ramp // 4).astype("uint16")
        make_dicom(
            f"{NAME}-{number}.dcm",
            values,
            folder,
            PatientName=NAME,
            PatientID=f"{IDENTITY}-{number}",
            PatientBirthDate=BIRTH,
            WindowCenter="2048",
            WindowWidth="4096",
        )
    make_dicom(f"knee of {NAME}.dcm", ramp, folder, BodyPartExamined="KNEE", PatientName=NAME)
    (folder / f"broken {NAME}.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return folder


def lines(summary):
    with summary.output.open(newline="") as file:
        return list(csv.DictReader(file))


def test_most_urgent_first_and_every_film_is_on_it(model, queue, tmp_path):
    published, config, stand_in = model
    summary = domain.predict(published, str(queue), config, tmp_path / "out")
    rows = lines(summary)
    assert len(rows) == 42
    assert summary.scored == 40
    scored = [float(row["probability opacity"]) for row in rows[:40]]
    assert scored == sorted(scored, reverse=True)
    assert [row["called opacity"] for row in rows[:40]] == ["yes" if p >= 0.5 else "no" for p in scored]
    assert {row["status"] for row in rows[40:]} == {"set aside"}
    assert "body part KNEE" in {row["reason"].split(",")[0] for row in rows[40:]}
    assert len(summary.quarantine) == 2
    assert rows[0]["model"] == "xray v1 (champion)"
    assert [shape[0] for shape in stand_in.seen] == [32, 8], "in batches, every good film once"


def test_nothing_that_identifies_is_in_any_output(model, queue, tmp_path):
    published, config, _ = model
    out = tmp_path / "out"
    summary = domain.predict(published, str(queue), config, out)
    files.write_json(out / "summary.json", asdict(summary))
    text = "".join(
        path.read_bytes().decode("latin-1") + path.name for path in out.rglob("*") if path.is_file()
    )
    for secret in (NAME, "Quixotic", "Wilhelmina", IDENTITY, BIRTH):
        assert secret not in text, secret


def test_paths_are_given_only_when_asked_for(model, queue, tmp_path):
    published, config, _ = model
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"file_names": "path"})})
    rows = lines(domain.predict(published, str(queue), config, tmp_path / "out"))
    assert {row["file"] for row in rows} == {path.name for path in queue.iterdir()}


def test_films_are_read_as_in_training_whatever_the_command_says(model, queue, tmp_path):
    published, config, stand_in = model
    other = config.model_copy(update={"film": config.film.model_copy(update={"size": 64})})
    domain.predict(published, str(queue), other, tmp_path / "out")
    assert stand_in.seen[0] == (32, 32, 32, 1)


def test_a_queue_without_a_single_good_film_still_makes_a_list(model, tmp_path, make_dicom, ramp):
    published, config, _ = model
    make_dicom("knee.dcm", ramp, tmp_path / "queue", BodyPartExamined="KNEE")
    summary = domain.predict(published, str(tmp_path / "queue"), config, tmp_path / "out")
    assert summary.scored == 0
    assert len(lines(summary)) == 1
    assert "No film could be scored" in summary.headline


def test_one_film_a_list_of_paths_and_nothing_at_all(model, queue, tmp_path):
    published, config, _ = model
    one = sorted(queue.glob("Q*.dcm"))[0]
    assert domain.predict(published, str(one), config, tmp_path / "a").scored == 1
    (queue / "list.csv").write_text(f"path\n{one.name}\ngone.dcm\n")
    summary = domain.predict(published, str(queue / "list.csv"), config, tmp_path / "b")
    assert (summary.scored, [item.reason for item in summary.quarantine]) == (1, ["no such file"])
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(InputError):
            domain.predict(published, str(nothing), config, tmp_path / "c")


def test_a_model_of_synthetic_films_says_so_on_every_line(model, tmp_path):
    published, config, _ = model
    published = Published(published.path, DECISION, published.config, published.label, synthetic=True)
    summary = domain.predict(published, "synthetic", config, tmp_path / "out")
    assert all("synthetic" in row["model"] for row in lines(summary))
    assert "beware" in summary.facts
    assert {row["file"][:5] for row in lines(summary)} == {"film-"}


def test_memory_does_not_grow_with_the_queue(model, queue, monkeypatch, tmp_path):
    """At most one chunk of films is held at a time."""
    published, config, _ = model
    alive: list[int] = []
    real = predict.score

    def watched(good, *rest):
        alive.append(len(good))
        return real(good, *rest)

    monkeypatch.setattr(predict, "score", watched)
    domain.predict(published, str(queue), config, tmp_path / "out")
    assert max(alive) <= 32


def test_grad_cam_finds_the_region_that_decides(tmp_path):
    """A network of one 1 x 1 convolution, whose label is a bright spot: the spot must be warm."""
    import keras

    film = keras.Input((32, 32, 1), name="film")
    maps = keras.layers.Conv2D(2, 1, name="top_conv", use_bias=False)(film)
    body = keras.Model(film, maps, name="body")
    body.get_layer("top_conv").set_weights([np.array([[[[1.0, -1.0]]]])])
    x = keras.Input((32, 32, 1))
    pooled = keras.layers.GlobalAveragePooling2D(name="pool")(body(x))
    network = keras.Model(x, keras.layers.Dense(1, activation="sigmoid", name="labels")(pooled))
    network.get_layer("labels").set_weights([np.array([[1.0], [0.0]]), np.zeros(1)])
    picture = np.zeros((1, 32, 32, 1), "float32")
    picture[0, 20:24, 5:9] = 1.0
    heat = explain.grad_cam(network, picture, 0)[0]
    assert np.unravel_index(heat.argmax(), heat.shape)[0] in range(20, 24)
    assert heat.max() == 1
    assert heat[:16].max() == 0
    assert explain.grad_cam(network, np.zeros_like(picture), 0).max() == 0
    explain.overlay(picture[0, ..., 0], heat, "p-1/f-1", tmp_path / "overlay.png")
    with Image.open(tmp_path / "overlay.png") as drawn:
        assert drawn.size[0] > 100


def test_synthetic_films_are_drawn_for_other_patients_than_in_training():
    """Predict draws with another seed; the films differ pixel by pixel."""
    one, other = (
        synthetic.draw(np.random.default_rng([seed, 1, 0]), 48, np.zeros(2), [0.0] * 6, 1.0).pixels
        for seed in (7, 8)
    )
    assert not np.array_equal(one, other)
