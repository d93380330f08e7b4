"""Installs the outside package as a person would, into a folder of the test's own."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared import contract

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH that holds casebook-digits with its entry point."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "digits"
    # A copy, because the build writes beside what it builds.
    subprocess.run(["cp", "-r", str(HERE / "digits"), str(source)], check=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", str(folder), str(source)], check=True
    )
    return folder


@pytest.fixture(scope="class")
def installed(request: pytest.FixtureRequest, site: Path) -> Iterator[None]:
    """The outside domain is registered, as after ``pip install``; the class gets it."""
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    contract._registered.cache_clear()
    request.cls.domain = contract.find("digits")
    yield
    sys.path.remove(str(site))
    contract._registered.cache_clear()
