"""Drawn films: true files, said to be drawn, with a signal that brightness does not tell."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pydicom
import pytest

from domains.xray import dicom, domain, film, synthetic
from domains.xray.config import FilmSection, XrayConfig

SAMPLE = Path(__file__).parents[3] / "data" / "samples" / "xray"


def table(folder):
    with (folder / "labels.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_sample_in_the_repository_is_what_the_program_draws(tmp_path):
    """Write it anew with: synthetic.write(Path("data/samples/xray"), **synthetic.SAMPLE)."""
    synthetic.write(tmp_path, **synthetic.SAMPLE)
    assert (SAMPLE / "labels.csv").read_text() == (tmp_path / "labels.csv").read_text()
    assert {path.name for path in SAMPLE.iterdir()} == {path.name for path in tmp_path.iterdir()}
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) < 600_000
    for row in table(SAMPLE):
        kept, drawn = (film.read(folder / row["path"], FilmSection()) for folder in (SAMPLE, tmp_path))
        # One level of eight bits: another processor may round the last digit of a tanh otherwise.
        assert np.abs(kept.pixels - drawn.pixels).max() < 1.01 / 255, row["path"]


def test_the_sample_can_be_ingested_and_split_as_it_stands(tmp_path):
    card = domain.ingest(str(SAMPLE), XrayConfig(), tmp_path)
    assert card.synthetic
    assert card.examples == 48
    assert not card.quarantine
    assert domain.folds(tmp_path, XrayConfig())


def test_every_kind_of_file_shows_the_same_film(tmp_path, monkeypatch):
    """MONOCHROME1, MONOCHROME2, rescaled or not, PNG of 16 and 8 bits: one drawing, five files, one picture."""
    drawn = synthetic.draw(np.random.default_rng(0), 64, np.ones(2), [0.0] * 6, 1.0)
    monkeypatch.setattr(synthetic, "draw", lambda *_: drawn)
    synthetic.write(tmp_path, films=12, size=64, seed=0)
    kinds = set()
    for row in table(tmp_path):
        one = film.read(tmp_path / row["path"], FilmSection())
        kinds.add((one.facts["photometric"], one.facts["bits"]))
        assert np.abs(one.pixels - drawn.pixels).max() <= 0.51 / (2 ** min(one.facts["bits"], 12) - 1) + 1e-6
    assert kinds == {("MONOCHROME1", 12), ("MONOCHROME2", 12), ("", 16), ("", 8)}


def test_headers_and_folder_say_that_it_is_synthetic(tmp_path):
    synthetic.write(tmp_path, films=6, size=64, seed=0)
    assert "shows no person" in (tmp_path / synthetic.MARK).read_text()
    header = pydicom.dcmread(tmp_path / "film-0000.dcm")
    assert "synthetic" in header.ImageComments
    assert "synthetic" in header.SeriesDescription
    assert header.PatientID.startswith("SYN")
    (tmp_path / synthetic.MARK).unlink()
    with dicom.quiet():
        assert film.read(tmp_path / "film-0000.dcm", FilmSection()).synthetic


def test_patients_have_several_films_and_another_seed_has_other_patients(tmp_path):
    synthetic.write(tmp_path / "a", films=40, size=48, seed=0)
    synthetic.write(tmp_path / "b", films=40, size=48, seed=1)
    patients = [{row["patient"] for row in table(tmp_path / name)} for name in "ab"]
    assert 15 < len(patients[0]) < 30
    assert not patients[0] & patients[1]


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_brightness_tells_nothing_and_without_strength_no_pixel_does(strength):
    """The same film with and without findings: equal at strength 0, and never of another mean."""
    means = []
    for number in range(120):
        films = [
            synthetic.draw(
                np.random.default_rng([1, number]), 48, np.full(2, value), [0.0] * 6, strength
            ).pixels
            for value in (0.0, 1.0)
        ]
        assert np.array_equal(*films) == (strength == 0.0)
        means.append([one.mean() for one in films])
    ill, well = np.array(means).T
    assert abs(ill.mean() - well.mean()) < 0.4 * ill.std()  # three standard errors of 120 films
