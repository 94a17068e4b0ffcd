"""Features at their limits; their accuracy is a property test."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.features import log_odds, log_odds_f32, log_odds_from_log_prob, sigmoid


def test_the_kernel_feature_reads_40_above_15_94() -> None:
    logits = np.array([[15.9, 0.0], [15.95, 0.0], [17.0, 0.0]], dtype=np.float32)
    kernel = log_odds_f32(logits)
    assert kernel[0] < 16.7
    assert kernel[2] == 40
    assert log_odds(logits) == pytest.approx([15.9, 15.95, 17.0], rel=1e-6)
    assert (log_odds_f32(np.array([[16.7, 0.0]])) == 40).all()


def test_a_vocabulary_wider_than_a_kernel_block_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (3, 9000)).astype(np.float32)
    logits[0, 4095], logits[1, 4096], logits[2, -1] = 20, 20, 20
    assert log_odds_f32(logits) == pytest.approx(log_odds(logits), rel=1e-3, abs=1e-3)


def test_temperature_applies_per_row_and_zero_means_one() -> None:
    logits = np.array([[4.0, 0.0]] * 4)
    temperature = np.array([0.0, 1.0, 2.0, -1.0])
    for feature in (log_odds, log_odds_f32):
        assert feature(logits, temperature) == pytest.approx([4.0, 4.0, 2.0, 4.0], rel=1e-6)
        assert feature(logits, 0.5) == pytest.approx([8.0] * 4, rel=1e-3)


def test_masked_tokens_and_clamps() -> None:
    inf = np.inf
    logits = np.array([[1.0, -inf, -inf], [60.0, 0.0, -inf], [0.0, 0.0, -inf]])
    for feature in (log_odds, log_odds_f32):
        assert feature(logits).tolist() == [40.0, 40.0, 0.0]


def test_the_first_of_equal_maxima_counts_once() -> None:
    assert log_odds(np.zeros((1, 5))) == pytest.approx([-np.log(4)], rel=1e-6)


def test_nan_rows_stay_nan() -> None:
    logits = np.array([[np.nan, 1.0], [2.0, 1.0]])
    for feature in (log_odds, log_odds_f32):
        assert np.isnan(feature(logits)).tolist() == [True, False]


def test_log_probabilities_at_their_limits() -> None:
    assert log_odds_from_log_prob(np.array([0.0, -np.inf, -1e-30])).tolist() == [40.0, -40.0, 40.0]
    # A float32 log-softmax can end a rounding error above 0.
    assert log_odds_from_log_prob(np.array([1e-7])).tolist() == [40.0]
    assert np.isnan(log_odds_from_log_prob(np.array([np.nan]))).all()


def test_sigmoid_is_float32_and_symmetric() -> None:
    x = np.array([-3.0, -0.5, 0.5, 3.0])
    assert sigmoid(x).dtype == np.float32
    assert sigmoid(x) + sigmoid(-x) == pytest.approx(np.ones(4), abs=1e-6)
