"""A retraining starts with the champion's weights, and never where that champion knows the answers."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared import contract, files, progress
from shared.config import DomainConfig
from shared.contract import SPLITS, Fold, Phase
from shared.errors import InputError
from shared.evaluation.champion import SEEN, add_seen, fair, write_seen
from shared.runs.registry import MODEL_CARD
from shared.training import warm_start
from shared.training.member import rebuild, train_member
from shared.training.warm_start import WEIGHTS, decided, keep, seen_in
from tests.shared.training import two_phases


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "_registered", lambda: {"two-phases": two_phases.Entry()})


def fold(train: list[int], validation: list[int], test: list[int], **others: np.ndarray) -> Fold:
    keys = np.array([f"e{number}" for number in range(12)])
    splits = dict(zip(SPLITS, (np.array(part, np.int64) for part in (train, validation, test)), strict=True))
    return Fold("f", splits, keys, **others)


def published(folder: Path, seen: Fold, *, members: int = 1, synthetic: bool = False) -> Path:
    """A champion's folder, without its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / MODEL_CARD, {"run": "run-1", "members": members, "synthetic": synthetic})
    write_seen(folder, seen)
    return folder


# --- what the champion knows -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("validation", "test", "said"),
    [
        ([4], [6, 7], ""),
        ([2], [6], ""),  # it was tuned on 2: that is what validation is for
        ([1, 4], [6], "trained on 1 of the 2 validation examples"),
        ([4], [0, 6], "trained or tuned on 1 of the 2 test examples"),
        ([4], [2, 3], "trained or tuned on 2 of the 2 test examples"),
        (
            [0],
            [1],
            "trained or tuned on 1 of the 1 test examples and trained on 1 of the 1 validation examples",
        ),
    ],
)
def test_a_fold_that_the_champion_knows(
    validation: list[int], test: list[int], said: str, tmp_path: Path
) -> None:
    write_seen(tmp_path, fold([0, 1], [2, 3], []))
    assert seen_in(fold([0, 1, 5], validation, test), tmp_path / SEEN) == said


def test_in_time_the_folds_validation_and_test_lie_after_the_champions_training(tmp_path: Path) -> None:
    days = np.arange(np.datetime64("2020-01-01"), np.datetime64("2020-01-13"))
    spans = np.stack([days, days + 1], axis=1)
    # Trained on labels up to day 3, tuned on labels up to day 6.
    write_seen(tmp_path, fold([0, 1, 2], [4, 5], [], spans=spans))
    keys = np.array([f"other-{number}" for number in range(12)])

    def known(validation: list[int], test: list[int]) -> str:
        # Another ticker in the same days: markets move together.
        return seen_in(Fold("f", fold([], validation, test).splits, keys, spans=spans), tmp_path / SEEN)

    assert known([5, 6], [8, 9]) == ""
    assert "test" in known([5, 6], [5, 9])
    assert "validation" in known([2, 6], [8, 9])


def test_what_a_file_of_an_earlier_version_tells_counts_as_trained_on(tmp_path: Path) -> None:
    files.write_npz(tmp_path / SEEN, names=np.array(["e1"]), until=np.asarray(5))
    assert "validation" in seen_in(fold([], [1], [7]), tmp_path / SEEN)
    spans = np.stack([np.arange(12), np.arange(12)], axis=1)
    assert "validation" in seen_in(fold([], [5], [7], spans=spans), tmp_path / SEEN)


def test_what_a_retrained_model_has_seen_is_the_champions_too(tmp_path: Path) -> None:
    spans = np.stack([np.arange(12), np.arange(12)], axis=1)
    for name, part in (("old", ([0, 8], [2], [])), ("new", ([1], [3], []))):
        (tmp_path / name).mkdir()
        write_seen(tmp_path / name, fold(*part, spans=spans))
    add_seen(tmp_path / "new", tmp_path / "old" / SEEN)
    others = fold([], [0, 1, 2, 3, 8, 9], [0, 1, 2, 3, 8, 9])
    assert fair(others, tmp_path / "new" / SEEN).tolist() == [5]
    assert fair(others, tmp_path / "new" / SEEN, "validation").tolist() == [2, 3, 5]
    in_time = fold([], [4, 9], [4, 9], spans=spans)  # 8 is the last day that the old one was trained on
    assert fair(in_time, tmp_path / "new" / SEEN).tolist() == [1]
    assert fair(in_time, tmp_path / "new" / SEEN, "validation").tolist() == [1]


# --- where a member starts ---------------------------------------------------------------------


def start(
    champion: Path | None, prepared: Path, seed: int = 7, ours: Fold | None = None, members: int = 3
) -> Any:
    config = DomainConfig.model_validate({"train": {"seed": 7, "members": members}})
    given = None if champion is None else str(champion)
    return decided(given, two_phases.TwoPhases(), prepared, config, ours or fold([0], [1], [5]), seed)


