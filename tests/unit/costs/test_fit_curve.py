"""Curves from samples: pools, medians, outliers, monotone repair, and the hint at the capture limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.isotonic import isotonic_regression

from avsim.costs.fit_curve import CurveRule, find_jump, find_outliers, fit_curve, pool_sizes, repair
from avsim.errors import InputError
from tests.unit.costs.fit_cases import stair_steps, stairs

CAPTURED = tuple(range(8, 65, 8))


def test_a_staircase_with_a_cliff_is_recovered_within_the_error_of_a_median() -> None:
    sigma, steps = 0.03, stair_steps(sigma=0.03)
    size = steps.tokens.astype(np.int64)
    rule = CurveRule(capture_sizes=CAPTURED)
    curve = fit_curve(size, steps.forward_ms, rule)
    assert curve is not None
    sizes, ms = np.asarray(curve.points).T
    assert sizes[:8].tolist() == list(CAPTURED)
    # The standard error of a Gaussian median is 1.2533 σ/√n; five of them, at 72 points, fail once in 25,000 seeds.
    assert (np.abs(ms / stairs(sizes) - 1) < 5 * 1.2533 * sigma / np.sqrt(curve.counts)).all()
    assert curve.jump is not None
    assert (curve.jump.below, curve.jump.above) == (64, 65)
    assert curve.jump.ratio == pytest.approx(stairs(np.array([65.0]))[0] / stairs(np.array([64.0]))[0], rel=0.05)
    table = curve.predict(np.arange(1, 65), rule.limit)
    assert len(np.unique(table)) == 8, "a staircase below the limit"


def test_the_curve_is_the_median_of_all_samples_outliers_included() -> None:
    size = np.repeat([1, 2], 5)
    ms = np.array([1.0, 1.1, 1.2, 1.3, 99.0, 2.0, 2.1, 2.2, 2.3, 50.0])
    curve = fit_curve(size, ms, CurveRule())
    assert curve is not None
    assert curve.points == ((1, 1.2), (2, 2.2))
    ms[[4, 9]] *= 1e6
    again = fit_curve(size, ms, CurveRule())
    assert again is not None
    assert again.points == curve.points


def test_planted_outliers_are_found_and_no_others() -> None:
    rng = np.random.default_rng(2)
    size = np.repeat(np.arange(1, 21), 50)
    ms = size * (1 + 0.02 * rng.normal(size=1000))
    planted = rng.choice(1000, 20, replace=False)
    ms[planted] *= np.where(np.arange(20) % 2, 3.0, 0.4)
    found, ratio = find_outliers(ms, pool_sizes(size, CurveRule()))
    assert np.flatnonzero(found).tolist() == sorted(planted.tolist())
    assert (np.abs(np.log(ratio[planted])) > 0.8).all()


def test_small_deviations_of_nearly_constant_timings_are_no_outliers() -> None:
    ms = np.array([1.0] * 9 + [1.04, 1.06])
    found, _ = find_outliers(ms, pool_sizes(np.ones(11, dtype=np.int64), CurveRule()))
    assert found.tolist() == [False] * 10 + [True], "the floor is 5 %"


def test_repairs_equal_their_definitions() -> None:
    rng = np.random.default_rng(3)
    ms, counts = rng.gamma(5.0, 1.0, 40), rng.integers(1, 30, 40)
    assert repair(ms, counts, "running-max").tolist() == [ms[: i + 1].max() for i in range(40)]
    expected = isotonic_regression(ms, sample_weight=counts)
    assert repair(ms, counts, "isotonic") == pytest.approx(expected, rel=1e-12)


def test_running_max_keeps_raw_medians_and_isotonic_writes_the_repaired_ones() -> None:
    size, ms = np.repeat([1, 2, 3], 5), np.repeat([2.0, 1.0, 4.0], 5)
    raw = fit_curve(size, ms, CurveRule())
    flat = fit_curve(size, ms, CurveRule(monotone="isotonic"))
    assert raw is not None
    assert flat is not None
    assert raw.points == ((1, 2.0), (2, 1.0), (3, 4.0))
    assert raw.predict(np.array([1, 2, 3]), 0).tolist() == [2.0, 2.0, 4.0]
    assert raw.repaired == (1, 1.0)
    assert flat.points == ((1, 1.5), (2, 1.5), (3, 4.0))


def test_thin_sizes_are_pooled_upwards_within_a_quarter_and_else_left_out() -> None:
    size = np.array([16] * 3 + [17] * 2 + [20] * 5 + [30] * 2 + [40] * 5 + [100] * 4)
    pools = pool_sizes(size, CurveRule(min_samples=5))
    assert pools.points.tolist() == [17, 20, 40]
    assert pools.counts.tolist() == [5, 5, 5]
    assert (pools.of[size == 30] == -1).all()
    assert (pools.of[size == 100] == -1).all()


def test_pools_never_cross_the_capture_limit_and_beyond_it_stand_at_their_mean() -> None:
    size = np.array([50, 63, 64, 65, 66, 66, 90])
    pools = pool_sizes(size, CurveRule(min_samples=3, capture_limit=64))
    assert pools.points.tolist() == [66]
    assert pools.of.tolist() == [-1, -1, -1, 0, 0, 0, -1]
    assert pool_sizes(size, CurveRule(min_samples=3)).points.tolist() == [65], "no limit, no border"
    assert pool_sizes(np.array([100, 100, 120]), CurveRule(min_samples=3, capture_limit=64)).points.tolist() == [107]


def test_proportional_growth_and_noise_are_no_jump() -> None:
    points, many = np.array([1, 2, 4, 1024, 4096]), np.full(5, 100)
    assert find_jump(points, np.array([1.0, 2.0, 4.0, 1024.0, 4096.0]), many, 0.01) is None
    jump = find_jump(points, np.array([1.0, 1.0, 1.1, 2.0, 12.0]), many, 0.01)
    assert jump is not None
    assert (jump.below, jump.above, jump.ratio) == (1024, 4096, pytest.approx(6.0))
    close = np.array([100, 101])
    assert find_jump(close, np.array([1.0, 1.5]), np.array([5, 5]), 0.3) is None, "within the noise of two medians"
    assert find_jump(close, np.array([1.0, 1.5]), np.array([5, 5]), 0.02) is not None


def test_medians_that_a_source_gives_are_taken_and_differences_told() -> None:
    size, ms = np.repeat([1, 2], 5), np.repeat([1.0, 2.0], 5)
    curve = fit_curve(size, ms, CurveRule(), given=[(1, 1.0), (2, 2.5), (4, 3.0)])
    assert curve is not None
    assert curve.points == ((1, 1.0), (2, 2.5), (4, 3.0))
    assert curve.counts.tolist() == [5, 5, 1]
    assert curve.differing == ((2, 2.5, 2.0),)


def test_no_supported_size_gives_no_curve() -> None:
    assert fit_curve(np.array([1, 5, 9]), np.ones(3), CurveRule(min_samples=2)) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_samples": 0}, "--min-samples must be at least 1"),
        ({"capture_limit": -1}, "--capture-limit must be at least 0"),
        ({"capture_sizes": (4, 2)}, "must rise strictly"),
        ({"capture_sizes": (0, 2)}, "must rise strictly"),
        ({"capture_sizes": (1, 2), "capture_limit": 4}, "they must agree"),
        ({"monotone": "max"}, "running-max or isotonic"),
    ],
)
def test_bad_rules_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CurveRule(**options)
