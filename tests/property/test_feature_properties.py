"""Features against sums of higher precision."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from avsim.features import MAX_LOG_ODDS, log_odds, log_odds_f32, log_odds_from_log_prob, sigmoid

LOGITS = arrays(
    np.float32, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12), elements=st.floats(-60, 60, width=32)
)


def exact_log_odds(row: np.ndarray) -> float:
    """Return −ln Σ e^(z − max z) over all but the first maximum, clamped, with an exactly rounded sum."""
    values = row.astype(np.float64).tolist()
    best = values.index(max(values))
    rest = math.fsum(math.exp(value - values[best]) for at, value in enumerate(values) if at != best)
    return MAX_LOG_ODDS if rest == 0 else min(max(-math.log(rest), -MAX_LOG_ODDS), MAX_LOG_ODDS)


@given(arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32, allow_nan=False)))
def test_sigmoid_is_accurate_and_never_warns(x):
    wide = np.clip(x, -1e4, 1e4).astype(np.longdouble)
    expected = 1 / (1 + np.exp(-wide))
    got = sigmoid(x)
    assert got.dtype == np.float32
    assert ((got >= 0) & (got <= 1)).all()
    np.testing.assert_allclose(got.astype(np.longdouble), expected, rtol=5e-7, atol=1e-37)


@given(LOGITS)
def test_log_odds_is_accurate_over_the_whole_range(logits):
    expected = [exact_log_odds(row) for row in logits]
    np.testing.assert_allclose(log_odds(logits), expected, rtol=1e-6, atol=1e-6)


@given(LOGITS)
def test_the_kernel_feature_carries_float32_error_in_its_complement(logits):
    exact = np.array([exact_log_odds(row) for row in logits])
    kernel = log_odds_f32(logits).astype(np.float64)
    rest, seen = np.exp(-exact), np.exp(-kernel)
    assert (np.abs(rest - seen) <= 1e-6 * (1 + rest)).all()
    assert (kernel[exact > 17] == MAX_LOG_ODDS).all()


@given(LOGITS, st.floats(0.25, 4, width=32))
def test_temperature_divides_the_logits(logits, temperature):
    scaled = logits / np.float32(temperature)
    np.testing.assert_array_equal(log_odds(logits, temperature), log_odds(scaled))
    np.testing.assert_array_equal(log_odds_f32(logits, temperature), log_odds_f32(scaled))


@given(st.floats(1e-15, 1 - 1e-9))
def test_log_odds_from_a_log_probability(q):
    log_q = np.log(np.longdouble(q))
    expected = np.clip(float(log_q - np.log1p(-np.longdouble(q))), -MAX_LOG_ODDS, MAX_LOG_ODDS)
    np.testing.assert_allclose(log_odds_from_log_prob(np.array([log_q])), [expected], rtol=1e-6, atol=1e-6)
