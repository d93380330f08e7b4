"""Numbers as people say them, on the terminal and in the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NOTHING = "–"
"""Stands where there is no number."""


def number(value: Any, digits: int = 3) -> str:
    """About three significant digits, thousands grouped; what is no number as it stands.

    >>> number(0.41237), number(12345.6), number(7), number(None), number(True), number("AAPL")
    ('0.412', '12,346', '7', '–', 'yes', 'AAPL')
    >>> number(0.0003), number(101325.4), number(float("nan"))
    ('0.0003', '101,325', '–')
    """
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if not math.isfinite(value):
        return NOTHING
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) < 0.01 or abs(value) >= 100 else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    """A difference, with its sign.

    >>> signed(0.0512), signed(-0.2), signed(0.005463), signed(0.0), signed(None)
    ('+0.051', '−0.200', '+0.0055', '0', '–')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    size = abs(value)
    return ("+" if value > 0 else "−") + (f"{size:.2g}" if size < 0.01 else number(size))


def duration(seconds: float | None) -> str:
    """Seconds as people say them.

    >>> duration(0.04), duration(4.2), duration(75), duration(7500), duration(None)
    ('40 ms', '4.2 s', '1 min 15 s', '2 h 05 min', '–')
    """
    if seconds is None:
        return NOTHING
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(amount: float | None) -> str:
    """Bytes as people say them.

    >>> size(512), size(1536), size(3 * 1024**3), size(None)
    ('512 B', '1.5 KiB', '3.0 GiB', '–')
    """
    if amount is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def money(cost: Mapping[str, Any]) -> str | None:
    """What a run cost, by its manifest's ``cost``; None where no price was given.

    >>> money({"money": 0.05, "price_per_hour": 3.2}), money({"seconds": 56})
    ('0.05 at 3.2 an hour', None)
    """
    if cost.get("money") is None:
        return None
    return f"{cost['money']:.4g} at {cost.get('price_per_hour') or 0:g} an hour"
