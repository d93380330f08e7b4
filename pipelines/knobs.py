"""Settings as flags: every knob of a domain's configuration, from the command line and in its help."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from shared.config import DomainConfig, knobs
from shared.errors import InputError, did_you_mean

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def parse(tokens: Iterable[str], kind: type[DomainConfig], *, words: Iterable[str] = ()) -> dict[str, Any]:
    """Flags as :func:`shared.config.build` takes them: dotted keys to values.

    ``--train.epochs 5`` and ``--train.epochs=5`` are the same; a boolean knob needs no value
    (``--plan.replan``, ``--no-plan.replan``); ``none`` clears a knob that may be empty; lists
    are written ``a,b`` or ``[1, 2]``; dashes stand for underscores.

    Args:
        tokens: What the command line had beyond the command's own options, in order.
        kind: The domain's configuration class.
        words: The command's own options, offered when a flag is not known.

    Raises:
        InputError: Not a flag, an unknown one (with the nearest known), or one without its value.

    >>> parse(["--train.epochs", "5", "--plan.replan"], DomainConfig)
    {'train.epochs': '5', 'plan.replan': True}
    """
    known = dict(knobs(kind))
    flags: dict[str, Any] = {}
    remaining = list(tokens)
    while remaining:
        token = remaining.pop(0)
        if not token.startswith("--") or token == "--":
            raise InputError(
                f"Expected a setting such as --train.epochs 5, received {token!r}.",
                "Quote a value that has spaces; a domain comes first: `casebook run DOMAIN --flags`.",
            )
        name, equals, value = token[2:].partition("=")
        key, negated = _key(name, known)
        if key is None:
            raise InputError(f"Unknown setting --{name}.", _suggest(name, [*words, *known]))
        info = known[key]
        if _is_boolean(info):
            if not equals and remaining and remaining[0].lower() in _TRUE | _FALSE:
                value, equals = remaining.pop(0), "="
            flags[key] = _boolean(key, value) if equals else True
            flags[key] = flags[key] is not negated
            continue
        if not equals:
            if not remaining or (remaining[0].startswith("--") and _key(remaining[0][2:], known)[0]):
                raise InputError(f"--{key} needs a value.", f"{_describe(key, info)}")
            value = remaining.pop(0)
        flags[key] = _value(value, info)
    return flags


def listing(kind: type[DomainConfig], *, width: int = 100) -> str:
    """Every knob with its description and default, group by group, the domain's own first."""
    defaults = dict(_leaves(kind().model_dump(), ""))
    groups: dict[str, list[str]] = {}
    for key, info in knobs(kind):
        lines = groups.setdefault(key.rpartition(".")[0], [])
        flag = f"--{key.replace('_', '-')}"
        lines += entry(flag, kind_of(info.annotation), info.description or "", defaults.get(key), width=width)
    common = DomainConfig.model_fields
    order = sorted(groups, key=lambda group: (group != "", group.partition(".")[0] in common))
    return "\n\n".join("\n".join([f"{group or 'data and task'}:", *groups[group]]) for group in order)


def entry(flag: str, kind: str, text: str, default: Any, *, width: int) -> list[str]:
    """Lines of help for one flag: what it takes, what it does, ``[default]``."""
    shown = "" if default is None else f" [{_shown(default)}]"
    head = f"  {flag}" if kind == "bool" else f"  {flag} {kind}"
    body = textwrap.wrap(f"{text}{shown}".strip(), width - 36) or [""]
    if len(head) > 34:
        return [head, *(" " * 36 + line for line in body)]
    return [f"{head:<36}{body[0]}", *(" " * 36 + line for line in body[1:])]


def kind_of(annotation: Any) -> str:
    """What a knob takes, in a word or its choices: ``INT``, ``auto|on|off``, ``bool``."""
    if annotation is bool:
        return "bool"
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(str(choice) for choice in inside)
    if origin in (Union, UnionType):
        return "|".join(dict.fromkeys(kind_of(item) for item in inside if item is not NoneType))
    if origin in (list, tuple, set, frozenset):
        return "LIST"
    if origin is dict:
        return "TABLE"
    if origin is not None and inside:  # Annotated
        return kind_of(inside[0])
    words = {int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}
    return words.get(annotation, getattr(annotation, "__name__", "VALUE"))


def _describe(key: str, info: FieldInfo) -> str:
    return f"--{key} {kind_of(info.annotation)}: {info.description or 'see `casebook config DOMAIN`'}"


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "true" if default else "false"
    if isinstance(default, (list, tuple)):
        return ",".join(str(item) for item in default)
    return str(default) if default != "" else '""'


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        yield prefix + name, value
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")


def _key(name: str, known: Mapping[str, FieldInfo]) -> tuple[str | None, bool]:
    """The knob that ``name`` means, and whether it is its negation."""
    key = name.partition("=")[0].replace("-", "_")
    if key in known:
        return key, False
    for positive in (key.removeprefix("no_"), key.replace(".no_", ".", 1)):
        if positive != key and positive in known and _is_boolean(known[positive]):
            return positive, True
    return None, False


def _suggest(name: str, names: list[str]) -> str:
    """The nearest flags; a knob is also found by its last word (``--epochs``)."""
    key = name.replace("-", "_")
    by_last_word = [full for full in names if full.rpartition(".")[2] == key.rpartition(".")[2]]
    if by_last_word:
        return f"Did you mean {' or '.join('--' + full.replace('_', '-') for full in by_last_word)}?"
    remedy = did_you_mean(key, names).partition(" Known: ")
    near = remedy[0].replace("_", "-").replace("'", "") if remedy[1] else ""
    near = near.replace("Did you mean ", "Did you mean --")
    return f"{near} `casebook run DOMAIN --help` lists every setting.".strip()


def _is_boolean(info: FieldInfo) -> bool:
    return kind_of(info.annotation) == "bool"


def _boolean(key: str, value: str) -> bool:
    if value.lower() not in _TRUE | _FALSE:
        raise InputError(f"--{key} takes true or false, received {value!r}.")
    return value.lower() in _TRUE


def _value(text: str, info: FieldInfo) -> Any:
    """Text as the configuration takes it; numbers are left to pydantic, which names the key."""
    kind = kind_of(info.annotation)
    optional = NoneType in get_args(info.annotation)
    if optional and text.lower() == "none":
        return None
    if "LIST" in kind or "TABLE" in kind:
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return [item.strip() for item in text.split(",") if item.strip()]
    return text
