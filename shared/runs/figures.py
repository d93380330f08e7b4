"""The report's own drawings: places on an axis in percent, and learning curves by matplotlib.

Bars and intervals are drawn by the page itself, from the percentages made here; they
stay sharp in print and can be read by a screen reader. Matplotlib is used through its
objects only: pyplot's global state belongs to whoever else draws in this process.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from shared.contract import SPLITS

INK, MUTED, GRID = "#22303c", "#6b7885", "#dfe4e8"
_COLOURS = ("#00695c", "#c0562b", "#5b4b9a", "#b08900", "#a33b66", "#3a7ca5")


@dataclass(frozen=True)
class Axis:
    """A line from ``low`` to ``high`` with round ticks.

    Attributes:
        ticks: ``(percent, label)``.
    """

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    @classmethod
    def over(cls, values: Iterable[float | None], count: int = 4) -> Axis:
        """An axis that holds all finite ``values``, with about ``count`` ticks."""
        from matplotlib.ticker import MaxNLocator

        finite = [value for value in values if value is not None and np.isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        low, high = low - margin, high + margin
        marks = [
            m for m in MaxNLocator(count, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= m <= high
        ]
        axis = cls(low, high, ())
        labels = _short(marks)
        return cls(low, high, tuple((axis(m), label) for m, label in zip(marks, labels, strict=True)))

    def __call__(self, value: float) -> float:
        """Where ``value`` stands, in percent of the axis.

        >>> Axis(0, 4, ())(1)
        25.0
        """
        return round(100 * (value - self.low) / (self.high - self.low), 3)


def _short(marks: Sequence[float]) -> list[str]:
    """The fewest decimals that tell all marks apart."""
    for digits in range(7):
        labels = [f"{mark:.{digits}f}" for mark in marks]
        if all(abs(float(label) - mark) < 1e-9 for label, mark in zip(labels, marks, strict=True)):
            break
    return [label.replace("-", "−") for label in labels]


def timeline(folds: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The splits of all folds on one axis of time, or None where they have no place in time.

    Returns:
        ``ticks`` ``(percent, label)`` and ``rows``: ``name``, ``lanes`` (each a list of bars
        with ``split``, ``left``, ``width``, ``title``). Splits that overlap get a lane each.
    """
    extents = [fold.get("extent") or {} for fold in folds]
    if not extents or not all(any(extent.get(split) for split in SPLITS) for extent in extents):
        return None
    texts = [str(end) for extent in extents for ends in extent.values() for end in ends]
    parse = _reader(texts)
    if parse is None:
        return None
    places = [float(parse(text)) for text in texts]
    low, high = min(places), max(places)
    axis = Axis(low, high if high > low else low + 1, ())
    rows = []
    for fold, extent in zip(folds, extents, strict=True):
        bars: list[dict[str, Any]] = []
        for split in SPLITS:
            if extent.get(split):
                first, last = (axis(parse(str(end))) for end in extent[split])
                title = f"{split}: {extent[split][0]} to {extent[split][1]}"
                bars.append(
                    {"split": split, "left": first, "width": max(round(last - first, 3), 0.4), "title": title}
                )
        ends = [bar["left"] + bar["width"] for bar in bars]
        overlap = any(end > bar["left"] + 2 for end, bar in zip(ends, bars[1:], strict=False))
        rows.append({"name": fold["name"], "lanes": [[bar] for bar in bars] if overlap else [bars]})
    return {"ticks": _moments(axis, texts), "rows": rows}


def _reader(texts: Sequence[str]) -> Any:
    """A function from these texts to numbers: all whole numbers, or all ISO dates; else None."""

    def date(text: str) -> float:
        return float(np.datetime64(text, "s").astype(np.int64))

    for read in (int, date):
        try:
            for text in texts:
                read(text)
        except (ValueError, OverflowError):
            continue
        return read
    return None


def _moments(axis: Axis, texts: Sequence[str]) -> tuple[tuple[float, str], ...]:
    if _reader(texts) is int:
        from matplotlib.ticker import MaxNLocator

        marks = MaxNLocator(7, integer=True).tick_values(axis.low, axis.high)
        return tuple((axis(mark), f"{mark:.0f}") for mark in marks if axis.low <= mark <= axis.high)
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num, num2date

    ends = [datetime.fromtimestamp(end, UTC) for end in (axis.low, axis.high)]
    locator = AutoDateLocator(minticks=3, maxticks=8)
    days = [mark for mark in locator.tick_values(*ends) if date2num(ends[0]) <= mark <= date2num(ends[1])]
    labels = ConciseDateFormatter(locator).format_ticks(days)
    places = [axis(num2date(day).timestamp()) for day in days]
    return tuple(zip(places, labels, strict=True))


