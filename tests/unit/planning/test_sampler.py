"""The ensemble sampler against densities whose moments are known."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.planning.sampler import sample
from avsim.types import F64Array

MEAN = np.array([1.0, -2.0, 0.5])
COVARIANCE = np.array([[4.0, 1.2, 0.0], [1.2, 0.5, 0.1], [0.0, 0.1, 0.2]])
WALKERS = 40


def gaussian(x: F64Array) -> F64Array:
    gap = x - MEAN
    return np.asarray(-0.5 * np.einsum("ni,ij,nj->n", gap, np.linalg.inv(COVARIANCE), gap))


def start(width: int, centre: float = 0.0, walkers: int = WALKERS) -> F64Array:
    return centre + np.random.default_rng(9).standard_normal((walkers, width))


def test_a_correlated_gaussian_is_recovered() -> None:
    draws, moved = sample(gaussian, start(3, 5.0), 6000, seed=1)
    # Walkers are steps apart that are nearly independent, so the spread of their means is the Monte-Carlo error.
    by_walker = draws.reshape(-1, WALKERS, 3).mean(axis=0)
    error = by_walker.std(axis=0) / np.sqrt(WALKERS)
    assert (np.abs(draws.mean(axis=0) - MEAN) < 4 * error).all()
    assert (error < 0.06 * np.sqrt(np.diag(COVARIANCE))).all()
    assert np.cov(draws.T) == pytest.approx(COVARIANCE, rel=0.08, abs=0.05)
    assert 0.3 < moved < 0.9


def test_walkers_move_along_lines_to_the_other_half() -> None:
    begin = start(2)
    begin[: WALKERS // 2, 1], begin[WALKERS // 2 :, 1] = 0.0, 1.0
    draws, _ = sample(lambda x: -0.5 * (x**2).sum(axis=1), begin, 40, seed=5)
    assert not np.isin(draws[:, 1], [0.0, 1.0]).all()
    assert len(np.unique(draws[:, 1])) > WALKERS


def test_half_of_the_sweeps_are_thrown_away_and_every_tenth_kept() -> None:
    draws, _ = sample(gaussian, start(3), 100, seed=1)
    assert draws.shape == (5 * WALKERS, 3)
    draws, _ = sample(gaussian, start(3), 100, seed=1, keep_every=1)
    assert draws.shape == (50 * WALKERS, 3)


@pytest.mark.parametrize("outside", [-np.inf, np.nan])
def test_where_the_density_is_0_no_walker_goes(outside: float) -> None:
    def half_normal(x: F64Array) -> F64Array:
        return np.where(x[:, 0] > 0, -0.5 * x[:, 0] ** 2, outside)

    draws, _ = sample(half_normal, np.abs(start(1)) + 0.1, 4000, seed=2)
    assert (draws > 0).all()
    assert draws.mean() == pytest.approx(np.sqrt(2 / np.pi), rel=0.03)


def test_the_same_seed_gives_the_same_draws_and_the_start_stays() -> None:
    begin = start(3)
    kept = begin.copy()
    one, _ = sample(gaussian, begin, 60, seed=3)
    same, _ = sample(gaussian, begin, 60, seed=3)
    other, _ = sample(gaussian, begin, 60, seed=4)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert np.array_equal(begin, kept)
