"""Prefect's environment: quiet, patient, telling nobody; set before Prefect is imported.

What a person has set is left as it is. Logs still go to Prefect's server, those of our own
``casebook.*`` loggers too; only the console is spared, unless asked for.
"""

from __future__ import annotations

import logging
import os

LOGGERS = "casebook"
logging.getLogger(LOGGERS).setLevel(logging.INFO)
"""Said on import, because a scheduled run's process comes by here without the command line."""


def environment(*, verbose: bool = False, debug: bool = False) -> dict[str, str]:
    """The variables that Prefect, its server and the processes of scheduled runs should see."""
    values = {
        # The first start migrates a database: 17 s and more on a slow disk, against a default of 20.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        # INFO lines of our packages reach the flow's log only when Prefect is told of the logger.
        "PREFECT_LOGGING_EXTRA_LOGGERS": LOGGERS,
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    }
    if debug:
        values["PREFECT_LOGGING_LEVEL"] = "DEBUG"
        values["CASEBOOK_DEBUG"] = "1"
    elif not verbose:
        values |= {
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
            "PREFECT_LOGGING_HANDLERS_DEBUG_LEVEL": "CRITICAL",
            "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
            "PREFECT_CLI_COLORS": "false",
            "PYTHONWARNINGS": "ignore",
        }
    if not (verbose or debug):
        values["TF_CPP_MIN_LOG_LEVEL"] = "3"
    return values


def apply(*, verbose: bool = False, debug: bool = False) -> None:
    """Sets :func:`environment` in this process, under what is set already.

    Prefect reads most of it when it is imported: call this before.
    """
    for name, value in environment(verbose=verbose, debug=debug).items():
        os.environ.setdefault(name, value)
    if not (verbose or debug):
        import warnings

        # Other packages' deprecations are no business of the person at the terminal.
        warnings.simplefilter("ignore")