def test_member_by_member_and_the_first_where_there_are_fewer(tmp_path: Path) -> None:
    champion = published(tmp_path / "model", fold([0], [1], []), members=2)
    numbers = [start(champion, tmp_path, seed).weights.name for seed in (7, 8, 9)]
    assert numbers == ["member-0", "member-1", "member-0"]
    assert start(champion, tmp_path, 8).to_dict() == {
        "from": "champion",
        "run": "run-1",
        "why": "Weights of member 1 of the champion of run run-1.",
    }


def test_without_a_champion_from_new_weights(tmp_path: Path) -> None:
    assert start(None, tmp_path).to_dict() == {"from": "scratch", "run": "", "why": "New weights."}


def test_a_fold_that_the_champion_knows_starts_from_new_weights_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    champion = published(tmp_path / "model", fold([5], [1], []))
    with caplog.at_level(logging.INFO, "casebook.training"):
        found = start(champion, tmp_path)
    assert found.weights is None
    assert found.why == "The champion was trained or tuned on 1 of the 1 test examples."
    assert "starts from scratch: The champion was trained or tuned on" in caplog.text


@pytest.mark.parametrize(("ours", "begins"), [(None, "scratch"), (False, "scratch"), (True, "champion")])
def test_a_synthetic_champion_never_seeds_a_model_of_real_data(
    ours: bool | None, begins: str, tmp_path: Path
) -> None:
    champion = published(tmp_path / "model", fold([0], [1], []), synthetic=True)
    if ours is not None:
        files.write_json(tmp_path / "card.json", {"synthetic": ours})
    found = start(champion, tmp_path)
    assert found.to_dict()["from"] == begins
    assert ("synthetic" in found.why) == (begins == "scratch")


@pytest.mark.parametrize("missing", [SEEN, MODEL_CARD])
def test_a_damaged_champion_is_an_error_with_a_remedy(missing: str, tmp_path: Path) -> None:
    champion = published(tmp_path / "model", fold([0], [1], []))
    (champion / missing).write_bytes(b"PK\3\4 half of it")
    with pytest.raises(InputError, match="cannot be started from") as caught:
        start(champion, tmp_path)
    assert "--train.from scratch" in caught.value.remedy


# --- true trainings ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def champion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published folder, made of a member that was trained."""
    folder = tmp_path_factory.mktemp("champion")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contract, "_registered", lambda: {"two-phases": two_phases.Entry()})
        patch.setenv("CASEBOOK_LOCKS", str(folder))
        done = two_phases.train(folder / "member")
    ours = two_phases.TwoPhases().folds(Path(), None)[0]
    published(folder / "model", ours)
    keep(folder / "model", [str(folder / "member")], [done], None)
    return folder / "model"


def weights(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as kept:
        return {name: kept[name] for name in kept.files if "seed_generator" not in name}


def train(folder: Path, settings: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    config = {"accelerator": {"device": "cpu"}, "train": settings or {}}
    plan = two_phases.PLAN.to_dict()
    return train_member("two-phases", ".", config, 0, 7, plan, str(folder), **options)


def phases(folder: Path) -> set[str]:
    return {json.loads(line)["phase"] for line in (folder / "history.jsonl").read_text().splitlines()}


@pytest.mark.slow
def test_only_the_last_phase_is_trained_and_its_start_is_the_champion(champion: Path, tmp_path: Path) -> None:
    done = train(tmp_path / "a", {"learning_rate": 1e-12, "epochs": 1}, start=str(champion))
    assert done["started_from"]["from"] == "champion"
    assert [phase["name"] for phase in done["phases"]] == ["all"]
    assert phases(tmp_path / "a") == {"all"}
    mine, theirs = weights(tmp_path / "a" / "weights.npz"), weights(champion / "member-0" / WEIGHTS)
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_allclose(array, theirs[name], atol=1e-7)


@pytest.mark.slow
def test_the_start_stands_where_no_epoch_is_better(champion: Path, tmp_path: Path) -> None:
    done = train(tmp_path / "a", {"learning_rate": 50.0, "epochs": 1}, start=str(champion))
    assert done["best"]["epoch"] == 0
    mine, theirs = weights(tmp_path / "a" / "weights.npz"), weights(champion / "member-0" / WEIGHTS)
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name])
    # And it is built again from its folder as what it was.
    domain = two_phases.TwoPhases()
    ours = domain.folds(Path(), None)[0]
    model = rebuild(domain, Path(), DomainConfig(), ours, tmp_path / "a")
    x = np.stack([x for x, _ in domain.examples(Path(), None, ours, "test").dataset])
    with np.load(tmp_path / "a" / "test.npz") as said:
        np.testing.assert_allclose(np.asarray(model(x)), said["values"], rtol=1e-5)


class Stop(Exception):
    pass


