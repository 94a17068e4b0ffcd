"""Temperature scaling: its sums against derivatives of the loss, its ECE against scikit-learn's curve, known laws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss

from avsim.errors import InputError
from avsim.estimators import Temperature, TemperatureOffline
from avsim.estimators.base import Arrays
from avsim.estimators.confidence_head import head_log_odds
from avsim.estimators.temperature import cumulative_ece
from avsim.features import sigmoid
from avsim.sources import open_trace
from avsim.types import F32Array, F64Array, Observations

TRACES = Path(__file__).parents[3] / "traces"
WHOLE = [0.6, 1.5, 2.5]


def blocks_of(temperatures: Sequence[float], rows: int, seed: int = 0, feature: str = "log_odds") -> Observations:
    """Return fully verified blocks whose slot k is accepted with probability σ(f / T_k), predicted at T = 1."""
    rng = np.random.default_rng(seed)
    f = rng.normal(2.0, 2.5, (len(temperatures), rows)).astype(np.float32)
    hit = rng.random(f.shape) < sigmoid(f / np.array(temperatures)[:, None])
    taken = np.cumprod(hit, axis=0).sum(axis=0)
    column = sigmoid(f) if feature == "confidence" else f
    return Observations.grade({feature: column}, sigmoid(f), np.full(rows, len(f)), taken, np.array([0, rows]))


def again(estimator: Temperature | TemperatureOffline, params: Arrays, blocks: Observations) -> Observations:
    """Return the same blocks as predicted with other parameters."""
    p = estimator.predict(params, blocks.features, blocks.confidence.shape)
    taken = blocks.survived.sum(axis=0)
    return Observations.grade(blocks.features, p, blocks.num_admitted, taken, blocks.step_starts)


def survivals(estimator: Temperature | TemperatureOffline, params: Arrays, blocks: Observations) -> F32Array:
    return np.cumprod(estimator.predict(params, blocks.features, blocks.confidence.shape), axis=0)


def exact_survival(inverse: F64Array, f: F64Array) -> F64Array:
    return np.cumprod(1 / (1 + np.exp(-inverse[:, None] * f)), axis=0)


def test_the_gradient_is_that_of_the_cumulative_log_loss() -> None:
    blocks = blocks_of(WHOLE, 500)
    f, inverse, step = blocks.features["log_odds"].astype(np.float64), np.ones(3), 1e-6
    stats = Temperature().accumulate(Temperature().zero_stats(3), blocks)
    for slot in range(3):
        moved = [inverse + sign * step * (np.arange(3) == slot) for sign in (1, -1)]
        ahead, behind = (
            -log_loss(blocks.survived[slot], exact_survival(a, f)[slot], labels=[False, True], normalize=False)
            for a in moved
        )
        assert stats["gradient"][slot] == pytest.approx((ahead - behind) / (2 * step), rel=1e-4, abs=1e-2)


def test_the_information_is_the_expected_square_of_the_score() -> None:
    rng = np.random.default_rng(1)
    for f in rng.normal(1, 2, (20, 2, 1)).astype(np.float32):
        p = sigmoid(f)
        survival = float(p[0, 0]) * float(p[1, 0])
        stats = []
        for taken in (1, 2):  # slot 1 dies or survives
            block = Observations.grade({"log_odds": f}, p, np.array([2]), np.array([taken]), np.array([0, 1]))
            stats.append(Temperature().accumulate(Temperature().zero_stats(2), block))
        died, lived = (float(each["gradient"][1]) for each in stats)
        expected = survival * lived**2 + (1 - survival) * died**2
        assert survival * lived + (1 - survival) * died == pytest.approx(0.0, abs=1e-5)
        assert stats[0]["information"][1] == pytest.approx(expected, rel=1e-4)


def test_only_verified_slots_count() -> None:
    f = np.full((3, 2), 1.0, dtype=np.float32)
    block = Observations.grade({"log_odds": f}, sigmoid(f), np.array([2, 1]), np.array([0, 1]), np.array([0, 2]))
    stats = Temperature().accumulate(Temperature().zero_stats(3), block)
    assert (stats["information"] > 0).tolist() == [True, True, False]
    assert stats["gradient"][1] < 0  # slot 1 died with slot 0: it is verified, though not observed


def test_saturated_confidences_give_finite_sums() -> None:
    f = np.full((3, 2), 40.0, dtype=np.float32)
    one = np.ones_like(f)
    block = Observations.grade({"log_odds": f}, one, np.array([3, 3]), np.array([3, 1]), np.array([0, 2]))
    stats = Temperature().accumulate(Temperature().zero_stats(3), block)
    assert np.isfinite(np.concatenate(list(stats.values()))).all()
    assert stats["gradient"][1] < -10


@pytest.mark.parametrize("feature", ["log_odds", "confidence"])
def test_both_forms_recover_known_temperatures(feature: str) -> None:
    blocks = blocks_of(WHOLE, 40_000, feature=feature)
    offline = TemperatureOffline(feature=feature)  # type: ignore[arg-type]
    fitted = 1 / offline.fit(3, blocks)["inverse_temperatures"]
    assert fitted == pytest.approx(WHOLE, rel=0.12)
    online = Temperature(feature=feature)  # type: ignore[arg-type]
    params = online.init(3)
    for _ in range(30):
        stats = online.accumulate(online.zero_stats(3), again(online, params, blocks))
        params, _ = online.refit(params, stats)
    assert 1 / params["inverse_temperatures"] == pytest.approx(WHOLE, rel=0.06)


def test_at_most_doubled_or_halved_and_kept_in_range() -> None:
    estimator = Temperature()
    huge = {"gradient": np.array([1e9, -1e9]), "information": np.ones(2)}
    params = estimator.init(2)
    params, _ = estimator.refit(params, huge)
    assert params["inverse_temperatures"].tolist() == [2.0, 0.5]
    for _ in range(20):
        params, _ = estimator.refit(params, huge)
    assert params["inverse_temperatures"] == pytest.approx([10.0, 0.02])


def test_information_is_kept_and_forgotten() -> None:
    estimator = Temperature(discount=0.5, prior_weight=4.0)
    params, _ = estimator.refit(estimator.init(1), {"gradient": np.array([1.0]), "information": np.array([16.0])})
    assert params["information"].tolist() == [20.0]
    assert params["inverse_temperatures"] == pytest.approx([1 + 1 / 20])
    params, _ = estimator.refit(params, estimator.zero_stats(1))
    assert params["information"].tolist() == [12.0]


def test_the_ece_is_that_of_scikit_learns_quantile_bins() -> None:
    rng = np.random.default_rng(3)
    p = rng.random(1500).astype(np.float32)
    y = rng.random(1500) < p**2
    rate, mean = calibration_curve(y, p, n_bins=15, strategy="quantile")
    assert cumulative_ece(p, y) == pytest.approx(np.abs(rate - mean).mean(), rel=1e-5)


def test_equal_survivals_share_a_bin() -> None:
    y = np.arange(100) % 2 == 0
    assert cumulative_ece(np.full(100, 0.5, dtype=np.float32), y) == 0.0
    assert cumulative_ece(np.array([0.5], dtype=np.float32), np.array([True])) == 0.5


def test_no_other_temperature_has_a_clearly_smaller_ece() -> None:
    blocks = blocks_of([2.0], 3000)
    f, y = blocks.features["log_odds"][0], blocks.survived[0]
    found = 1 / TemperatureOffline().fit(1, blocks)["inverse_temperatures"][0]
    best = min(cumulative_ece(sigmoid(f / np.float32(t)), y) for t in np.geomspace(0.1, 50, 5000))
    assert cumulative_ece(sigmoid(f / found), y) <= best + 2e-4


def test_it_lowers_the_cumulative_ece_of_a_miscalibrated_stream() -> None:
    fitted_on, judged_on = (blocks_of([2.0, 3.0, 3.0, 4.0], 20_000, seed) for seed in (5, 6))
    estimator = TemperatureOffline()
    params = estimator.fit(4, fitted_on)
    raw, scaled = (survivals(estimator, each, judged_on) for each in (estimator.init(4), params))
    for slot in range(4):
        before, after = (cumulative_ece(s[slot], judged_on.survived[slot]) for s in (raw, scaled))
        assert after < 0.4 * before


def test_a_slot_that_nothing_verified_keeps_temperature_one() -> None:
    blocks = blocks_of(WHOLE, 2000)
    cut = Observations.grade(
        blocks.features, blocks.confidence, np.full(2000, 2), blocks.survived[:2].sum(axis=0), blocks.step_starts
    )
    inverse = TemperatureOffline().fit(3, cut)["inverse_temperatures"]
    assert inverse[2] == 1.0
    assert inverse[:2].tolist() == TemperatureOffline().fit(3, blocks)["inverse_temperatures"][:2].tolist()


def test_it_calibrates_the_confidence_head_of_a_real_trace() -> None:
    """Fitted on half of the requests, judged on the others, and the other way round; mean over slots."""
    blocks = open_trace(TRACES / "smollm2-dspark-greedy").blocks(["confidence"])
    estimator = TemperatureOffline(feature="confidence")
    halves = []
    for half in (0, 1):
        rows = np.flatnonzero(blocks.request % 2 == half)
        column = blocks.features["confidence"][:, rows]
        admitted, accepted = blocks.num_admitted[rows], blocks.num_accepted[rows]
        halves.append(Observations.grade({"confidence": column}, column, admitted, accepted, np.array([0, len(rows)])))
    num_slots = len(blocks.features["confidence"])
    for fitted_on, judged_on in (halves, halves[::-1]):
        fitted = estimator.fit(num_slots, fitted_on)
        raw, scaled = (
            [
                cumulative_ece(survival[judged_on.verified[slot]], judged_on.survived[slot, judged_on.verified[slot]])
                for slot, survival in enumerate(survivals(estimator, each, judged_on))
            ]
            for each in (estimator.init(num_slots), fitted)
        )
        assert np.mean(scaled) < np.mean(raw)


def test_temperature_one_is_the_head_itself() -> None:
    c = np.array([[0.2, 0.9, 0.0, 1.0]], dtype=np.float32)
    estimator = Temperature(feature="confidence")
    p = estimator.predict(estimator.init(1), {"confidence": c}, c.shape)
    assert p == pytest.approx(np.clip(c, 1e-6, 1 - 1e-6), rel=1e-4)
    assert np.isfinite(head_log_odds(c)).all()


@pytest.mark.parametrize(
    "options", [{"discount": 0.0}, {"discount": 1.1}, {"prior_weight": 0.0}, {"prior_weight": float("inf")}]
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="temperature: discount must lie in"):
        Temperature(**options)  # type: ignore[arg-type]


def test_it_cannot_be_fitted_online() -> None:
    with pytest.raises(InputError, match="no offline fit"):
        Temperature().fit(3, blocks_of(WHOLE, 10))
