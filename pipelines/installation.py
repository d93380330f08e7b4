"""Whether what is imported is what was installed: interpreter, our packages, versions."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlparse

DISTRIBUTION = "casebook-pipelines"
PACKAGES = ("shared", "domains", "pipelines")
VERSIONS = (
    "casebook-pipelines",
    "tensorflow",
    "keras",
    "numpy",
    "pandas",
    "xarray",
    "scikit-learn",
    "prefect",
    "mlflow",
    "pydantic",
    "cyclopts",
)
State = Literal["ok", "note", "broken"]


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        state: ``note`` is worth knowing and stops nothing; ``broken`` is needed by every run.
        remedy: What to do; empty where nothing needs doing.
    """

    name: str
    state: State
    found: str
    remedy: str = ""


def python() -> list[Check]:
    """The interpreter and the environment."""
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    found = f"Python {platform.python_version()} in {sys.prefix}"
    return [
        Check("python", "ok" if fits else "broken", found, "" if fits else "Use Python 3.11, 3.12 or 3.13.")
    ]


def ownership(distribution: str = DISTRIBUTION, packages: Iterable[str] = PACKAGES) -> list[Check]:
    """That the imported packages are this distribution's.

    Their names are common words: another wheel with a ``shared/`` would silently replace ours.
    """
    remedy = f"Install {distribution} into an environment of its own: `python -m venv`, one environment per install."
    try:
        ours = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return [
            Check(
                "packages",
                "broken",
                f"{distribution} is not installed.",
                "`pip install -e .` in the checkout.",
            )
        ]
    claims = metadata.packages_distributions()
    checks = []
    for name in packages:
        file = Path(str(importlib.import_module(name).__file__)).resolve()
        rivals = sorted(set(claims.get(name, [])) - {ours.name})
        if not _belongs(file, ours):
            by = f", which {', '.join(rivals)} installed" if rivals else ""
            checks.append(
                Check("packages", "broken", f"{name} is {file}{by}, not that of {distribution}.", remedy)
            )
        elif rivals:
            checks.append(Check("packages", "broken", f"{', '.join(rivals)} also installs {name}/.", remedy))
    if checks:
        return checks
    how = "editable, " if _editable_root(ours) else ""
    return [
        Check(
            "packages", "ok", f"{', '.join(packages)} are those of {distribution} {ours.version} ({how}ours)"
        )
    ]


def _belongs(file: Path, distribution: metadata.Distribution) -> bool:
    root = _editable_root(distribution)
    if root is not None:
        return file.is_relative_to(root)
    for record in distribution.files or ():
        if Path(str(record.locate())).resolve() != file:
            continue
        if record.hash is None:
            return True
        # Another wheel may have written over the very path.
        digest = hashlib.new(record.hash.mode, file.read_bytes()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == record.hash.value
    return False


def _editable_root(distribution: metadata.Distribution) -> Path | None:
    text = distribution.read_text("direct_url.json")
    if not text:
        return None
    origin = json.loads(text)
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlparse(origin["url"]).path)).resolve()


def versions() -> list[Check]:
    """Versions of what decides how a run behaves."""
    found, missing = [], []
    for name in VERSIONS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    checks = [Check("versions", "ok", ", ".join(found))]
    if missing:
        remedy = "`pip install -c constraints.txt -e .` in the checkout brings them."
        checks.append(Check("versions", "broken", f"Not installed: {', '.join(missing)}.", remedy))
    return checks