@pytest.mark.slow
def test_an_interrupted_warm_start_goes_on_to_the_bit(champion: Path, tmp_path: Path) -> None:
    train(tmp_path / "whole", start=str(champion))
    left = [4]

    def stop(report: progress.Progress) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stop

    with progress.listening(stop), pytest.raises(Stop):
        train(tmp_path / "cut", start=str(champion))
    assert not (tmp_path / "cut" / "done.json").exists()
    train(tmp_path / "cut", start=str(champion))
    mine, theirs = (weights(tmp_path / name / "weights.npz") for name in ("cut", "whole"))
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name])


@pytest.mark.slow
def test_shuffled_labels_never_start_from_a_champion(champion: Path, tmp_path: Path) -> None:
    done = train(tmp_path, start=str(champion), shuffled_labels=True)
    assert done["started_from"]["from"] == "scratch"
    assert phases(tmp_path) == {"head", "all"}


def knowing_the_test(folder: Path) -> None:
    """Makes the champion in ``folder`` one that was trained on what the fold is tested on."""
    ours = two_phases.TwoPhases().folds(Path(), None)[0]
    swapped: dict[Any, Any] = {**ours.splits, "train": ours.splits["test"], "test": ours.splits["train"]}
    published(folder, Fold("theirs", swapped, ours.keys, ours.groups))


@pytest.mark.slow
@pytest.mark.parametrize("fair", [True, False])
def test_a_champion_of_another_shape_is_refused_by_the_first_difference(
    champion: Path, tmp_path: Path, fair: bool
) -> None:
    """Before anything is trained, also where this fold would not start from it, but a later one may."""
    import keras

    from shared.training import checkpoint

    shutil.copytree(champion, tmp_path / "model")
    domain = two_phases.TwoPhases()
    model = domain.phases(Path(), None, domain.folds(Path(), None)[0])[0].build(None)
    head = keras.layers.Dense(2, name=model.layers[-1].name)
    wider = keras.Model(model.input, head(model.layers[-2].output))
    checkpoint.write_weights(tmp_path / "model" / "member-0" / WEIGHTS, wider)
    if not fair:
        knowing_the_test(tmp_path / "model")
    said = r"expected dense\w*/kernel \(6, 1\), received .*\(6, 2\)"
    with pytest.raises(InputError, match=said) as caught:
        train(tmp_path / "member", start=str(tmp_path / "model"))
    assert "--train.from scratch" in caught.value.remedy
    assert not (tmp_path / "member" / "history.jsonl").exists()


@pytest.mark.soak
def test_looking_at_a_champion_that_is_not_taken_changes_no_number(champion: Path, tmp_path: Path) -> None:
    shutil.copytree(champion, tmp_path / "model")
    knowing_the_test(tmp_path / "model")
    done = train(tmp_path / "a", start=str(tmp_path / "model"))
    assert done["started_from"]["from"] == "scratch"
    train(tmp_path / "b")
    ours, plain = (weights(tmp_path / name / "weights.npz") for name in "ab")
    for ours_one, plain_one in zip(ours.values(), plain.values(), strict=True):
        np.testing.assert_array_equal(ours_one, plain_one)


@pytest.mark.parametrize("left", [None, b"PK\3\4 half of it"])
def test_weights_that_cannot_be_read_are_told(left: bytes | None, tmp_path: Path) -> None:
    import keras

    champion = published(tmp_path / "model", fold([0], [1], []))
    (champion / "member-0").mkdir()
    if left is not None:
        (champion / "member-0" / WEIGHTS).write_bytes(left)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(InputError, match=r"weights\.npz cannot be read") as caught:
        start(champion, tmp_path).taken_over(Phase("p", lambda _: model, None, 1, 1.0), model)  # type: ignore[arg-type]
    assert "--train.from scratch" in caught.value.remedy


@pytest.mark.slow
def test_normalisation_computes_with_the_champions_statistics() -> None:
    import keras

    layer = keras.layers.Normalization()
    layer.adapt(np.array([[0.0], [2.0]], np.float32))
    model = keras.Sequential([keras.Input((1,)), layer])
    layer.adapt_mean.assign([10.0])
    warm_start.settle(model)
    np.testing.assert_allclose(np.asarray(model(np.array([[11.0]], np.float32))), [[1.0]])


@pytest.mark.slow
def test_what_is_kept_of_a_model_that_started_from_a_champion(champion: Path, tmp_path: Path) -> None:
    done = train(tmp_path / "member", start=str(champion))
    mine = published(tmp_path / "model", fold([3], [4], []))
    keep(mine, [str(tmp_path / "member")], [done], str(champion))
    for name, array in weights(mine / "member-0" / WEIGHTS).items():
        np.testing.assert_array_equal(array, weights(tmp_path / "member" / "weights.npz")[name])
    with np.load(mine / SEEN) as seen:
        assert {"e3", "e4", "patient-0", "patient-24"} <= set(seen["names"])
        assert "patient-24" not in seen["trained"]  # the champion was only tuned on it
        assert "patient-25" not in seen["names"]
