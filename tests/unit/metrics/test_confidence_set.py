"""The model confidence set against its definition written out, and its size and power on simulated losses."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.metrics.confidence_set import (
    MIN_UNITS,
    ConfidenceSet,
    PairedChange,
    confidence_set,
    paired_change,
    unit_draws,
)


def simulated(seed: int, models: int = 5, units: int = 60, spread: float = 0.3) -> np.ndarray:
    """Return losses of equally good models: what a request costs all of them, and each one's own noise."""
    rng = np.random.default_rng(seed)
    return rng.gamma(3, 1, units) + rng.normal(0, spread, (models, units))


def by_definition(losses: np.ndarray, draws: np.ndarray) -> dict[int, float]:
    """Hansen, Lunde and Nason's T_R with every difference d_ij written out; returns the p-value of each model."""
    models, p, result = list(range(len(losses))), 0.0, {}
    while len(models) > 1:
        pairs = [(i, j) for i in models for j in models if i != j]
        mean = {(i, j): np.mean([a - b for a, b in zip(losses[i], losses[j], strict=True)]) for i, j in pairs}
        resampled = {(i, j): [np.mean(losses[i][row] - losses[j][row]) for row in draws] for i, j in pairs}
        spread = {pair: np.sqrt(np.mean([(value - mean[pair]) ** 2 for value in resampled[pair]])) for pair in pairs}
        t = {pair: mean[pair] / spread[pair] for pair in pairs}
        largest = max(abs(value) for value in t.values())
        beyond = [
            max(abs(resampled[pair][b] - mean[pair]) / spread[pair] for pair in pairs) >= largest
            for b in range(len(draws))
        ]
        p = max(p, np.mean(beyond))
        worst = max(models, key=lambda i: max(t[i, j] for j in models if j != i))
        result[worst] = p
        models.remove(worst)
    return result | {models[0]: 1.0}


@pytest.mark.parametrize("seed", range(4))
def test_p_values_equal_the_definition(seed: int) -> None:
    losses = simulated(seed, models=4, units=12) + np.array([[0], [0.05], [0.1], [0.2]])
    draws = unit_draws(12, 200, seed)
    expected = by_definition(losses, draws)
    found = confidence_set(losses, draws)
    assert found.p_values.tolist() == pytest.approx([expected[i] for i in range(4)], abs=1e-12)
    assert 0 < found.p_values.min() < found.p_values.max() == 1


def test_a_case_computed_by_hand() -> None:
    """Half the difference of two models is ±1 in turn, and 3 once: d̄ = 0.2; resamples move it by −0.2, 2.8 and −1.2."""
    half = np.array([1.0, -1, 1, -1, 1, -1, 1, -1, 3, -1])
    losses = np.stack([10 + half, 10 - half])
    draws = np.array([[0] * 5 + [1] * 5, [8] * 10, [1] * 10])
    # s² = (0.04 + 7.84 + 1.44) / 3, the same for both, so T = 0.2 / s; it is reached by |−0.2|, 2.8 and |−1.2| alike.
    assert confidence_set(losses, draws).p_values.tolist() == [1.0, 1.0]
    # Of half the difference shifted by 1, d̄ = 1.2, and only |2.8| and |−1.2| are at least as large.
    assert confidence_set(losses + np.array([[1], [-1]]), draws).p_values.tolist() == pytest.approx([2 / 3, 1])


def test_equal_models_are_kept_and_a_worse_one_is_dropped() -> None:
    runs, kept, caught = 300, 0, 0
    for seed in range(runs):
        losses, draws = simulated(seed, models=4, units=100), unit_draws(100, 400, seed)
        kept += confidence_set(losses, draws).included.all()
        losses[2] += 0.2
        found = confidence_set(losses, draws)
        caught += not found.included[2]
        assert found.standings[2] == ("not distinguishable from the best" if found.included[2] else "worse")
    # 0.95 is the law of many units; the standard error of 300 runs is 0.013.
    assert kept / runs > 0.92
    assert caught / runs > 0.99


def test_a_single_survivor_is_best() -> None:
    losses = simulated(0, models=3) + np.array([[1], [0], [2]])
    found = confidence_set(losses, unit_draws(60, 400, 0))
    assert found.standings == ("worse", "best", "worse")
    assert found.p_values[1] == 1


def test_the_order_of_models_is_irrelevant() -> None:
    losses = simulated(3, models=6) + np.linspace(0, 0.1, 6)[:, None]
    losses[4] = losses[1]
    draws = unit_draws(60, 400, 3)
    plain = confidence_set(losses, draws)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(6)
        shuffled = confidence_set(losses[order], draws)
        assert shuffled.p_values.tolist() == plain.p_values[order].tolist()
        assert shuffled.standings == tuple(plain.standings[i] for i in order)
    assert plain.p_values[1] == plain.p_values[4]


def test_identical_models_share_their_fate() -> None:
    draws = unit_draws(60, 400, 1)
    same = confidence_set(simulated(1, models=1)[[0, 0, 0]], draws)
    assert same.p_values.tolist() == [1, 1, 1]
    assert set(same.standings) == {"not distinguishable from the best"}
    three = simulated(1, models=3) + np.array([[0], [0.05], [0.1]])
    alone = confidence_set(three, draws).p_values
    assert confidence_set(three[[0, 1, 2, 2, 1]], draws).p_values.tolist() == alone[[0, 1, 2, 2, 1]].tolist()
    assert len(set(alone)) == 3


def test_a_difference_without_spread_is_certain_unless_it_is_rounding() -> None:
    losses, draws = simulated(2, models=1), unit_draws(60, 400, 2)
    worse = confidence_set(np.concatenate([losses, losses + 1e-3]), draws)
    assert worse.p_values.tolist() == [1, 0]
    rounded = confidence_set(np.concatenate([losses, losses * (1 + 1e-15)]), draws)
    assert rounded.p_values.tolist() == [1, 1]


def test_one_model_and_few_units() -> None:
    losses = simulated(0, models=2, units=MIN_UNITS - 1) + np.array([[0], [9]])
    draws = unit_draws(MIN_UNITS - 1, 100, 0)
    assert confidence_set(losses[:1], draws) == ConfidenceSet(np.ones(1), np.ones(1, dtype=bool), ("best",))
    few = confidence_set(losses, draws)
    assert few.included.all()
    assert few.standings == ("not enough requests",) * 2


def test_paired_change_is_the_ratio_of_totals() -> None:
    loss, base = simulated(5, models=2)
    draws = unit_draws(60, 300, 5)
    found = paired_change(loss, base, draws)
    low, high = np.percentile([loss[row].sum() / base[row].sum() - 1 for row in draws], [2.5, 97.5]) * 100
    expected = ((loss.sum() / base.sum() - 1) * 100, low, high)
    assert (found.change_pct, found.low_pct, found.high_pct) == pytest.approx(expected)
    assert paired_change(loss, np.zeros(60), draws) == PairedChange(None, None, None)


def test_draws_are_seeded_whole_units() -> None:
    draws = unit_draws(7, 2000, 1)
    assert draws.shape == (2000, 7)
    np.testing.assert_array_equal(draws, unit_draws(7, 2000, 1))
    assert not np.array_equal(draws, unit_draws(7, 2000, 2))
    share = np.bincount(draws.ravel(), minlength=7) / draws.size
    np.testing.assert_allclose(share, 1 / 7, atol=0.01)
