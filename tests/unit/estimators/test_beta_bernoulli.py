"""Beta posteriors against scipy's on the same counts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as distributions

from avsim.errors import InputError
from avsim.estimators import BetaBernoulli
from avsim.estimators.beta_bernoulli import EDGES
from avsim.features import sigmoid
from avsim.types import F32Array, Observations


def blocks_of(f: F32Array, seed: int = 0) -> Observations:
    rows = f.shape[1]
    taken = np.cumprod(np.random.default_rng(seed).random(f.shape) < sigmoid(f), axis=0).sum(axis=0)
    return Observations.grade({"log_odds": f}, sigmoid(f), np.full(rows, len(f)), taken, np.array([0, rows]))


def test_means_are_those_of_scipys_posteriors() -> None:
    rng = np.random.default_rng(1)
    f = np.clip(rng.normal(1, 4, (3, 2000)), -40, 40).astype(np.float32)
    blocks = blocks_of(f)
    estimator = BetaBernoulli(prior_weight=4.0, discount=1.0)
    cold = estimator.init(3)
    params, cleared = estimator.refit(cold, estimator.accumulate(estimator.zero_stats(3), blocks))
    assert not cleared["alpha"].any()
    assert not cleared["beta"].any()
    mean = estimator.predict(params, blocks.features, f.shape)
    bins = np.digitize(f, EDGES)
    for slot in range(3):
        for number in range(len(EDGES) + 1):
            inside = bins[slot] == number
            seen = inside & blocks.observed[slot]
            hits = int((blocks.accepted[slot] & seen).sum())
            posterior = distributions.beta(
                cold["alpha"][slot, number] + hits, cold["beta"][slot, number] + int(seen.sum()) - hits
            )
            assert mean[slot, inside] == pytest.approx(posterior.mean(), rel=1e-5)


def test_a_bin_holds_its_lower_edge() -> None:
    params = {"alpha": np.arange(1.0, 16)[None], "beta": np.full((1, 15), 1.0)}
    below = np.nextafter(EDGES, np.float32(-100))
    for column, numbers in ((EDGES, np.arange(1, 15)), (below, np.arange(14))):
        p = BetaBernoulli().predict(params, {"log_odds": column[None]}, (1, 14))
        assert p[0] == pytest.approx((numbers + 1) / (numbers + 2), rel=1e-6)


def test_the_cold_start_is_the_law_with_the_priors_weight() -> None:
    params = BetaBernoulli(prior_weight=6.0).init(2)
    assert params["alpha"] + params["beta"] == pytest.approx(np.full((2, 15), 6.0))
    f = np.array([[0.25]], dtype=np.float32)
    p = BetaBernoulli().predict(BetaBernoulli().init(1), {"log_odds": f}, (1, 1))
    assert p == pytest.approx(sigmoid(0.5 * f - 0.2))


def test_forgetting_goes_back_to_the_prior_and_no_further() -> None:
    estimator = BetaBernoulli(discount=0.5)
    cold, nothing = estimator.init(1), estimator.zero_stats(1)
    params, _ = estimator.refit(cold, {"alpha": np.full((1, 15), 8.0), "beta": np.zeros((1, 15))})
    assert params["alpha"] == pytest.approx(cold["alpha"] + 8)
    params, _ = estimator.refit(params, nothing)
    assert params["alpha"] == pytest.approx(cold["alpha"] + 4)
    assert params["beta"] == pytest.approx(cold["beta"])
    for _ in range(60):
        params, _ = estimator.refit(params, nothing)
    assert params["alpha"] == pytest.approx(cold["alpha"])


@pytest.mark.parametrize(
    "options", [{"prior_weight": 0.0}, {"prior_weight": float("inf")}, {"discount": 0.0}, {"discount": 1.5}]
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="beta-bernoulli"):
        BetaBernoulli(**options)
