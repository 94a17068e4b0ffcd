"""Lengths follow the laws that their specs name."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from avsim.errors import InputError
from avsim.sources.lengths import LONGEST, Geometric, Lengths, LogNormal, Uniform, make

NUM = 20_000


def drawn(law: Lengths, least: int = 2, seed: int = 0) -> np.ndarray:
    return law.draw(NUM, least, np.random.default_rng(seed))


def assert_law(lengths: np.ndarray, shares: np.ndarray, at: np.ndarray) -> None:
    """Hold P(L ≤ l) of the draws against the law's; 4 standard errors."""
    found = (lengths[:, None] <= at).mean(axis=0)
    assert (np.abs(found - shares) <= 4 * np.sqrt(shares * (1 - shares) / NUM) + 1e-12).all()


def test_uniform_takes_both_ends() -> None:
    lengths, at = drawn(Uniform(low=3, high=12)), np.arange(2, 13)
    assert_law(lengths, (at - 2) / 10, at)
    np.testing.assert_array_equal(np.unique(lengths), np.arange(3, 13))
    assert set(drawn(Uniform(low=LONGEST, high=LONGEST))) == {LONGEST}


def test_lognormal_is_that_of_scipy_rounded() -> None:
    at = np.array([20, 60, 150, 300, 900])
    law = stats.lognorm(s=0.8, scale=200 * np.exp(-(0.8**2) / 2))
    lengths = drawn(LogNormal(mean=200.0, sigma=0.8))
    assert_law(lengths, law.cdf(at + 0.5), at)
    assert lengths.mean() == pytest.approx(200, rel=0.03)
    assert set(drawn(LogNormal(mean=50.0, sigma=0.0))) == {50}


def test_geometric_is_that_of_scipy_after_the_shortest() -> None:
    at = np.array([2, 5, 20, 60])
    lengths = drawn(Geometric(mean=20.0))
    assert_law(lengths, stats.geom(1 / 19, loc=1).cdf(at), at)
    assert lengths.mean() == pytest.approx(20, rel=0.03)
    assert lengths.min() == 2
    assert set(drawn(Geometric(mean=2.0))) == {2}
    assert drawn(Geometric(mean=5.0), least=0).min() == 0


@pytest.mark.parametrize("law", [LogNormal(mean=200.0, sigma=0.8, max=300), Geometric(mean=200.0, max=300)])
def test_what_is_longer_than_max_is_cut_to_it(law: Lengths) -> None:
    free = drawn(make(f"{law.name}:mean=200" + (",sigma=0.8" if law.name == "lognormal" else "")))
    assert (free > 300).sum() > 1000
    np.testing.assert_array_equal(drawn(law), np.minimum(free, 300))


def test_the_seed_decides() -> None:
    law = LogNormal(mean=200.0, sigma=0.8)
    np.testing.assert_array_equal(drawn(law), drawn(law))
    assert (drawn(law) != drawn(law, seed=1)).any()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("1", "fixed: tokens must be at least 2 here, not 1"),
        ("-3", "unknown length '-3'; known: fixed, geometric, lognormal, uniform"),
        ("", "unknown length ''"),
        ("1e3", "unknown length '1e3'"),
        ("9" * 5000, "must be a int"),
        ("fixed", "fixed needs tokens"),
        (str(LONGEST + 1), "fixed: tokens must be at most 1048576 tokens, not 1048577"),
        ("uniform:low=9,high=3", "low must be at most high, not 9 and 3"),
        ("uniform:low=1,high=3", "uniform: low must be at least 2 here, not 1"),
        ("uniform:low=1.5,high=3", "option low must be a int"),
        ("uniform:low=2,high=2000000", "high must be at most 1048576 tokens"),
        ("lognormal:mean=0,sigma=1", "mean is in tokens, above 0 and at most 1048576, not 0.0"),
        ("lognormal:mean=nan,sigma=1", "mean is in tokens"),
        ("lognormal:mean=9", "lognormal needs sigma"),
        ("lognormal:mean=9,sigma=-1", "sigma is the spread of ln tokens, from 0 to 10, not -1.0"),
        ("lognormal:mean=9,sigma=nan", "sigma is the spread"),
        ("lognormal:mean=9,sigma=1e300", "sigma is the spread"),
        ("lognormal:mean=9,sigma=1,max=1", "max must be at least 2 here, not 1"),
        ("lognormal:mean=1e6,sigma=3", "tokens, and the most is 1048576; give max"),
        ("geometric:mean=1", "mean must be at least 2 tokens here, not 1"),
        ("geometric:mean=9,max=9999999", "max must be at most 1048576 tokens"),
    ],
)
def test_refuses_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        drawn(make(spec))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
