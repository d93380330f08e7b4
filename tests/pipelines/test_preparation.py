"""A run whose prepared data were deleted goes on with the same data, or says why it cannot."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from pipelines import preparation, steps
from shared import files
from shared.config import DomainConfig, build, merge
from shared.contract import find
from shared.errors import CasebookError
from shared.runs.folder import Run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Prices in a folder of one's own, which can change."""
    body = find("stocks")
    body.synthesize(tmp_path / "raw", settings("synthetic"), seed=1)
    return tmp_path / "raw"


def settings(source: str) -> DomainConfig:
    body = find("stocks")
    return build(body.Config, base=merge(body.tiny(), {"source": source}))


def begun(source: Path) -> tuple[Run, Path]:
    """A run that has ingested, and whose prepared data somebody has deleted since."""
    this = Run.create(find("stocks"), settings(str(source)))
    folder = Path(steps.ingest(this)["prepared"])
    shutil.rmtree(folder)
    return this, folder


@pytest.mark.slow
def test_deleted_data_are_prepared_again_at_their_place(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    this, folder = begun(source)
    with caplog.at_level(logging.WARNING, "casebook.steps"):
        assert steps._prepared(Run.open(this.id)) == folder
    assert "are gone and are prepared again" in caplog.text
    assert files.read_json(folder / "card.json") == files.read_json(this.path / "card.json")


@pytest.mark.slow
def test_a_source_that_has_changed_since_is_an_error(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this, _ = begun(source)
    file = next(source.rglob("*.csv"))
    file.write_text(file.read_text() + "\n")
    # At once: not after hours of preparing what is something else.
    monkeypatch.setattr(preparation.worker, "call", lambda *_: pytest.fail("it was prepared"))
    with pytest.raises(CasebookError, match=r"deleted, and the source .*raw has changed since") as caught:
        steps._prepared(this)
    assert "casebook run stocks" in caught.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_by_other_code_the_data_themselves_decide(
    same: bool, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this, folder = begun(source)
    if not same:
        this.note(inputs={**this.manifest["inputs"], "data": "something else"})
    monkeypatch.setattr(preparation, "code_version", lambda domain: "of another day")
    if same:
        made = steps._prepared(this)
        assert made.parent == folder.parent
        assert made != folder
    else:
        with pytest.raises(CasebookError, match="today's code make is something else"):
            steps._prepared(this)
