"""Ingest: what is bad is counted and named, patients are kept together, nobody's name leaves it."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from domains.xray import data, domain, ingest
from domains.xray.config import XrayConfig
from shared import files
from shared.errors import InputError

NAME, IDENTITY, BIRTH = "Quixotic^Wilhelmina", "HOSP-889977", "19470312"


def config(**sections):
    return XrayConfig.model_validate({"film": {"size": 32}, **sections})


def picture(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 255, (64, 64), "uint8")
    Image.fromarray(values).save(path)


@pytest.fixture
def source(tmp_path, make_dicom, ramp):
    """Thirty films of fifteen patients with planted identities, and some that cannot be used."""
    folder = tmp_path / "raw"
    lines = ["path,a,b"]
    for number in range(30):
        patient = number // 2
        name = f"{NAME}-{number}.dcm"
        noise = np.random.default_rng(number).integers(0, 400, ramp.shape)
        make_dicom(
            name,
            (ramp // 2 + noise).astype("uint16"),
            folder,
            PatientID=f"{IDENTITY}-{patient}",
            PatientName=NAME,
            PatientBirthDate=BIRTH,
            StudyDescription=f"{NAME} born {BIRTH}",
        )
        lines.append(f"{name},{patient % 2},{'' if number % 7 == 0 else number % 2}")
    make_dicom(f"knee-{NAME}.dcm", ramp, folder, BodyPartExamined="KNEE", PatientID=IDENTITY)
    (folder / f"half-{NAME}.dcm").write_bytes((folder / f"{NAME}-0.dcm").read_bytes()[:3000])
    lines += [f"knee-{NAME}.dcm,1,1", f"half-{NAME}.dcm,1,1", f"gone-{NAME}.dcm,0,0"]
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def everything_under(folder):
    """Names and contents of all files, as one long text."""
    found = []
    for path in sorted(folder.rglob("*")):
        found.append(str(path.relative_to(folder)))
        if path.is_file():
            found.append(path.read_bytes().decode("latin-1"))
    text = "\n".join(found)
    # Unicode arrays in an npz take four bytes a letter.
    return text + text.replace("\x00", "")


def test_bad_films_are_counted_and_named_and_the_rest_goes_on(source, tmp_path):
    card = ingest.ingest(str(source), config(), tmp_path / "out")
    assert card.examples == 30
    assert not card.synthetic
    reasons = sorted(item.reason for item in card.quarantine)
    assert [reason.split(":")[0].split(",")[0] for reason in reasons] == [
        "body part KNEE",
        "cut off",
        "no such file",
    ]
    assert [item.item.split(" (")[0] for item in card.quarantine] == ["file 31", "file 32", "file 33"]
    assert any("salt_file" in warning for warning in card.warnings)


def test_no_name_id_or_birth_date_leaves_ingest(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    card = ingest.ingest(str(source), config(), out)
    files.write_json(out / "card.json", asdict(card))
    fold = domain.folds(out, config())[0]
    text = everything_under(out) + " ".join(fold.keys) + str(fold.about)
    for secret in (NAME, "Quixotic", "Wilhelmina", IDENTITY, BIRTH, str(source)):
        assert secret not in text, secret


def test_pseudonyms_follow_the_secret_and_nothing_else(source, tmp_path):
    (tmp_path / "salt").write_text("a secret of this hospital")
    secret = config(privacy={"salt_file": str(tmp_path / "salt")})
    cards = {}
    for name, settings in {"one": config(), "two": config(), "other": secret}.items():
        (tmp_path / name).mkdir()
        cards[name] = ingest.ingest(str(source), settings, tmp_path / name)
    keys = {name: set(data.opened(tmp_path / name).keys) for name in cards}
    assert keys["one"] == keys["two"]
    assert not keys["one"] & keys["other"]
    assert not any("salt_file" in warning for warning in cards["other"].warnings)


def test_patients_are_never_divided(source, tmp_path):
    ingest.ingest(str(source), config(), tmp_path / "out")
    fold = domain.folds(tmp_path / "out", config())[0]
    patients = [set(fold.groups[numbers]) for numbers in fold.splits.values()]
    assert sum(len(group) for group in patients) == len(set.union(*patients)) == 15
    assert sum(len(numbers) for numbers in fold.splits.values()) == 30


@pytest.mark.parametrize("given", [0, 10])
def test_without_patients_it_fails_loudly_with_the_remedy(tmp_path, given):
    lines = ["path,patient,a"]
    for number in range(20):
        picture(tmp_path / "raw" / f"{number}.png", number)
        lines.append(f"{number}.png,{f'P{number}' if number < given else ''},{number % 2}")
    (tmp_path / "raw" / "labels.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match="patient key") as caught:
        ingest.ingest(str(tmp_path / "raw"), config(), tmp_path / "out")
    assert "patient_pattern" in caught.value.remedy


def test_one_placeholder_for_all_patients_is_no_key(tmp_path):
    lines = ["path,patient,a"]
    for number in range(8):
        picture(tmp_path / "raw" / f"{number}.png", number)
        lines.append(f"{number}.png,ANONYMOUS,{number % 2}")
    (tmp_path / "raw" / "labels.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match="same patient key"):
        ingest.ingest(str(tmp_path / "raw"), config(), tmp_path / "out")


def test_equal_pixels_are_kept_once_and_conflicting_labels_not_at_all(tmp_path):
    lines = ["path,patient,a"]
    for number, seed in enumerate([0, 1, 2, 0, 1, 3]):
        picture(tmp_path / "raw" / f"{number}.png", seed)
        lines.append(f"{number}.png,P{number},{0 if number == 4 else 1 - seed % 2 if seed > 1 else 1}")
    (tmp_path / "raw" / "labels.csv").write_text("\n".join(lines))
    card = ingest.ingest(str(tmp_path / "raw"), config(), tmp_path / "out")
    assert card.examples == 3  # 0, 2, 5: film 3 is 0 again, 1 and 4 contradict each other
    reasons = [item.reason for item in card.quarantine]
    assert sum("same pixels" in reason for reason in reasons) == 2
    assert sum("other labels" in reason for reason in reasons) == 2
    kept = data.opened(tmp_path / "out")
    assert kept.rows.tolist() == [0, 2, 3]
    with Image.open(tmp_path / "raw" / "5.png") as image:
        assert kept.film(2).mean() == pytest.approx(np.asarray(image).mean() / 255, abs=0.01)


def test_nothing_usable_names_the_reasons(tmp_path):
    (tmp_path / "labels.csv").write_text("path,patient,a\ngone.png,P1,1\nlost.png,P2,0\n")
    with pytest.raises(InputError, match="2 x no such file"):
        ingest.ingest(str(tmp_path), config(), tmp_path / "out")


def test_examples_are_films_in_0_to_1_with_unknown_labels(source, tmp_path):
    ingest.ingest(str(source), config(), tmp_path / "out")
    fold = domain.folds(tmp_path / "out", config())[0]
    seen = domain.examples(tmp_path / "out", config(), fold, "train")
    x, y = (np.stack(part) for part in zip(*seen.dataset.as_numpy_iterator(), strict=True))
    assert x.shape == (seen.count, 32, 32, 1)
    assert x.dtype == np.float32
    assert 0 <= x.min() < x.max() <= 1
    assert np.isnan(y).any()
    assert seen.augment is not None
