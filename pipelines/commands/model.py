"""``casebook model``: which version of a domain's model predicts."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from datetime import datetime

from cyclopts import App

from pipelines.commands.options import QUIET, Screen
from shared.contract import find
from shared.runs import registry

app = App(name="model", help="History of a domain's models; promote, roll back.", help_format="plaintext")


@app.command
def history(domain: str, /, *, screen: Screen = QUIET) -> None:
    """List a domain's versions, newest first.

    Parameters
    ----------
    domain
        Name of the domain.
    """
    from pipelines.terminal import output, table
    from shared.files import plain

    versions = registry.history(find(domain).name)
    if screen.json:
        print(jsonlib.dumps([plain(asdict(version)) for version in versions], indent=2))
        return
    if not versions:
        output().print(f"No model of {domain} was registered yet. `casebook run {domain}` makes one.")
        return
    rows = [
        (
            f"v{version.number}",
            "champion" if version.champion else "",
            version.score,
            "SYNTHETIC" if version.synthetic else "",
            version.run,
            f"{datetime.fromtimestamp(version.created):%Y-%m-%d %H:%M}",
        )
        for version in versions
    ]
    output().print(table(("version", "role", "score", "data", "run", "registered"), rows))


@app.command
def promote(domain: str, version: int, /, *, screen: Screen = QUIET) -> None:
    """Make a version the champion, whatever the gate said.

    Parameters
    ----------
    domain
        Name of the domain.
    version
        Its number, as `casebook model history` lists it.
    """
    _say(registry.promote(find(domain).name, version), "is now champion", screen)


@app.command
def rollback(domain: str, /, *, screen: Screen = QUIET) -> None:
    """Make the champion before this one champion again.

    Parameters
    ----------
    domain
        Name of the domain.
    """
    _say(registry.rollback(find(domain).name), "is champion again", screen)


def _say(version: registry.Version, what: str, screen: Screen) -> None:
    from pipelines.terminal import output
    from shared.files import plain

    if screen.json:
        print(jsonlib.dumps(plain(asdict(version)), indent=2))
        return
    output().print(f"{version.domain} v{version.number} {what} (run {version.run}, {version.score}).")
