"""MLflow's registry: versions, champion, rollback; the real thing on a SQLite file."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared import files
from shared.errors import CasebookError, InputError
from shared.runs import registry
from shared.runs.export import Predictor, keras_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # MLflow's and SQLAlchemy's own, by the dozen
]


def publish(runs: Path, name: str, *, promote_it: bool) -> registry.Version:
    model = runs / "toy" / name / "model"
    card = {"decision": {"threshold": 0.3}, "config": {"source": "x"}, "synthetic": True}
    files.write_json(model / registry.MODEL_CARD, card)
    tracked = registry.track(
        "toy",
        name,
        settings={"train.epochs": 3},
        metrics={"AUROC (mean), 95%": 0.7, "undefined": float("nan")},
        epochs=[("loss", 0, 1.0)],
        tags={},
    )
    return registry.register(
        "toy", name, model, tracked=tracked, score="AUROC 0.7", synthetic=True, promote_it=promote_it
    )


def test_the_life_of_a_champion(runs: Path) -> None:
    assert registry.history("toy") == []
    assert registry.champion("toy") is None
    assert not (runs / "mlflow.db").exists(), "asking must not make a registry"

    assert publish(runs, "a", promote_it=True).champion
    assert not publish(runs, "b", promote_it=False).champion
    assert publish(runs, "c", promote_it=True).number == 3
    assert publish(runs, "c", promote_it=True).number == 3, "a run is registered once, also when resumed"
    assert [(v.number, v.run, v.champion) for v in registry.history("toy")] == [
        (3, "c", True),
        (2, "b", False),
        (1, "a", False),
    ]
    assert registry.rollback("toy").number == 1
    standing = registry.champion("toy")
    assert standing is not None
    assert standing.number == 1
    opened = registry.published(standing)
    assert opened.label == "toy v1 (champion)"
    assert opened.decision == {"threshold": 0.3}
    assert opened.synthetic
    with pytest.raises(InputError, match="no earlier champion"):
        registry.rollback("toy")
    registry.promote("toy", 2)
    assert [v.number for v in registry.history("toy") if v.champion] == [2]
    with pytest.raises(InputError, match="no version 9"):
        registry.promote("toy", 9)


def test_a_model_that_is_gone_is_told(runs: Path) -> None:
    version = publish(runs, "a", promote_it=True)
    (version.path / registry.MODEL_CARD).unlink()
    with pytest.raises(CasebookError, match="is gone"):
        registry.published(version)


def test_a_damaged_model_is_told_with_the_way_out(runs: Path) -> None:
    version = publish(runs, "a", promote_it=True)
    member = version.path / "member-0" / "saved_model"
    member.mkdir(parents=True, exist_ok=True)
    (member / "saved_model.pb").write_bytes(b"half of a mod")
    for load in (Predictor.load, keras_model):
        with pytest.raises(CasebookError, match="damaged or incomplete") as caught:
            load(version.path)
        assert "casebook model history" in caught.value.remedy
    (version.path / registry.MODEL_CARD).write_text('{"decision":')
    with pytest.raises(CasebookError, match="damaged or incomplete"):
        registry.published(version)
