"""What must change a key does change it (prefect#23062: a changed helper), and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared import fingerprint
from shared.errors import InputError


def test_order_of_keys_does_not_matter_values_do() -> None:
    assert fingerprint.of({"a": 1, "b": 2}) == fingerprint.of({"b": 2, "a": 1})
    assert fingerprint.of({"a": 1}) != fingerprint.of({"a": 2})


def test_a_source_changes_with_any_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "a.csv"
    file.write_text("1")
    before = fingerprint.of_source(str(tmp_path))
    assert fingerprint.of_source(str(tmp_path)) == before
    file.write_text("2")
    os.utime(file, ns=(1, 1))
    changed = fingerprint.of_source(str(tmp_path))
    (tmp_path / "b.csv").write_text("")
    assert len({before, changed, fingerprint.of_source(str(tmp_path))}) == 3


def test_a_missing_path_is_refused_a_name_is_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file or folder"):
        fingerprint.of_source(str(tmp_path / "missing"))
    assert fingerprint.of_source("synthetic")


@pytest.mark.parametrize("source", ["", " "])
def test_an_empty_source_is_not_the_current_folder(source: str) -> None:
    with pytest.raises(InputError, match="source is empty"):
        fingerprint.of_source(source)


def test_a_changed_helper_changes_the_packages_key(tmp_path: Path) -> None:
    package = tmp_path / "madeup"
    package.mkdir()
    (package / "__init__.py").write_text("from madeup.helper import f\n")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from shared.fingerprint import of_package as k; "
    code += "print(k('madeup'), k('madeup.helper'))"
    keys = []
    for body in ("def f(): return 1\n", "def f(): return 2\n"):
        (package / "helper.py").write_text(body)
        shown = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True
        )
        keys.append(shown.stdout.split())
    assert keys[0][0] != keys[1][0]
    assert keys[0][0] == keys[0][1], "a module is hashed with its package"
