"""Memory that runs out in training: the same batch in smaller pieces, from the last checkpoint on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines import steps, training
from shared import contract, files, worker
from shared.config import merge
from shared.errors import CasebookError, InputError, TrainingError
from shared.evaluation.champion import SEEN
from shared.plan import ExecutionPlan
from shared.runs import registry
from shared.runs.folder import Run
from shared.training import warm_start

DOMAIN = '''
"""A domain whose network takes 8 MB and more an example, and whose steps can be counted."""
import numpy as np
from shared import Domain, DomainConfig, Fold, Phase, Source

COUNT = 24


class Hungry(Domain):
    name, title, Config = "hungry", "Takes memory", DomainConfig
    ingest = baselines = score = evaluate = predict = synthesize = None

    def folds(self, prepared, config):
        splits = {"train": np.arange(16), "validation": np.arange(16, 20), "test": np.arange(20, COUNT)}
        return [Fold("only", splits, np.arange(COUNT).astype(str))]

    def examples(self, prepared, config, fold, split):
        import tensorflow as tf

        x = np.random.default_rng(0).normal(size=(COUNT, 3)).astype("float32")
        chosen = fold.splits[split]
        return Source(len(chosen), dataset=tf.data.Dataset.from_tensor_slices((x[chosen], x[chosen].sum(1))))

    def phases(self, prepared, config, fold):
        import keras

        def build(previous):
            x = inputs = keras.Input((3,))
            x = keras.layers.Dense(4)(x)
            x = keras.layers.RepeatVector(1 << 19)(x)
            x = keras.layers.Activation("tanh")(x)
            x = keras.layers.GlobalAveragePooling1D()(x)
            return keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(x))

        return [Phase("only", build, keras.losses.mean_squared_error, 2, 1e-2)]


domain = Hungry()
'''


@pytest.fixture
def hungry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[contract.Domain]:
    """Installed as an outsider's domain is, so that child processes find it."""
    (tmp_path / "hungry_domain.py").write_text(DOMAIN)
    info = tmp_path / "hungry-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hungry\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[casebook]\nhungry = hungry_domain:domain\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    contract._registered.cache_clear()
    yield contract.find("hungry")
    contract._registered.cache_clear()


def begun(domain: contract.Domain, tmp_path: Path, *, batch: int = 16, **plan: Any) -> Run:
    """A run whose plan was approved, ready to train."""
    settings = {"plan": plan, "accelerator": {"device": "cpu"}}
    this = Run.create(domain, domain.Config.model_validate(settings))
    prepared = tmp_path / "prepared"
    files.write_json(prepared / "card.json", {"synthetic": True, "fingerprint": "f"})
    this.note(inputs={"prepared": "prepared", "data": "f"}, synthetic=True)
    this.step("ingest", lambda: {"prepared": str(prepared)})
    this.step("plan", lambda: ExecutionPlan(batch_size=batch).to_dict())
    return this


@pytest.mark.soak
def test_training_that_runs_out_of_memory_goes_on_in_micro_batches(
    hungry: contract.Domain, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    this = begun(hungry, tmp_path, memory_gb=0.25)
    with caplog.at_level(logging.WARNING, "casebook.steps"):
        trained = steps.train(this)
    cut = this.manifest["micro_batches"]
    assert cut > 1
    assert this.manifest["memory"][0] == "batch 16 as a whole"
    assert f"with batch 16 in {cut} micro-batches of {16 // cut}" in caplog.text
    assert "batch normalisation" in caplog.text

    # The same steps: a run in which memory suffices comes to the same weights, up to rounding.
    plenty = begun(hungry, tmp_path)
    other = steps.train(plenty)
    assert "micro_batches" not in plenty.manifest
    (mine,), (theirs,) = trained["reports"], other["reports"]
    assert (mine["epochs"], mine["batch_size"]) == (theirs["epochs"], theirs["batch_size"])
    files_of = [Path(found["members"][0][0]) / "weights.npz" for found in (trained, other)]
    with np.load(files_of[0]) as a, np.load(files_of[1]) as b:
        for name in a.files:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-3, atol=1e-5)


