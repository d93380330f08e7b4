"""The conformance suite: what every domain must keep, for authors to run on their own.

Subclass it in a test file; pytest finds the tests::

    from shared.testing import Conformance

    class TestDigits(Conformance):
        domain = my_package.domain

It works on the domain's own synthetic data under its :meth:`Domain.tiny` settings, trains one
member in a child process, exports it and predicts with it. A domain that answers line by line
also says what a good line is: :meth:`Conformance.line`. Needs pytest.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from shared import files, worker
from shared.config import build, read_toml, to_toml
from shared.contract import SPLITS, DataCard, Domain, Evaluation, Fold, FoldResult, Summary
from shared.errors import InputError
from shared.evaluation import guards
from shared.evaluation.predictions import read_predictions
from shared.plan import ExecutionPlan
from shared.runs import export, registry
from shared.training import member

PLAN = ExecutionPlan(batch_size=8)


@dataclass(frozen=True)
class Made:
    """What the suite makes once for a domain and every test reads."""

    raw: Path
    prepared: Path
    config: Any
    card: DataCard
    fold: Fold
    folds: list[Fold]
    place: Path


class Conformance:
    """Tests of one domain; set :attr:`domain` to its instance."""

    domain: ClassVar[Domain]

    def line(self, made: Made) -> Mapping[str, Any]:
        """A good line for the domain's answerer, taken from its synthetic data, without ``id``."""
        raise NotImplementedError(
            f"{type(self.domain).__name__} has an answerer: override line(made) in its conformance test."
        )

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, tmp_path_factory: pytest.TempPathFactory) -> Made:
        place = tmp_path_factory.mktemp(cls.domain.name)
        tiny = cls.domain.tiny()
        config = build(cls.domain.Config, base=tiny)
        cls.domain.synthesize(place / "raw", config, seed=1)
        config = build(cls.domain.Config, base={**tiny, "source": _only(place / "raw")})
        (place / "prepared").mkdir()
        card = cls.domain.ingest(config.source, config, place / "prepared")
        folds = cls.domain.folds(place / "prepared", config)
        return Made(place / "raw", place / "prepared", config, card, folds[-1], folds, place)

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls, made: Made) -> Path:
        folder = made.place / "member"
        folder.mkdir()
        worker.call(
            member.train_member,
            cls.domain.name,
            str(made.prepared),
            made.config.model_dump(),
            len(made.folds) - 1,
            0,
            PLAN.to_dict(),
            str(folder),
            timeout=300,
        )
        return folder

    @pytest.fixture(scope="class")
    @classmethod
    def published(cls, made: Made, trained: Path) -> Any:
        card = {
            "domain": cls.domain.name,
            "run": "conformance",
            "decision": _evaluation(cls.domain, made, trained, made.place / "figures-of-export").decision,
            "config": made.config.model_dump(),
            "synthetic": True,
        }
        where = made.place / "model"
        worker.call(
            export.export,
            cls.domain.name,
            str(made.prepared),
            made.config.model_dump(),
            len(made.folds) - 1,
            [str(trained)],
            str(where),
            files.plain(card),
            timeout=300,
        )
        return registry.opened(where, f"{cls.domain.name} (conformance)")

    def test_it_is_named_and_titled(self) -> None:
        assert self.domain.name.isidentifier()
        assert self.domain.name == self.domain.name.lower()
        assert self.domain.title

    def test_importing_it_imports_no_tensorflow(self) -> None:
        module = type(self.domain).__module__
        code = f"import sys, {module}; sys.exit('tensorflow' in sys.modules or 'prefect' in sys.modules)"
        path = f"import sys; sys.path[:] = {sys.path!r}; "
        assert subprocess.run([sys.executable, "-c", path + code], check=False).returncode == 0

    def test_its_configuration_survives_toml(self, tmp_path: Path) -> None:
        config = build(self.domain.Config, base=self.domain.tiny())
        files.write_text(tmp_path / "config.toml", to_toml(config, commented=True))
        assert self.domain.Config.model_validate(read_toml(tmp_path / "config.toml")) == config

    def test_synthetic_data_says_so_and_comes_out_equal(self, made: Made) -> None:
        assert made.card.synthetic
        again = made.place / "again"
        self.domain.synthesize(again, made.config, seed=1)
        for file in sorted(path for path in made.raw.rglob("*") if path.is_file()):
            assert file.read_bytes() == (again / file.relative_to(made.raw)).read_bytes(), file.name

    def test_ingest_is_repeatable(self, made: Made) -> None:
        second = made.place / "prepared-again"
        second.mkdir()
        card = self.domain.ingest(made.config.source, made.config, second)
        assert card.examples == made.card.examples
        assert card.fingerprint == made.card.fingerprint
        assert np.array_equal(self.domain.folds(second, made.config)[-1].keys, made.fold.keys)

    def test_a_missing_or_empty_source_is_refused_with_a_remedy(self, made: Made, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "out").mkdir()
        for source in (tmp_path / "missing" / "file.csv", tmp_path / "empty"):
            with pytest.raises(InputError) as caught:
                self.domain.ingest(str(source), made.config, tmp_path / "out")
            assert caught.value.remedy

    def test_folds_do_not_leak(self, made: Made) -> None:
        for fold in made.folds:
            count = len(fold.keys)
            assert len(np.unique(fold.keys)) == count, "keys must be unique"
            everything = np.concatenate([fold.splits[split] for split in SPLITS])
            assert len(np.unique(everything)) == len(everything), "a split repeats or shares an example"
            assert everything.min() >= 0
            assert everything.max() < count
            assert all(len(fold.splits[split]) > 0 for split in SPLITS)
        for guard in (guards.disjoint, guards.undivided, guards.apart):
            found = guards.every(guard.__name__, made.folds, guard)
            assert found.passed is not False, found

    def test_examples_are_the_same_at_every_reading(self, made: Made) -> None:
        for split in SPLITS:
            first = _read(self.domain, made, split)
            second = _read(self.domain, made, split)
            assert len(first[1]) == len(made.fold.splits[split])
            for one, other in zip(first[0], second[0], strict=True):
                assert np.array_equal(one, other, equal_nan=True)
            assert np.array_equal(first[1], second[1], equal_nan=True)

    def test_augmentation_is_a_function_of_its_seed(self, made: Made) -> None:
        import tensorflow as tf

        from shared.input_pipeline import first_example

        source = self.domain.examples(made.prepared, made.config, made.fold, "train")
        if source.augment is None:
            return
        x = first_example(source)[0]
        same = [tf.nest.flatten(source.augment(x, tf.constant([7, 3])))[0] for _ in range(2)]
        other = tf.nest.flatten(source.augment(x, tf.constant([7, 4])))[0]
        original = tf.nest.flatten(x)[0]
        assert np.array_equal(same[0], same[1])
        assert not np.array_equal(same[0], other)
        assert same[0].shape == original.shape
        assert same[0].dtype == original.dtype

    def test_phases_build_on_each_other_and_lose_by_example(self, made: Made) -> None:
        import tensorflow as tf

        from shared.input_pipeline import evaluation_batches

        model = None
        for phase in self.domain.phases(made.prepared, made.config, made.fold):
            model = phase.build(model)
            source = (
                phase.source("train")
                if phase.source
                else self.domain.examples(made.prepared, made.config, made.fold, "train")
            )
            x, y, _ = next(iter(evaluation_batches(source, PLAN)))
            out = model(x, training=False)
            assert all(part.dtype == tf.float32 for part in tf.nest.flatten(out)), "outputs must be float32"
            loss = phase.loss(y, out)
            assert loss.shape == (PLAN.batch_size,), "the loss must be one number an example"
            assert np.isfinite(np.asarray(loss)).all()

    def test_baselines_answer_the_models_questions(self, made: Made) -> None:
        baselines = self.domain.baselines(made.prepared, made.config, made.fold)
        truth = _read(self.domain, made, "test")[1]
        score = self.domain.score(made.prepared, made.config)
        assert baselines
        for name, said in baselines.items():
            assert np.array_equal(said.keys, made.fold.keys[made.fold.splits["test"]]), name
            assert np.allclose(said.truth, truth, rtol=1e-4, atol=1e-5, equal_nan=True), name
            assert said.values.shape[0] == len(said.keys), name
            assert np.isfinite(score.of(said)), name

    def test_a_member_trains_and_predicts_every_example(self, made: Made, trained: Path) -> None:
        for split in ("validation", "test"):
            said = read_predictions(trained / f"{split}.npz")
            assert np.array_equal(said.keys, made.fold.keys[made.fold.splits[split]])
            assert np.isfinite(said.values).all()

    def test_evaluation_is_complete(self, made: Made, trained: Path, tmp_path: Path) -> None:
        evaluation = _evaluation(self.domain, made, trained, tmp_path / "figures")
        for figure in evaluation.figures:
            assert figure.path.is_relative_to(tmp_path / "figures")
            assert figure.path.stat().st_size > 0
            assert figure.caption
        assert evaluation.limits, "say what the model must not be used for"
        files.plain(evaluation.decision)

    def test_inputs_are_prefix_invariant(self, made: Made) -> None:
        found = guards.prefix_invariant(self.domain, made.prepared, made.config, made.folds)
        assert found.passed is not False, found.detail

    def test_the_published_model_predicts(self, made: Made, published: Any, tmp_path: Path) -> None:
        summary: Summary = worker.call(
            _predict, self.domain.name, published, made.config, str(tmp_path), timeout=300
        )
        assert summary.scored > 0
        assert summary.output.is_relative_to(tmp_path)
        assert summary.output.exists()
        assert summary.headline

    def test_lines_are_answered_one_by_one_and_bad_ones_refused(self, made: Made, published: Any) -> None:
        if type(self.domain).answerer is Domain.answerer:
            with pytest.raises(InputError) as caught:
                self.domain.answerer(published, made.config)
            assert caught.value.remedy
            return
        good = json.loads(json.dumps(self.line(made)))
        bad: list[dict[str, Any]] = [
            {},
            {"nonsense": 1},
            dict.fromkeys(good),
            dict.fromkeys(good, "nonsense"),
        ]
        shown, said = worker.call(
            _answers, self.domain.name, published, made.config, [good, *bad, good], timeout=300
        )
        assert shown.strip()
        assert shown.isprintable(), "one line, to be shown"
        (first, wrong), *refused, (again, _) = said
        assert not wrong, wrong
        assert first, "an answer says something"
        assert json.loads(json.dumps(first, allow_nan=False)) == again, "the same line, the same answer"
        for line, (answer, remedy) in zip(bad, refused, strict=True):
            assert answer is None, f"{line} was answered: {answer}"
            assert remedy, f"{line} was refused without a remedy"


