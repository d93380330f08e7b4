"""Options that several commands share, and how settings become a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from shared.config import DomainConfig, build
from shared.contract import Domain, find

Switch = Annotated[bool, Parameter(negative="")]
Settings = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


@Parameter(name="*")
@dataclass(frozen=True)
class Screen:
    """What is shown."""

    verbose: Switch = False
    """Show the messages of Prefect and TensorFlow."""
    debug: Switch = False
    """Show everything, and the traceback of an error."""
    json: Switch = False
    """Print the result as JSON on stdout."""


QUIET = Screen()


def configured(
    domain: str,
    settings: Sequence[str],
    *,
    config: Path | None = None,
    options: Mapping[str, Any],
    words: Sequence[str] = (),
) -> tuple[Domain, DomainConfig]:
    """The domain and its configuration: flags over the file over the domain's defaults.

    Args:
        settings: What the command line had beyond its own options: the domain's knobs.
        options: Knobs that have an option of their own, by dotted key; None and False: not given.
        words: The command's own options, for suggestions.

    Raises:
        InputError: Unknown domain, unknown knob, wrong value.
    """
    from pipelines.knobs import parse

    found = find(domain)
    flags = {key: value for key, value in options.items() if value is not None and value is not False}
    flags |= parse(settings, found.Config, words=words)
    return found, build(found.Config, config, flags)