def out_of_memory(*args: Any, **kwargs: Any) -> worker.Outcome:
    return worker.Outcome(worker.Verdict.OUT_OF_MEMORY, message="It ran out of memory: x.")


@pytest.mark.parametrize(
    ("batch", "replicas", "tried"), [(64, 1, [1, 2, 4, 8, 16]), (6, 1, [1, 2, 6]), (4, 2, [1, 2])]
)
def test_it_gives_up_where_no_smaller_piece_is_left_or_enough_were_tried(
    batch: int,
    replicas: int,
    tried: list[int],
    hungry: contract.Domain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    this = begun(hungry, tmp_path, memory_gb=1.0)
    seen: list[int] = []

    def run(*args: Any, **kwargs: Any) -> worker.Outcome:
        seen.append(args[5]["accumulation"])
        assert kwargs["memory_bytes"] == 1 << 30
        return out_of_memory()

    monkeypatch.setattr(training.workers, "train", run)
    plan = ExecutionPlan(batch_size=batch, replicas=replicas)
    with pytest.raises(TrainingError, match=f"batch {batch} as a whole; then batch {batch} in 2") as caught:
        training.train(this, tmp_path, plan, 0, 0, tmp_path / "member")
    assert seen == tried
    assert "plan.memory_gb" in caught.value.remedy


def test_under_the_persons_limit_native_code_may_die_of_it_without_a_word(
    hungry: contract.Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = begun(hungry, tmp_path, memory_gb=1.0)
    crashed = worker.Outcome(
        worker.Verdict.KILLED, message="It was ended by SIGABRT.\nThe last it printed: x"
    )
    ends = iter([crashed, worker.Outcome(worker.Verdict.OK, {})])
    monkeypatch.setattr(training.workers, "train", lambda *args, **kwargs: next(ends))
    training.train(this, tmp_path, ExecutionPlan(batch_size=16), 0, 0, tmp_path / "a")
    assert this.manifest["micro_batches"] == 2


def test_later_members_and_later_attempts_begin_with_the_pieces_that_were_found(
    hungry: contract.Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = begun(hungry, tmp_path)
    seen: list[int] = []

    def run(*args: Any, **kwargs: Any) -> worker.Outcome:
        seen.append(args[5]["accumulation"])
        assert kwargs["memory_bytes"] is None
        return worker.Outcome(worker.Verdict.OK, {}) if seen[-1] >= 4 else out_of_memory()

    monkeypatch.setattr(training.workers, "train", run)
    plan = ExecutionPlan(batch_size=16)
    training.train(this, tmp_path, plan, 0, 0, tmp_path / "a")
    training.train(this, tmp_path, plan, 0, 1, tmp_path / "b")
    training.train(Run.open(this.id), tmp_path, plan, 0, 2, tmp_path / "c")
    assert seen == [1, 2, 4, 4, 4]


@pytest.mark.parametrize(
    ("message", "limit"), [("It was ended by SIGTERM.", 1.0), ("It was ended by SIGABRT.", None)]
)
def test_other_ends_are_not_tried_again(
    message: str,
    limit: float | None,
    hungry: contract.Domain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    this = begun(hungry, tmp_path, memory_gb=limit)
    ended = worker.Outcome(worker.Verdict.KILLED, message=message)
    monkeypatch.setattr(training.workers, "train", lambda *args, **kwargs: ended)
    with pytest.raises(CasebookError, match="did not finish in its child process") as caught:
        training.train(this, tmp_path, ExecutionPlan(), 0, 0, tmp_path / "a")
    assert "memory" not in this.manifest
    assert f"`casebook resume {this.id}` goes on from the last checkpoint." in caught.value.remedy


def test_a_bug_is_not_told_to_be_tried_again(
    hungry: contract.Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = begun(hungry, tmp_path)
    bug = worker.Outcome(worker.Verdict.BUG, message="It left with exit code 3 before it could answer.")
    monkeypatch.setattr(training.workers, "train", lambda *args, **kwargs: bug)
    with pytest.raises(CasebookError, match="exit code 3") as caught:
        training.train(this, tmp_path, ExecutionPlan(), 0, 0, tmp_path / "a")
    assert "resume" not in caught.value.remedy


# --- what a run starts from ----------------------------------------------------------------------


def from_champion(domain: contract.Domain) -> Run:
    return Run.create(domain, domain.Config.model_validate({"train": {"from": "champion"}}))


def test_a_run_keeps_to_the_champion_that_stood_when_it_began(
    hungry: contract.Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stands(run: str) -> None:
        folder = tmp_path / run
        card = {"decision": {}, "config": {}, "synthetic": False}
        files.write_json(folder / registry.MODEL_CARD, card)
        version = registry.Version("hungry", 1, run, folder, True, 0.0, "", False)
        monkeypatch.setattr(registry, "champion", lambda domain: version)

    stands("one")
    this = from_champion(hungry)
    assert training.champion(this) == str(tmp_path / "one")
    stands("two")
    assert training.champion(Run.open(this.id)) == str(tmp_path / "one")
    assert this.manifest["started_from"]["champion"] == "hungry v1 (champion)"
    reports = [{"fold": "f", "seed": 1, "started_from": warm_start.Start().to_dict()}]
    training.note_starts(this, reports)
    assert this.manifest["started_from"]["members"][0]["from"] == "scratch"
    assert this.manifest["started_from"]["run"] == "one"

    gone = registry.Version("hungry", 2, "gone", tmp_path / "gone", True, 0.0, "", False)
    monkeypatch.setattr(registry, "champion", lambda domain: gone)
    with pytest.raises(InputError, match="which is gone") as caught:
        training.champion(from_champion(hungry))
    assert "--train.from scratch" in caught.value.remedy


def test_where_no_champion_stands_it_says_so(
    hungry: contract.Domain, caplog: pytest.LogCaptureFixture
) -> None:
    this = from_champion(hungry)
    with caplog.at_level(logging.WARNING, "casebook.steps"):
        assert training.champion(this) is None
    assert "no champion of hungry" in caplog.text
    assert this.manifest["started_from"] == {"champion": None, "run": "", "path": None}
    plain = Run.create(hungry, hungry.Config())
    assert training.champion(plain) is None
    assert "started_from" not in plain.manifest


@pytest.mark.soak
@pytest.mark.parametrize(("domain", "phase"), [("xray", "last blocks unfrozen"), ("stocks", "lstm")])
def test_a_domain_is_retrained_from_its_champion_where_that_is_fair(
    domain: str, phase: str, whole: Callable[..., dict[str, Any]]
) -> None:
    """The same data again: earlier folds of a walk forward are tested on what the champion was trained on."""
    settings = merge(
        contract.find(domain).tiny(),
        {"plan": {"batch_size": 16, "precision": "float32", "xla": "off"}, "export": {"formats": ()}},
    )
    first = Run.open(whole(domain, settings)["run"])
    registry.promote(domain, 1)
    again = Run.open(whole(domain, merge(settings, {"train": {"from": "champion"}}))["run"])
    started = again.manifest["started_from"]
    assert started["run"] == first.id
    *earlier, last = started["members"]
    assert last["from"] == "champion"
    assert all(member["from"] == "scratch" and "trained or tuned on" in member["why"] for member in earlier)
    assert len(earlier) == (1 if domain == "stocks" else 0)
    assert f"{domain} v1 (champion), " in (again.path / "report.html").read_text()
    trained = again.result("train")
    assert trained is not None
    assert [done["name"] for done in trained["reports"][-1]["phases"]] == [phase]
    with np.load(again.path / "model" / SEEN) as mine, np.load(first.path / "model" / SEEN) as theirs:
        for name in ("names", "trained"):
            np.testing.assert_array_equal(mine[name], theirs[name])
