"""What the README promises in code does run, and what it links to is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "data/README.md", *ROOT.glob("docs/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.slow
def test_the_bare_keras_example_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "bare.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "bare.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "samples/s" in done.stdout
    assert re.search(r"0\.\d+ on .+", done.stdout), done.stdout


def test_commands_in_the_table_exist() -> None:
    from pipelines.cli import _COMMANDS

    table = set(re.findall(r"`casebook ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert table <= {name for name, *_ in _COMMANDS}
    assert {name for name, *_ in _COMMANDS} <= table
