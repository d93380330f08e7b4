"""``casebook run DOMAIN --help``: the command's options, and every setting of the domain."""

from __future__ import annotations

import shutil

from cyclopts import App

from pipelines.knobs import listing
from shared.contract import find


def show(app: App, command: str, domain: str) -> None:
    """Prints the command's own help and then the settings of ``domain``.

    Raises:
        InputError: There is no such domain.
    """
    found = find(domain)
    app.help_print([command])
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    print(f"\nSettings of {domain} ({found.title}), over those of --config FILE:\n")
    print(listing(found.Config, width=width))
