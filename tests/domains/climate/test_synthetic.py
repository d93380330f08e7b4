"""Synthetic scenarios: what is planted is there, what is said to be noise is noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domains.climate import baselines, loader, synthetic
from domains.climate import grid as grids

from .conftest import ingested

SAMPLE = Path(__file__).parents[3] / "data" / "samples" / "climate"


def test_the_sample_is_what_the_code_makes(tmp_path: Path) -> None:
    synthetic.write_sample(tmp_path)
    kept = sorted(SAMPLE.glob("*.nc"))
    assert [path.name for path in kept] == ["high.nc", "low.nc"]
    for path in kept:
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()
    assert sum(path.stat().st_size for path in SAMPLE.iterdir()) < 300_000


def test_the_sample_says_that_it_is_synthetic(tmp_path: Path) -> None:
    card, _ = ingested(SAMPLE, tmp_path / "prepared")
    assert card.synthetic
    assert card.facts["unit"] == "degC converted to K"
    assert "identical 1900 to 1929 (30 maps)" in card.facts["shared history"]


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_detail_follows_the_coarse_map_only_with_strength(tmp_path: Path, strength: float) -> None:
    synthetic.write(tmp_path, seed=3, strength=strength)
    fine = loader.read(tmp_path / "high.nc")
    coarse = grids.coarsen(fine.values, fine.grid, synthetic.FACTOR)
    anomaly = coarse - baselines.mean_of(coarse)
    smooth = grids.interpolate(anomaly, fine.grid.coarse(synthetic.FACTOR), fine.grid)
    detail = fine.values - baselines.mean_of(fine.values) - smooth
    a = np.kron(anomaly, np.ones((4, 4)))
    square = a**2 - (a**2).mean(axis=0)
    # Correlation in time of each cell's detail with its block's squared anomaly.
    together = (detail * square).mean(axis=0) / (detail.std(axis=0) * square.std(axis=0))
    typical = float(np.median(np.abs(together)))
    assert typical > 0.5 if strength else typical < 0.15


def test_the_noise_floor_is_what_remains_when_all_is_known(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fine = loader.read(SAMPLE / "high.nc").grid
    noise = synthetic.NOISE * synthetic._without_block_means(rng.normal(size=(200, *fine.shape)), fine)
    assert np.sqrt((noise**2).mean()) == pytest.approx(synthetic.noise_floor(), rel=0.01)


def test_another_seed_makes_another_world(tmp_path: Path) -> None:
    for seed in (1, 2):
        synthetic.write(tmp_path / str(seed), seed=seed, years=10)
    one, other = (loader.read(tmp_path / str(seed) / "high.nc").values for seed in (1, 2))
    assert not np.allclose(one, other, atol=0.5)
