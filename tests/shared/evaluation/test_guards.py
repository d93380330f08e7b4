"""Every guard passes on honest data, and names guard, fold and key on the leak it is for."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shared.config import DomainConfig
from shared.contract import SPLITS, DataCard, Domain, Evaluation, Fold, FoldResult, Predictions, Score, Source
from shared.errors import LeakError
from shared.evaluation import guards, metrics

DAYS = np.arange("2020-01-01", "2020-05-30", dtype="datetime64[D]")
PRICES = np.cumsum(np.random.default_rng(0).normal(size=len(DAYS))) + 100


def honest(prices):
    """Return of the day, and distance from the mean of the last five."""
    known = np.concatenate([np.full(4, prices[0]), prices])
    means = np.convolve(known, np.ones(5) / 5, mode="valid")
    return np.stack([np.diff(prices, prepend=prices[0]), prices - means], axis=1).astype(np.float32)


def centred(prices):
    return np.convolve(prices, np.ones(5) / 5, mode="same")[:, None]


def scaled_on_everything(prices):
    values = honest(prices)
    return (values - values.mean(axis=0)) / values.std(axis=0)


class Walker(Domain):
    """A price series; its features are whatever function it is given."""

    name = "walker"
    title = "for tests"
    Config = DomainConfig

    def __init__(self, features=honest):
        self.features = features

    def folds(self, prepared, config):
        keys = DAYS.astype(str)
        numbers = {"train": np.arange(5, 90), "validation": np.arange(92, 110), "test": np.arange(112, 150)}
        spans = np.stack([DAYS, DAYS + 2], axis=1)
        return [Fold("spring", numbers, keys, groups=keys, spans=spans)]

    def examples(self, prepared, config, fold, split):
        chosen, inputs = fold.splits[split], self.features(PRICES)
        return Source(len(chosen), gather=lambda positions: (inputs[chosen[positions]], None))

    def score(self, prepared, config):
        return Score("AUROC", metrics.auroc, higher_is_better=True, chance=0.5)

    def inputs_as_of(self, prepared, config, moment):
        end = len(DAYS) if moment is None else int(np.searchsorted(DAYS, np.datetime64(moment))) + 1
        return DAYS[:end].astype(str), self.features(PRICES[:end])

    def ingest(self, source, config, out):
        return DataCard("", True, 0)

    def phases(self, prepared, config, fold):
        return []

    def baselines(self, prepared, config, fold):
        return {}

    def evaluate(self, results, config, out):
        return Evaluation()

    def predict(self, model, source, config, out):
        raise NotImplementedError

    def synthesize(self, out, config, seed, *, strength=1.0):
        pass


def said(fold, split, seed=0):
    generator = np.random.default_rng(seed)
    keys = fold.keys[fold.splits[split]]
    return Predictions(keys, generator.random(len(keys)), np.arange(len(keys)) % 2, keys)


def result_of(domain):
    (fold,) = domain.folds(Path(), None)
    return FoldResult(
        fold, said(fold, "validation"), said(fold, "test"), {"coin": said(fold, "test", seed=1)}
    )


def changed(result, **splits):
    return replace(result, fold=replace(result.fold, splits={**result.fold.splits, **splits}))


def asked(domain, result, **others):
    return {found.name: found for found in guards.check(domain, Path(), DomainConfig(), [result], **others)}


def only_failure(found):
    failed = [one for one in found.values() if one.passed is False]
    assert len(failed) == 1, failed
    with pytest.raises(LeakError) as caught:
        guards.require(list(found.values()))
    assert failed[0].name in str(caught.value)
    assert failed[0].fold in str(caught.value)
    assert failed[0].key in str(caught.value)
    return failed[0]


def test_honest_data_passes_and_what_does_not_apply_is_none():
    domain = Walker()
    found = asked(domain, result_of(domain))
    assert {one.passed for name, one in found.items() if "shuffled" not in name} == {True}
    assert found["shuffled labels teach nothing"].passed is None
    guards.require(list(found.values()))
    timeless = replace(result_of(domain).fold, spans=None, groups=None)
    found = asked(domain, replace(result_of(domain), fold=timeless))
    assert [one.name for one in found.values() if one.passed is None] == [
        "groups are not divided",
        "labels of training end before the test",
        "inputs do not look ahead",
        "shuffled labels teach nothing",
    ]


def test_an_example_in_two_splits():
    (fold,) = Walker().folds(Path(), None)
    both = replace(fold, splits={**fold.splits, "validation": np.array([100, 112])})
    found = guards.disjoint("name", both)
    assert (found.passed, found.fold, found.key) == (False, "spring", str(DAYS[112]))
    keys = fold.keys.copy()
    keys[120] = keys[10]
    assert guards.disjoint("name", replace(fold, keys=keys)).key == str(DAYS[10])


def test_a_patient_in_two_splits():
    result = result_of(Walker())
    groups = result.fold.groups.copy()
    groups[115] = groups[20]
    found = only_failure(asked(Walker(), replace(result, fold=replace(result.fold, groups=groups))))
    assert (found.name, found.fold, found.key) == ("groups are not divided", "spring", str(DAYS[115]))


@pytest.mark.parametrize(("split", "number"), [("train", 110), ("validation", 111)])
def test_a_label_that_reaches_the_test(split, number):
    result = result_of(Walker())
    touching = changed(result, **{split: np.append(result.fold.splits[split], number)})
    touching = replace(touching, validation=said(touching.fold, "validation"))
    found = only_failure(asked(Walker(), touching))
    assert (found.name, found.key) == ("labels of training end before the test", str(DAYS[number]))


def test_spans_are_compared_as_a_brute_force_search_does():
    generator = np.random.default_rng(3)
    for _ in range(200):
        starts = generator.integers(0, 40, size=12)
        spans = np.stack([starts, starts + generator.integers(0, 4, size=12)], axis=1)
        splits = {"train": np.arange(5), "validation": np.arange(5, 7), "test": np.arange(7, 12)}
        fold = Fold("f", splits, np.arange(12).astype(str), spans=spans)
        meets = any(a[0] <= b[1] and b[0] <= a[1] for a in spans[:7] for b in spans[7:])
        assert guards.apart("name", fold).passed is not meets


def test_a_copied_input():
    def twice(prices):
        values = honest(prices)
        values[120] = values[30]
        return values

    domain = Walker(twice)
    domain.inputs_as_of = lambda *_: None
    found = only_failure(asked(domain, result_of(domain)))
    assert (found.name, found.key) == ("no input is copied between splits", str(DAYS[120]))
    assert str(DAYS[30]) in found.detail


def test_two_stale_windows_are_no_copies():
    def stale(prices):
        values = honest(prices)
        values[[30, 120]] = 0
        return values

    domain = Walker(stale)
    domain.inputs_as_of = lambda *_: None
    assert asked(domain, result_of(domain))["no input is copied between splits"].passed


@pytest.mark.parametrize("features", [centred, scaled_on_everything])
def test_features_that_look_ahead(features):
    domain = Walker(features)
    found = only_failure(asked(domain, result_of(domain)))
    assert found.name == "inputs do not look ahead"
    assert found.key


def test_a_missing_test_example_and_a_nan():
    result = result_of(Walker())
    fewer = replace(result, test=result.test.take(np.arange(1, 38)))
    found = only_failure(asked(Walker(), fewer))
    assert (found.name, found.key) == ("every test example is predicted once", str(DAYS[112]))
    values = result.test.values.copy()
    values[3] = np.nan
    found = only_failure(asked(Walker(), replace(result, test=replace(result.test, values=values))))
    assert (found.name, found.key) == ("predictions are finite", str(DAYS[115]))


def test_shuffled_labels_that_teach_something():
    result = result_of(Walker())
    honest_model = said(result.fold, "test", seed=5)
    assert asked(Walker(), result, shuffled=honest_model)["shuffled labels teach nothing"].passed
    knowing = replace(honest_model, values=honest_model.truth * 0.5 + honest_model.values * 0.4)
    found = only_failure(asked(Walker(), result, shuffled=knowing))
    assert "better than chance at 0.5" in found.detail
    error = Score("RMSE", metrics.rmse, higher_is_better=False)  # no chance level: against the baselines
    assert guards.blind(error, result, honest_model).passed
    assert guards.blind(error, result, knowing).passed is False


def test_inputs_may_be_dicts_or_a_dataset():
    class Dataset:
        def as_numpy_iterator(self):
            yield {"a": np.arange(3), "b": np.ones(2)}, 0
            yield {"b": np.ones(2), "a": np.arange(3)}, 0
            yield {"a": np.arange(4), "b": np.ones(2)}, 0

    first, second, third = guards.digests(Source(3, dataset=Dataset()))
    assert first == second != third
    gathered = Source(
        3, gather=lambda at: ({"a": np.stack([np.arange(3)] * len(at)), "b": np.ones((len(at), 2))}, 0)
    )
    assert guards.digests(gathered, batch=2).tolist() == [first] * 3
    assert all(len(result_of(Walker()).fold.splits[split]) for split in SPLITS)
