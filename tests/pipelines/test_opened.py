"""A run taken up again by other code than it began with says so."""

from __future__ import annotations

import logging

import pytest

from pipelines import steps
from shared.contract import find
from shared.runs.folder import Run


@pytest.mark.parametrize(("code", "warnings"), [(None, 0), ("of another day", 1)])
def test_changed_code_is_told(code: str | None, warnings: int, caplog: pytest.LogCaptureFixture) -> None:
    domain = find("stocks")
    run = Run.create(domain, domain.Config())
    if code:
        run.note(code_version=code)
    with caplog.at_level(logging.WARNING, "casebook.steps"), steps.opened("stocks", run=run.id):
        pass
    assert len([record for record in caplog.records if "code has changed" in record.message]) == warnings