def _answers(domain: str, published: Any, config: Any, lines: list[Any]) -> tuple[str, list[tuple[Any, str]]]:
    """What a line looks like; and of each line the answer and "", or None and the remedy."""
    from shared.contract import find

    answerer = find(domain).answerer(published, config)
    said: list[tuple[Any, str]] = []
    for line in lines:
        try:
            said.append((files.plain(dict(answerer.answer(line))), ""))
        except InputError as error:
            said.append((None, error.remedy))
    return answerer.line, said


def _predict(domain: str, published: Any, config: Any, out: str) -> Summary:
    from shared.contract import find

    return find(domain).predict(published, config.source, config, Path(out))


def _evaluation(domain: Domain, made: Made, trained: Path, out: Path) -> Evaluation:
    result = FoldResult(
        fold=made.fold,
        validation=read_predictions(trained / "validation.npz"),
        test=read_predictions(trained / "test.npz"),
        baselines=domain.baselines(made.prepared, made.config, made.fold),
    )
    out.mkdir(parents=True, exist_ok=True)
    return domain.evaluate([result], made.config, out)


def _read(domain: Domain, made: Made, split: Any) -> tuple[list[np.ndarray], np.ndarray]:
    """All inputs and the truth of a split, as arrays."""
    import tensorflow as tf

    from shared.input_pipeline import evaluation_batches

    source = domain.examples(made.prepared, made.config, made.fold, split)
    inputs: list[list[np.ndarray]] = []
    truths = []
    for x, y, _ in evaluation_batches(source, PLAN):
        inputs.append([np.asarray(part) for part in tf.nest.flatten(x)])
        truths.append(np.asarray(y))
    joined = [np.concatenate(parts)[: source.count] for parts in zip(*inputs, strict=True)]
    return joined, np.concatenate(truths)[: source.count]


def _only(folder: Path) -> str:
    """The file in a folder that holds but one, else the folder: as a person would name it."""
    found = list(folder.iterdir())
    return str(found[0] if len(found) == 1 else folder)


__all__ = ["Conformance", "Made"]
