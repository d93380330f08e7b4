"""Latitude-longitude grids: one canonical orientation, areas, coarsening, interpolation.

Canonical means: latitude ascending; longitude ascending without a jump, starting in
[-180, 360). A file's own order and convention end at :func:`canonical`, so that nothing
after it slices the wrong way (xarray#1613) or loses what lies beyond the seam.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.errors import InputError

MAX_LISTED = 6


@dataclass(frozen=True, eq=False)
class Grid:
    """Cell centres of a rectilinear grid in canonical orientation.

    Attributes:
        latitude: Degrees north, float64 ``[lat]``, ascending.
        longitude: Degrees east, float64 ``[lon]``, ascending.
        periodic: The last column is the first one's western neighbour.
    """

    latitude: np.ndarray
    longitude: np.ndarray
    periodic: bool

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.latitude), len(self.longitude)

    def area(self) -> np.ndarray:
        """Weight of each cell, float64 ``[lat, lon]``, mean 1: the cosine of its latitude."""
        cosine = np.cos(np.deg2rad(self.latitude)).clip(min=0)
        weights = np.repeat(cosine[:, None], len(self.longitude), axis=1)
        return weights / weights.mean()

    def like(self, other: Grid) -> bool:
        """Whether both have the same cells, to a thousandth of a cell."""
        return self.shape == other.shape and bool(
            np.allclose(self.latitude, other.latitude, rtol=0, atol=1e-3 * _spacing(self.latitude))
            and np.allclose(self.longitude, other.longitude, rtol=0, atol=1e-3 * _spacing(self.longitude))
        )

    def cropped(self, factor: int) -> Grid:
        """The largest grid from the south-western corner that whole blocks of ``factor`` cover.

        Raises:
            InputError: Fewer than two blocks along one side.
        """
        rows, columns = self.shape[0] // factor * factor, self.shape[1] // factor * factor
        if rows < 2 * factor or columns < 2 * factor:
            raise InputError(
                f"A grid of {self.shape[0]} x {self.shape[1]} cells has no two blocks of {factor} x {factor} "
                "along each side.",
                "Set a smaller downscaling.factor or take a larger region.",
            )
        whole = columns == self.shape[1]
        return Grid(self.latitude[:rows], self.longitude[:columns], self.periodic and whole)

    def coarse(self, factor: int) -> Grid:
        """The grid of the blocks' centres. Sides must be multiples of ``factor``."""
        return Grid(
            self.latitude.reshape(-1, factor).mean(axis=1),
            self.longitude.reshape(-1, factor).mean(axis=1),
            self.periodic,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data: evenly spaced axes as first, last and count, others as lists."""
        return {
            "latitude": _axis_to_plain(self.latitude),
            "longitude": _axis_to_plain(self.longitude),
            "periodic": self.periodic,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Grid:
        return cls(
            _axis_from_plain(values["latitude"]),
            _axis_from_plain(values["longitude"]),
            bool(values["periodic"]),
        )

    def __str__(self) -> str:
        return (
            f"{self.shape[0]} x {self.shape[1]} cells, {self.latitude[0]:g} to {self.latitude[-1]:g} N, "
            f"{self.longitude[0]:g} to {self.longitude[-1]:g} E"
            + (", round the globe" if self.periodic else "")
        )


def canonical(values: np.ndarray, latitude: np.ndarray, longitude: np.ndarray) -> tuple[np.ndarray, Grid]:
    """Brings maps ``[..., lat, lon]`` into canonical orientation.

    Longitudes are cut open at their widest gap, so that -10..10 on a 0-360 grid stays one
    piece; a repeated column (0 and 360) is dropped.

    Raises:
        InputError: An axis has repeated or missing values, or latitudes beyond the poles.
    """
    latitude, longitude = np.asarray(latitude, np.float64), np.asarray(longitude, np.float64)
    for name, axis in (("latitude", latitude), ("longitude", longitude)):
        if not np.isfinite(axis).all():
            raise InputError(f"The {name} has missing values.")
    if np.abs(latitude).max() > 90.001:
        raise InputError(f"Latitudes must lie in -90..90, received {latitude.min():g}..{latitude.max():g}.")
    rows = np.argsort(latitude, kind="stable")
    if len(rows) > 1 and np.diff(latitude[rows]).min() <= 0:
        raise InputError("The latitude has the same value twice.")
    # Rounded, or 359.99999 and 0 would be two columns.
    turned = np.round(longitude % 360.0, 6) % 360.0
    around, columns = np.unique(turned, return_index=True)
    gaps = np.diff(np.append(around, around[0] + 360.0))
    spacing = float(np.median(gaps[:-1])) if len(gaps) > 1 else 360.0
    periodic = len(around) > 2 and float(gaps.max()) < 1.5 * spacing
    start = 0 if periodic else (int(np.argmax(gaps)) + 1) % len(around)
    columns = np.roll(columns, -start)
    east = np.roll(around, -start)
    east = np.where(east < east[0], east + 360.0, east)
    if east[-1] >= 360.0:
        east = east - 360.0
    return values[..., rows, :][..., columns], Grid(latitude[rows], east, periodic)


def region(
    values: np.ndarray,
    grid: Grid,
    latitude: tuple[float, float] | None,
    longitude: tuple[float, float] | None,
) -> tuple[np.ndarray, Grid]:
    """Cuts maps ``[..., lat, lon]`` to a region; edges in any order and convention.

    Raises:
        InputError: No cell's centre lies inside.
    """
    rows = np.arange(grid.shape[0])
    if latitude is not None:
        south, north = sorted(latitude)
        rows = np.flatnonzero((grid.latitude >= south) & (grid.latitude <= north))
    columns = np.arange(grid.shape[1])
    if longitude is not None:
        west, east = longitude
        width = (east - west) % 360.0 or (360.0 if east != west else 0.0)
        columns = np.flatnonzero((grid.longitude - west) % 360.0 <= width + 1e-9)
    if len(rows) == 0 or len(columns) == 0:
        raise InputError(
            f"No cell lies in latitude {latitude}, longitude {longitude}; the data cover {grid}.",
            "Give edges inside the data, south before north and west before east.",
        )
    if len(rows) == grid.shape[0] and len(columns) == grid.shape[1]:
        return values, grid
    return canonical(values[..., rows, :][..., columns], grid.latitude[rows], grid.longitude[columns])


def matching(grid: Grid, wanted: Grid) -> tuple[np.ndarray, np.ndarray] | None:
    """Rows and columns of ``grid`` that are the cells of ``wanted``, or None where some are missing."""
    rows = _find(grid.latitude, wanted.latitude, None)
    columns = _find(grid.longitude, wanted.longitude, 360.0)
    return None if rows is None or columns is None else (rows, columns)


def nearest(grid: Grid, latitude: float, longitude: float) -> tuple[int, int] | None:
    """Row and column of the cell around a place, in any convention of longitude; None outside."""
    north = np.abs(grid.latitude - latitude)
    east = np.abs((grid.longitude - longitude + 180.0) % 360.0 - 180.0)
    row, column = int(north.argmin()), int(east.argmin())
    # To half a cell beyond the outermost centres, and a thousandth for rounding.
    inside = north[row] <= 0.501 * _spacing(grid.latitude) and east[column] <= 0.501 * _spacing(
        grid.longitude
    )
    return (row, column) if inside else None


def blocks(values: np.ndarray, factor: int) -> np.ndarray:
    """``[..., lat, lon]`` as ``[..., lat/f, lon/f, f*f]``: the cells of each block, row by row."""
    *lead, rows, columns = values.shape
    split = values.reshape(*lead, rows // factor, factor, columns // factor, factor)
    return np.moveaxis(split, -3, -2).reshape(*lead, rows // factor, columns // factor, factor * factor)


def coarsen(values: np.ndarray, grid: Grid, factor: int) -> np.ndarray:
    """Area-weighted means of blocks, float32 ``[..., lat/f, lon/f]``.

    Missing cells count for nothing and the weights of the others are renormalised; a block
    without any value is NaN. Sums run in float64.
    """
    cells = blocks(np.asarray(values, np.float64), factor)
    known = np.isfinite(cells)
    weights = np.where(known, blocks(grid.area(), factor), 0.0)
    total = weights.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (weights * np.where(known, cells, 0.0)).sum(axis=-1) / total
    return np.where(total > 0, means, np.nan).astype(np.float32)


def interpolation(coarse: Grid, fine: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Matrices of bilinear interpolation, float64 ``[fine lat, coarse lat]`` and ``[fine lon, coarse lon]``.

    Beyond the outermost centres the value is held; a periodic grid goes on round the globe.
    """
    rows = _linear(coarse.latitude, fine.latitude)
    if not coarse.periodic:
        return rows, _linear(coarse.longitude, fine.longitude)
    count = len(coarse.longitude)
    around = np.concatenate([[coarse.longitude[-1] - 360.0], coarse.longitude, [coarse.longitude[0] + 360.0]])
    wide = _linear(around, fine.longitude)
    columns = wide[:, 1 : count + 1].copy()
    columns[:, -1] += wide[:, 0]
    columns[:, 0] += wide[:, -1]
    return rows, columns


def interpolate(values: np.ndarray, coarse: Grid, fine: Grid) -> np.ndarray:
    """Bilinear, float64 ``[..., lat, lon]``; around missing cells the known ones' weights are renormalised."""
    rows, columns = interpolation(coarse, fine)
    known = np.isfinite(values)
    filled = np.where(known, values, 0.0).astype(np.float64)
    if known.all():
        return rows @ filled @ columns.T
    share = rows @ known.astype(np.float64) @ columns.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(share > 1e-9, (rows @ filled @ columns.T) / share, np.nan)


def _linear(at: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    matrix = np.zeros((len(wanted), len(at)))
    place = np.clip(np.interp(wanted, at, np.arange(len(at))), 0, len(at) - 1)
    left = np.minimum(place.astype(int), max(len(at) - 2, 0))
    share = place - left
    matrix[np.arange(len(wanted)), left] += 1 - share
    matrix[np.arange(len(wanted)), np.minimum(left + 1, len(at) - 1)] += share
    return matrix


def _find(axis: np.ndarray, wanted: np.ndarray, period: float | None) -> np.ndarray | None:
    distance = np.abs(axis[None, :] - wanted[:, None])
    if period is not None:
        distance = np.minimum(distance % period, -distance % period)
    nearest = distance.argmin(axis=1)
    close = distance[np.arange(len(wanted)), nearest] <= 1e-3 * _spacing(wanted)
    return nearest if bool(close.all()) else None


def _spacing(axis: np.ndarray) -> float:
    return float(np.median(np.abs(np.diff(axis)))) if len(axis) > 1 else 1.0


def _axis_to_plain(axis: np.ndarray) -> dict[str, Any] | list[float]:
    even = np.linspace(axis[0], axis[-1], len(axis))
    if len(axis) > MAX_LISTED and np.allclose(axis, even, rtol=0, atol=1e-6):
        return {"first": float(axis[0]), "last": float(axis[-1]), "count": len(axis)}
    return [float(value) for value in axis]


def _axis_from_plain(values: Any) -> np.ndarray:
    if isinstance(values, Mapping):
        return np.linspace(values["first"], values["last"], int(values["count"]))
    return np.asarray(values, np.float64)
