"""Moving means and block means against what they are short for."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.policies.moving import block_means, moving_mean


def test_until_the_horizon_it_is_the_plain_mean() -> None:
    rng = np.random.default_rng(0)
    groups = [rng.random(size) for size in (1, 5, 2, 7)]
    mean, seen = np.array([9.0]), np.zeros(1)
    for group in groups:
        mean, seen = moving_mean(mean, seen, np.array([group.mean()]), np.array([len(group)]), 15)
    assert mean[0] == pytest.approx(np.concatenate(groups).mean())
    assert seen[0] == 15


def test_past_the_horizon_old_values_fade_and_a_large_batch_replaces_them() -> None:
    mean, seen = np.array([0.0]), np.array([10.0])
    once, _ = moving_mean(mean, seen, np.array([1.0]), np.array([1]), 10)
    assert once[0] == pytest.approx(0.1)
    assert moving_mean(mean, seen, np.array([1.0]), np.array([30]), 10)[0][0] == 1.0


def test_nothing_seen_changes_nothing() -> None:
    mean, seen = moving_mean(np.array([0.3]), np.zeros(1), np.array([np.nan]), np.array([0]), 10)
    assert (mean[0], seen[0]) == (0.3, 0.0)


@pytest.mark.parametrize("count", [1, 3, 8, 13])
def test_block_means_are_those_of_the_values_repeated(count: int) -> None:
    """J copies of each value cut into J blocks of `count`: what parts of values come to."""
    values = -np.sort(-np.random.default_rng(count).random(count))
    got = block_means(np.concatenate((values, [-1.0, -1.0]))[None], np.array([count]), 5)[0]
    assert got == pytest.approx(values.repeat(5).reshape(5, count).mean(axis=1))
    assert got.mean() == pytest.approx(values.mean())


def test_no_values_have_means_of_zero() -> None:
    assert block_means(np.array([[-1.0, -1.0]]), np.array([0]), 3).tolist() == [[0.0, 0.0, 0.0]]
