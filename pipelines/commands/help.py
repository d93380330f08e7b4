"""``casebook run DOMAIN --help``: the command's options, and every setting of the domain.

Plain text, so that it costs neither rich nor a second of anyone's time.
"""

from __future__ import annotations

import inspect
import shutil

from cyclopts import App

from pipelines.knobs import entry, kind_of, listing
from shared.contract import find


def show(app: App, command: str, domain: str) -> None:
    """Prints the options of ``command`` and then the settings of ``domain``.

    Raises:
        InputError: There is no such domain.
    """
    found = find(domain)
    width = min(shutil.get_terminal_size((100, 24)).columns, 110)
    print(f"Usage: casebook {command} {domain} [OPTIONS] [--SETTING VALUE ...]\n\n{found.title}\n")
    print("Options:")
    own = {f"--{key}" for key in found.Config.model_fields}  # told below, in the domain's own words
    for argument in app[command].assemble_argument_collection(parse_docstring=True):
        if argument.show and not argument.is_positional_only() and argument.names[0] not in own:
            default = argument.field_info.default
            default = None if default in (inspect.Parameter.empty, None, False) else default
            text = argument.parameter.help or ""
            print("\n".join(entry(argument.names[0], kind_of(argument.hint), text, default, width=width)))
    print("\nSettings, over those of --config FILE:\n")
    print(listing(found.Config, width=width))
