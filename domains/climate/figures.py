"""The figures of a climate run, by matplotlib's objects: no pyplot, no state left behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domains.climate import baselines
from domains.climate.grid import Grid
from shared import files
from shared.contract import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, FAINT = "#22303c", "#6b7885", "#dfe4e8"
MODEL = "#00695c"
_OTHERS = ("#c0562b", "#5b4b9a", "#b08900", "#3a7ca5", "#a33b66", "#8a8f94")
ABSOLUTE, DIFFERENCE, ERROR = "viridis", "RdBu_r", "magma_r"


def errors_in_time(path: Path, said: Mapping[str, Predictions], grid: Grid, unit: str) -> None:
    """RMSE of each test map; on a log axis where the worst is more than five times the best."""
    area = grid.area()
    figure = _figure(9.0, 3.6)
    axes = figure.subplots()
    curves = {
        name: np.array(
            [baselines.rmse(v[None], t[None], area) for v, t in zip(one.values, one.truth, strict=True)]
        )
        for name, one in said.items()
    }
    order = np.argsort(said["model"].keys, kind="stable")
    for number, (name, values) in enumerate(sorted(curves.items(), key=lambda c: -c[1].mean())):
        ours = name == "model"
        axes.plot(
            values[order],
            color=MODEL if ours else _OTHERS[number % len(_OTHERS)],
            lw=2.2 if ours else 1.1,
            zorder=3 if ours else 2,
            label=f"{name}  {np.sqrt((values**2).mean()):.3f}",
        )
    keys = [str(key).split(" (")[0] for key in said["model"].keys[order]]
    every = max(1, len(keys) // 9)
    axes.set_xticks(range(0, len(keys), every), keys[::every])
    lowest, highest = min(c.min() for c in curves.values()), max(c.max() for c in curves.values())
    if highest > 5 * lowest > 0:
        axes.set_yscale("log")
        from matplotlib.ticker import FuncFormatter, NullFormatter

        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        marks = [m for m in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if lowest * 0.8 <= m <= highest * 1.2]
        axes.set_yticks(marks)
    axes.set_ylabel(f"RMSE ({unit})")
    axes.grid(axis="y", color=FAINT)
    axes.legend(
        frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), title="all maps", title_fontsize=8
    )
    _save(figure, path)


def bias_maps(path: Path, errors: Mapping[str, Mapping[str, Any]], grid: Grid, unit: str) -> None:
    """Bias (top) and RMSE in time (bottom), a column each contender, on common scales."""
    figure = _figure(*_size(grid, len(errors), 2))
    axes = figure.subplots(2, len(errors), squeeze=False, sharex=True, sharey=True)
    widest = max(_high(np.abs(e["bias map"])) for e in errors.values())
    highest = max(_high(e["rmse map"]) for e in errors.values())
    for column, (name, e) in enumerate(errors.items()):
        top = _map(axes[0, column], e["bias map"], grid, DIFFERENCE, -widest, widest)
        below = _map(axes[1, column], e["rmse map"], grid, ERROR, 0.0, highest)
        axes[0, column].set_title(f"{name}: mean error", loc="left")
        axes[1, column].set_title(f"{name}: RMSE", loc="left")
    _bar(figure, top, axes[0], unit, "both")
    _bar(figure, below, axes[1], unit, "max")
    _save(figure, path)


def example(
    path: Path,
    key: str,
    truth: np.ndarray,
    said: Mapping[str, np.ndarray],
    reference: tuple[str, np.ndarray],
    grid: Grid,
    unit: str,
) -> None:
    """Truth and maps (top); below, what was to be found over ``reference`` and what each got wrong."""
    figure = _figure(*_size(grid, 1 + len(said), 2))
    axes = figure.subplots(2, 1 + len(said), squeeze=False, sharex=True, sharey=True)
    low, high = float(np.nanmin(truth)), float(np.nanmax(truth))
    wrong = {name: np.where(np.isfinite(truth), values - truth, np.nan) for name, values in said.items()}
    widest = max(_high(np.abs(error)) for error in wrong.values())
    top = _map(axes[0, 0], truth, grid, ABSOLUTE, low, high)
    axes[0, 0].set_title(f"truth, {key}", loc="left")
    for column, (name, values) in enumerate(said.items(), start=1):
        _map(axes[0, column], np.where(np.isfinite(truth), values, np.nan), grid, ABSOLUTE, low, high)
        below = _map(axes[1, column], wrong[name], grid, DIFFERENCE, -widest, widest)
        axes[0, column].set_title(name, loc="left")
        rmse = baselines.rmse(values[None], truth[None], grid.area())
        axes[1, column].set_title(f"its error, RMSE {rmse:.3f} {unit}", loc="left")
    sought = truth - reference[1]
    far = _high(np.abs(sought))
    left = _map(axes[1, 0], sought, grid, "PuOr_r", -far, far)
    axes[1, 0].set_title(f"to be found: truth - {reference[0]}", loc="left")
    _bar(figure, top, axes[0], unit, "neither")
    _bar(figure, below, axes[1, 1:], f"error, {unit}", "both")
    _bar(figure, left, [axes[1, 0]], "", "both", where="left")
    _save(figure, path)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _size(grid: Grid, columns: int, rows: int) -> tuple[float, float]:
    """Inches for a table of maps that keep the region's shape."""
    width = 3.4
    shape = float(np.clip(grid.shape[0] / grid.shape[1] * 1.2, 0.3, 1.6))
    return width * columns + 1.2, (width * shape + 0.55) * rows


def _map(axes: Axes, values: np.ndarray, grid: Grid, colours: str, low: float, high: float) -> Any:
    axes.set_facecolor("#f0f0f0")  # missing cells: neither sea nor land, plainly nothing
    mesh = axes.pcolormesh(
        grid.longitude,
        grid.latitude,
        np.ma.masked_invalid(values),
        cmap=colours,
        vmin=low,
        vmax=high if high > low else low + 1.0,
        shading="nearest",
        rasterized=True,
    )
    axes.xaxis.set_major_formatter(_degrees("E", "W"))
    axes.yaxis.set_major_formatter(_degrees("N", "S"))
    axes.locator_params(nbins=4)
    return mesh


def _degrees(positive: str, negative: str) -> Any:
    def write(value: float, _: int) -> str:
        if positive == "E":
            value = (value + 180.0) % 360.0 - 180.0
        return f"{abs(value):g}°{positive if value > 0 else negative if value < 0 else ''}"

    return write


def _bar(figure: Figure, mesh: Any, axes: Any, label: str, extend: str, where: str = "right") -> None:
    bar = figure.colorbar(
        mesh, ax=list(axes), label=label, extend=extend, shrink=0.86, aspect=22, pad=0.015, location=where
    )
    bar.outline.set_visible(False)  # type: ignore[operator]


def _high(values: np.ndarray) -> float:
    """The 99th percentile: one odd cell must not wash out the rest."""
    known = values[np.isfinite(values)]
    return float(np.quantile(known, 0.99)) if len(known) else 1.0


def _save(figure: Figure, path: Path) -> None:
    for axes in figure.axes:
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(MUTED)
        axes.tick_params(colors=MUTED, labelsize=8)
        axes.set_title(axes.get_title(loc="left"), loc="left", fontsize=9, color=INK)
        axes.yaxis.label.set_fontsize(8.5)
        axes.xaxis.label.set_fontsize(8.5)
        legend = axes.get_legend()
        for text in legend.get_texts() if legend else ():
            text.set_fontsize(8)
    with files.atomic(path) as temporary:
        figure.savefig(temporary)