def learning_curves(history: Sequence[Mapping[str, Any]], most: int = 8) -> tuple[str, str] | None:
    """Loss, and what else validation measured, over the epochs; a panel a fold, a colour a member.

    Args:
        history: Rows of ``history.jsonl``, with ``fold`` and ``member``.
        most: Folds drawn, the newest; the rest is said in the caption.

    Returns:
        A data URI (SVG) and its caption, or None where there is no finite number.
    """
    folds = list(dict.fromkeys(str(row.get("fold", "")) for row in history))
    shown = folds[-most:]
    names = ["loss", *_measured(history)]
    rows = [row for row in history if _finite(row.get("loss")) or _finite(row.get("val_loss"))]
    if not rows:
        return None
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    columns = min(len(shown), 4)
    bands = -(-len(shown) // columns)
    figure = Figure(
        figsize=({1: 6.0, 2: 9.0}.get(columns, 10.6), 2.4 * bands * len(names)), layout="constrained"
    )
    FigureCanvasSVG(figure)
    grid = figure.subplots(bands * len(names), columns, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for place, fold in enumerate(shown):
        band, column = divmod(place, columns)
        for line, name in enumerate(names):
            axes = grid[band * len(names) + line][column]
            _panel(axes, [row for row in rows if str(row.get("fold", "")) == fold], name)
            if line == 0:
                axes.set_title(f"fold {fold}" if fold else "", fontsize=9, color=INK, loc="left")
            if column == 0:
                axes.set_ylabel(name, fontsize=9, color=MUTED)
    members = len({row.get("member") for row in history})
    caption = "Thick: validation, thin: training. " + (f"A colour a member ({members}). " * (members > 1))
    caption += "The dot is the best epoch of the loss of validation. A dotted line ends a phase."
    if len(folds) > len(shown):
        caption += f" The newest {len(shown)} of {len(folds)} folds are drawn."
    return _drawn(figure), caption


def _panel(axes: Any, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    axes.set_visible(True)
    for number, member in enumerate(dict.fromkeys(row.get("member") for row in rows)):
        mine = [row for row in rows if row.get("member") == member]
        epochs = np.arange(1, len(mine) + 1)
        colour = _COLOURS[number % len(_COLOURS)]
        train, validation = (
            np.array([_value(row.get(key)) for row in mine]) for key in (name, f"val_{name}")
        )
        # One epoch alone draws no line: markers, then.
        marker = {"marker": "o", "markersize": 3} if len(mine) == 1 else {}
        axes.plot(epochs, train, color=colour, linewidth=0.9, alpha=0.65, **marker)
        axes.plot(epochs, validation, color=colour, linewidth=1.9, **marker)
        if name == "loss" and np.isfinite(validation).any():
            best = int(np.nanargmin(validation))
            axes.plot(epochs[best], validation[best], "o", color=colour, markersize=4.5)
        for position in range(1, len(mine)):
            if mine[position].get("phase") != mine[position - 1].get("phase"):
                axes.axvline(position + 0.5, color=MUTED, linewidth=0.8, linestyle=":")
    _plain(axes)


def _plain(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=8, colors=MUTED, length=0)
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.spines[:].set_visible(False)


_USE: dict[str, dict[str, str]] = {
    "samples a second": {"samples_per_second": "training"},
    "share": {
        "input_bound_share": "waiting for input",
        "cpu_share": "CPU, this process",
        "machine_share": "CPU, all processes",
        "gpu_share": "GPU",
    },
    "memory, GiB": {"host_memory_gb": "this process", "host_free_gb": "free", "gpu_memory_gb": "GPU"},
}
"""Panels of :func:`use_curves`: what is drawn in each, by its name in the history."""


def use_curves(history: Sequence[Mapping[str, Any]], most: int = 400) -> tuple[str, str] | None:
    """Throughput, shares and memory over all epochs of the run, in the order they were trained.

    Args:
        history: Rows of epochs, with ``fold`` and ``member``; each may lack any of the numbers.
        most: Points drawn of a line; of more epochs every second, third, ...

    Returns:
        A data URI (SVG) and its caption, or None where there is no number.
    """
    has = {
        title: [key for key in keys if any(_finite(row.get(key)) for row in history)]
        for title, keys in _USE.items()
    }
    panels = {title: keys for title, keys in has.items() if keys}
    if not panels:
        return None
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.0, 3.5 * len(panels)), 2.5), layout="constrained")
    FigureCanvasSVG(figure)
    every = slice(None, None, -(-len(history) // most))
    epochs = np.arange(1, len(history) + 1)[every]
    for axes, (title, keys) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        for key, colour in zip(keys, _COLOURS, strict=False):
            values = [_value(row.get(key)) for row in history[every]]
            marker = {"marker": "o", "markersize": 3} if len(values) == 1 else {}
            axes.plot(epochs, values, color=colour, linewidth=1.4, label=_USE[title][key], **marker)
        axes.set_ylim(0, 1 if title == "share" else None)
        if len(keys) > 1:
            axes.legend(fontsize=7, frameon=False, labelcolor=MUTED)
        axes.set_title(title, fontsize=9, color=INK, loc="left")
        _plain(axes)
    caption = "Over all epochs of the run, in the order they were trained"
    return _drawn(figure), caption + (f"; one of {every.step} is drawn." if every.step > 1 else ".")


def _measured(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the metrics of validation beside the loss, at most two."""
    names = dict.fromkeys(
        key for row in history for key in row if key.startswith("val_") and key != "val_loss"
    )
    return [name.removeprefix("val_") for name in names][:2]


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and bool(np.isfinite(value))


def _value(value: Any) -> float:
    return float(value) if _finite(value) else float("nan")


def _drawn(figure: Any) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return data_uri(buffer.getvalue(), "image/svg+xml")


def data_uri(content: bytes, kind: str) -> str:
    """A file's content inside the page, so that the page needs no other file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
