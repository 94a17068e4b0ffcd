"""Isotonic curves against scikit-learn's, and what they do where data are thin."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from avsim.errors import InputError
from avsim.estimators import Isotonic
from avsim.estimators.isotonic import CENTRES, monotone
from avsim.features import sigmoid
from avsim.testing import drive, make_stream
from avsim.types import F32Array, Observations

NONE = 1e-9  # a pseudo-count too small to move anything


def blocks_of(f: F32Array, num_admitted: int, law: F32Array | None = None, seed: int = 0) -> Observations:
    hit = np.random.default_rng(seed).random(f.shape) < (sigmoid(f) if law is None else law)
    admitted = np.full(f.shape[1], num_admitted)
    taken = np.minimum(np.cumprod(hit, axis=0).sum(axis=0), admitted)
    return Observations.grade({"log_odds": f}, sigmoid(f), admitted, taken, np.array([0, f.shape[1]]))


def curve_of(estimator: Isotonic, blocks: Observations) -> F32Array:
    slots = len(blocks.confidence)
    params, _ = estimator.refit(estimator.init(slots), estimator.accumulate(estimator.zero_stats(slots), blocks))
    return params["curve"]


def normal(slots: int, rows: int, seed: int = 1) -> F32Array:
    return np.random.default_rng(seed).normal(1.5, 2.5, (slots, rows)).astype(np.float32)


def reference(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bins that hold data, and scikit-learn's weighted fit of the rate in each."""
    cell = np.abs(x[:, None] - CENTRES).argmin(axis=1)
    count = np.bincount(cell, minlength=64)
    held = np.flatnonzero(count)
    rate = np.bincount(cell, y, 64)[held] / count[held]
    return held, IsotonicRegression().fit(CENTRES[held], rate, sample_weight=count[held]).predict(CENTRES[held])


def test_pooling_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 64, 200):
        values, weights = rng.normal(size=size).cumsum() / 5 + rng.random(size), rng.random(size) * 10 + 1e-3
        values[rng.random(size) < 0.3] = 0.5  # ties
        expected = IsotonicRegression().fit(np.arange(size), values, sample_weight=weights).predict(np.arange(size))
        assert monotone(values, weights) == pytest.approx(expected, abs=1e-12)


def test_without_shrinkage_each_slot_is_scikit_learns_fit() -> None:
    f = normal(3, 4000)
    blocks = blocks_of(f, 3)
    curve = curve_of(Isotonic(discount=1.0, shared_weight=NONE, prior_weight=NONE), blocks)
    for slot in range(3):
        seen = blocks.observed[slot]
        held, expected = reference(f[slot, seen], blocks.accepted[slot, seen])
        assert curve[slot, held] == pytest.approx(expected, abs=1e-6)


def test_without_shrinkage_the_shared_curve_is_scikit_learns_fit() -> None:
    f = normal(3, 4000)
    blocks = blocks_of(f, 3)
    curve = curve_of(Isotonic(shared=True, discount=1.0, prior_weight=NONE), blocks)
    held, expected = reference(f[blocks.observed], blocks.accepted[blocks.observed])
    assert curve[:, held] == pytest.approx(np.tile(expected, (3, 1)), abs=1e-6)


def test_pseudo_counts_are_so_many_observations() -> None:
    f = np.full((2, 40), CENTRES[0], dtype=np.float32)
    rejected = Observations.grade({"log_odds": f}, f, np.full(40, 1), np.zeros(40, dtype=int), np.array([0, 40]))
    curve = curve_of(Isotonic(shared_weight=10.0, prior_weight=60.0), rejected)
    prior = float(sigmoid(np.array([0.5 * CENTRES[0] - 0.2]))[0])
    shared = 60 * prior / 100
    assert curve[1, 0] == pytest.approx(shared, rel=1e-5)
    assert curve[0, 0] == pytest.approx(10 * shared / 50, rel=1e-5)


def test_a_censored_slot_follows_the_others_and_unseen_bins_the_cold_start() -> None:
    f = np.random.default_rng(2).uniform(-2, 3, (2, 3000)).astype(np.float32)
    curve = curve_of(Isotonic(), blocks_of(f, 1, law=sigmoid(f - 1.5)))
    assert curve[1] == pytest.approx(curve_of(Isotonic(shared=True), blocks_of(f, 1, law=sigmoid(f - 1.5)))[0])
    inside = (CENTRES > -1.5) & (CENTRES < 2.5)
    assert np.abs(curve[1] - sigmoid(CENTRES - 1.5))[inside].max() < 0.08
    cold = Isotonic().init(1)["curve"][0]
    assert curve[1, CENTRES > 3.5] == pytest.approx(cold[CENTRES > 3.5])


def test_confidences_rise_with_log_odds() -> None:
    stream = make_stream(num_steps=400)
    params = drive(Isotonic(), stream).state.params
    f = np.tile(np.linspace(-45, 45, 4001, dtype=np.float32), (5, 1))
    p = Isotonic().predict(params, {"log_odds": f}, f.shape)
    assert (np.diff(p, axis=1) >= -1e-6).all()
    assert p[:, -1].tolist() == params["curve"][:, -1].tolist()
    assert p[:, 0].tolist() == params["curve"][:, 0].tolist()


def test_between_centres_it_interpolates() -> None:
    params = {"curve": np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 64)}
    f = np.array([CENTRES[10] + 0.25 / 3, CENTRES[62] + 0.5 / 3]).astype(np.float32)[:, None]
    p = Isotonic().predict(params, {"log_odds": f}, (2, 1))
    assert p[:, 0] == pytest.approx([10.25 / 127, (64 + 62.5) / 127], rel=1e-4)


def test_a_discount_forgets_at_each_refit() -> None:
    stats = {"accepted": np.full((1, 64), 4.0), "observed": np.full((1, 64), 8.0)}
    _, kept = Isotonic(discount=0.5).refit({}, stats)
    assert (kept["accepted"][0, 0], kept["observed"][0, 0]) == (2.0, 4.0)


def test_nan_features_of_empty_slots_are_harmless() -> None:
    f = np.array([[0.0, np.nan]], dtype=np.float32)
    assert np.isfinite(Isotonic().predict(Isotonic().init(1), {"log_odds": f}, f.shape)).all()


@pytest.mark.parametrize(
    "options", [{"shared_weight": 0.0}, {"prior_weight": float("inf")}, {"discount": 0.0}, {"discount": 1.5}]
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="isotonic"):
        Isotonic(**options)  # type: ignore[arg-type]
