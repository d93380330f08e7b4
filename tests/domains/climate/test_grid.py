"""Grids: orientation, seams, areas, coarsening, interpolation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domains.climate import grid as grids
from domains.climate.grid import Grid
from shared.errors import InputError

LAT, LON = np.linspace(-60.0, 60.0, 7), np.arange(0.0, 360.0, 30.0)


def field(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """A value that names its cell."""
    return latitude[:, None] * 1000 + (longitude % 360)[None, :]


@given(st.booleans(), st.integers(0, 11), st.booleans())
@settings(max_examples=25, deadline=None)
def test_order_and_convention_do_not_matter(descending: bool, shift: int, west: bool) -> None:
    latitude = LAT[::-1] if descending else LAT
    longitude = np.roll(LON, shift)
    if west:
        longitude = (longitude + 180) % 360 - 180
    values, grid = grids.canonical(field(latitude, longitude), latitude, longitude)
    assert np.array_equal(grid.latitude, LAT)
    assert np.array_equal(grid.longitude, LON)
    assert grid.periodic
    assert np.array_equal(values, field(LAT, LON))


def test_a_region_across_the_seam_stays_one_piece() -> None:
    longitude = np.array([0.0, 5.0, 10.0, 350.0, 355.0])
    values, grid = grids.canonical(field(LAT, longitude), LAT, longitude)
    assert grid.longitude.tolist() == [-10, -5, 0, 5, 10]
    assert not grid.periodic
    assert np.array_equal(values, field(LAT, grid.longitude))


def test_longitudes_from_west_to_east_lose_no_column() -> None:
    values, grid = grids.canonical(field(LAT, LON), LAT, LON)
    cut, part = grids.region(values, grid, None, (-60.0, 60.0))
    assert part.longitude.tolist() == [-60, -30, 0, 30, 60]
    assert np.array_equal(cut, field(LAT, part.longitude))
    same, _ = grids.region(values, grid, None, (300.0, 60.0))
    assert np.array_equal(same, cut)


def test_latitudes_are_sliced_whatever_the_order() -> None:
    values, grid = grids.canonical(field(LAT[::-1], LON), LAT[::-1], LON)
    for edges in ((0.0, 45.0), (45.0, 0.0)):
        cut, part = grids.region(values, grid, edges, None)
        assert part.latitude.tolist() == [0, 20, 40]
        assert np.array_equal(cut, field(part.latitude, LON))


def test_an_empty_selection_is_refused() -> None:
    values, grid = grids.canonical(field(LAT, LON), LAT, LON)
    with pytest.raises(InputError, match="No cell lies in"):
        grids.region(values, grid, (85.0, 89.0), None)


def test_a_repeated_column_is_dropped() -> None:
    longitude = np.append(LON, 360.0)
    values, grid = grids.canonical(field(LAT, longitude), LAT, longitude)
    assert grid.shape == (7, 12)
    assert values.shape == (7, 12)


@pytest.mark.parametrize(
    ("latitude", "message"),
    [([0, 1, 1], "same value twice"), ([0, 50, 100], "-90..90"), ([0, np.nan, 2], "missing")],
)
def test_bad_axes_are_refused(latitude: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        grids.canonical(np.zeros((3, 12)), np.array(latitude, float), LON)


def test_block_means_are_weighted_and_skip_missing_cells() -> None:
    grid = Grid(np.array([0.0, 60.0, 61.0, 62.0]), np.arange(4.0), False)
    values = np.array([[1.0, 1, 5, 5], [4, 4, np.nan, np.nan], [np.nan] * 4, [np.nan] * 4])
    means = grids.coarsen(values, grid, 2)
    assert means[0, 0] == pytest.approx((1 * 1 + 0.5 * 4) / 1.5, rel=1e-6)  # cos 0 = 1, cos 60 = 0.5
    assert means[0, 1] == 5
    assert np.isnan(means[1]).all()


def test_interpolation_keeps_a_linear_field_between_the_centres() -> None:
    fine = Grid(np.arange(16.0), np.arange(24.0), False)
    coarse = fine.coarse(4)
    plane = lambda g: 3 * g.latitude[:, None] - 2 * g.longitude[None, :]  # noqa: E731
    out = grids.interpolate(plane(coarse), coarse, fine)
    assert np.allclose(out[2:-2, 2:-2], plane(fine)[2:-2, 2:-2])


def test_interpolation_goes_round_the_globe() -> None:
    fine = Grid(np.arange(8.0), np.arange(0.0, 360.0, 15.0), True)
    coarse = fine.coarse(4)
    wave = np.cos(np.deg2rad(coarse.longitude))[None, :] * np.ones((2, 1))
    out = grids.interpolate(wave, coarse, fine)[0]
    # Rolled by one block, the same numbers: nothing is special about the seam.
    turned = grids.interpolate(np.roll(wave, 1, axis=1), coarse, fine)[0]
    assert np.allclose(np.roll(out, 4), turned)


def test_a_grid_survives_plain_data() -> None:
    for grid in (Grid(LAT, LON, True), Grid(np.array([0.0, 1, 3]), np.array([0.0, 2, 3, 7]), False)):
        again = Grid.from_dict(grid.to_dict())
        assert np.allclose(again.latitude, grid.latitude)
        assert np.allclose(again.longitude, grid.longitude)
        assert again.periodic == grid.periodic
        assert grid.like(again)


def test_matching_finds_cells_under_another_convention() -> None:
    wide = Grid(LAT, LON, True)
    found = grids.matching(wide, Grid(LAT[2:4], np.array([-60.0, -30, 0]), False))
    assert found is not None
    assert found[0].tolist() == [2, 3]
    assert found[1].tolist() == [10, 11, 0]
    assert grids.matching(wide, Grid(LAT[2:4], np.array([-61.0, -31]), False)) is None
