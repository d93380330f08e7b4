"""The house keeps its order: imports run down, names stay home, TensorFlow waits until it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERIC = [*ROOT.glob("shared/**/*.py"), *ROOT.glob("pipelines/**/*.py")]
OURS = ("xray", "stocks", "climate")
FLOW_FILES = {ROOT / "pipelines" / f"{name}.py" for name in OURS}


@pytest.mark.slow
def test_imports_run_downward() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_domains_name_in_generic_code() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in GENERIC
        if path not in FLOW_FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _code(line) and any(f'"{name}"' in line or f"domains.{name}" in line for name in OURS)
    ]
    assert found == []


@pytest.mark.parametrize(
    "module", ["shared", "shared.contract", "domains.xray", "domains.stocks", "domains.climate"]
)
def test_importing_imports_no_tensorflow(module: str) -> None:
    heavy = "('tensorflow', 'prefect', 'mlflow', 'pandas', 'xarray')"
    code = f"import sys, {module}; sys.exit(str([m for m in {heavy} if m in sys.modules] or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def _code(line: str) -> bool:
    """Examples in comments and docstrings may name a domain."""
    stripped = line.strip()
    return not stripped.startswith(("#", ">>>")) and "``" not in line
