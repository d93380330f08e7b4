"""What is installed is the three packages, whole, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("pipelines", "domains", "shared")


@pytest.mark.slow
def test_the_wheel_holds_our_packages_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in (
        *OURS,
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ):  # a copy: the build writes beside its source
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(ROOT))
        for package in OURS
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".j2", ".typed") and "__pycache__" not in path.parts
    }
    assert held == expected
