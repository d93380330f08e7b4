"""The ``casebook`` command. Every subcommand is loaded when it is called, never for ``--help``.

Exit codes: 0 done (a model that the gate holds included, unless ``--fail-on-hold``: 3),
1 failed, 2 wrong input, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group

FAILED, WRONG_INPUT, HELD, INTERRUPTED, TERMINATED = 1, 2, 3, 130, 143

WITH_DOMAIN = ("run", "predict", "plan", "config")
"""Commands whose ``--help``, given a domain, lists that domain's settings."""

_RUN = Group("Run", sort_key=0)
_LOOK = Group("Look", sort_key=1)
_KEEP = Group("Keep running", sort_key=2)

_COMMANDS = (
    ("run", "pipelines.commands.run:run", _RUN, "Train, judge and register a domain's model."),
    ("predict", "pipelines.commands.run:predict", _RUN, "Score new input with the champion."),
    ("resume", "pipelines.commands.run:resume", _RUN, "Go on with a run that was stopped."),
    ("plan", "pipelines.commands.run:plan", _RUN, "Measure how to train on this machine, and stop there."),
    ("status", "pipelines.commands.look:status", _LOOK, "List the runs, or show one."),
    ("report", "pipelines.commands.look:report", _LOOK, "Write a run's report anew and say where it is."),
    ("config", "pipelines.commands.look:config", _LOOK, "Print a domain's settings as commented TOML."),
    ("doctor", "pipelines.doctor:doctor", _LOOK, "Say what works on this machine, and how to mend the rest."),
    ("model", "pipelines.commands.model:app", _KEEP, "History of a domain's models; promote, roll back."),
    ("serve", "pipelines.serve:serve", _KEEP, "Run the flows on schedules."),
)


def _version() -> str:
    from importlib import metadata

    return f"casebook {metadata.version('casebook-pipelines')}"


app = App(
    name="casebook",
    help="Trains and judges models of a domain on the accelerator you have.",
    version=_version,
    help_format="plaintext",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
for _name, _where, _group, _help in _COMMANDS:
    app.command(_where, name=_name, group=_group, help=_help)


class Terminated(KeyboardInterrupt):
    """SIGTERM, treated like Ctrl-C: a run is left so that it can be taken up again."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the ``casebook`` script: runs a command and exits with its code."""
    # A process started with `&` from a script inherits SIGINT as ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line; returns its exit code. Whatever goes wrong is shown, not raised."""
    words = list(arguments)
    debug = "--debug" in words
    try:
        if _asks_for_domain_help(words):
            from pipelines.commands.help import show

            show(app, words[0], words[1])
            return 0
        result = app(words, exit_on_error=False, print_error=True)
        if words[-1:] in (["--help"], ["-h"]) and words[0] in WITH_DOMAIN:
            from shared.contract import domain_names

            print(
                f"Domains: {', '.join(domain_names())}. `casebook {words[0]} DOMAIN --help` lists its settings."
            )
    except CycloptsError:
        return WRONG_INPUT
    except KeyboardInterrupt as signalled:
        return _interrupted(words, signalled)
    except BrokenPipeError:
        # The reader of our output left (`casebook status | head`); it has what it wanted.
        sys.stdout = None  # type: ignore[assignment]
        return 0
    except Exception as error:
        behind = _signal_behind(error)
        if behind is not None:
            return _interrupted(words, behind)
        return _failed(error, debug=debug, as_json="--json" in words)
    return result if isinstance(result, int) else 0


def _asks_for_domain_help(words: list[str]) -> bool:
    asks = "--help" in words or "-h" in words
    return asks and len(words) > 2 and words[0] in WITH_DOMAIN and not words[1].startswith("-")


def _interrupted(words: list[str], signalled: KeyboardInterrupt) -> int:
    again = " `casebook resume last` goes on where it stopped." if words[0] in ("run", "resume") else ""
    print(f"\nInterrupted.{again}", file=sys.stderr)
    return TERMINATED if isinstance(signalled, Terminated) else INTERRUPTED


def _signal_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """The signal that made others fail: native code (pydantic's) tells it as an error of its own."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return error
        for kind in (Terminated, KeyboardInterrupt):
            if f"{kind.__name__}:" in f"{error}:":
                return kind()
        error = error.__cause__ or error.__context__
    return None


def _failed(error: Exception, *, debug: bool, as_json: bool) -> int:
    from pipelines.terminal import show_error
    from shared.errors import CasebookError, of_the_machine

    if not isinstance(error, CasebookError):
        error = of_the_machine(error) or error
    show_error(error, debug=debug)
    if as_json:
        import json

        told = {"error": getattr(error, "message", str(error)), "remedy": getattr(error, "remedy", "")}
        print(json.dumps(told))
    return int(getattr(error, "exit_code", FAILED))


def _terminate(*_: object) -> None:
    raise Terminated


if __name__ == "__main__":
    main()
