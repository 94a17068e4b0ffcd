"""A recorded head, raw and recalibrated; the recalibration's limit is scikit-learn's logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from avsim.estimators import ConfidenceHead, OnlineLogistic, make
from avsim.estimators.confidence_head import head_log_odds
from avsim.features import sigmoid
from avsim.testing import drive, make_stream
from avsim.types import Observations


def graded(confidence: np.ndarray, hit: np.ndarray, estimator: ConfidenceHead, params: object) -> Observations:
    features = {"confidence": confidence}
    p = estimator.predict(params, features, confidence.shape)  # type: ignore[arg-type]
    rows = confidence.shape[1]
    taken = np.cumprod(hit, axis=0).sum(axis=0)
    return Observations.grade(features, p, np.full(rows, len(confidence)), taken, np.array([0, rows]))


def test_raw_is_the_recorded_number_kept_in_range() -> None:
    c = np.array([[-1e-6, 0.25, 1 + 1e-6]], dtype=np.float32)
    assert ConfidenceHead().predict({}, {"confidence": c}, c.shape).tolist() == [[0.0, 0.25, 1.0]]


def test_recalibration_starts_at_the_head_itself() -> None:
    estimator = ConfidenceHead(recalibrate=True)
    c = np.array([[0.02, 0.25, 0.98]], dtype=np.float32)
    assert estimator.predict(estimator.init(1), {"confidence": c}, c.shape) == pytest.approx(c, rel=1e-5)


def test_recalibration_is_the_online_logistic_on_the_heads_log_odds() -> None:
    stream = make_stream(("confidence", "log_odds"), num_steps=700)
    column = stream.features["log_odds"]
    column[:] = head_log_odds(stream.features["confidence"])
    head = drive(ConfidenceHead(recalibrate=True), stream)
    same = drive(OnlineLogistic(slope=1.0, intercept=0.0), stream)
    assert np.array_equal(head.confidence, same.confidence)
    assert head.state.refits == 7


def test_its_limit_is_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0.5, 1.5, (1, 8000)).astype(np.float32)
    hit = rng.random(logits.shape) < sigmoid(0.6 * logits - 0.7)
    estimator = ConfidenceHead(recalibrate=True)
    c = sigmoid(logits)
    params = estimator.init(1)
    for _ in range(25):
        blocks = graded(c, hit, estimator, params)
        params, _ = estimator.refit(params, estimator.accumulate(estimator.zero_stats(1), blocks))
    fitted = LogisticRegression(C=1e9).fit(head_log_odds(c)[0, :, None], hit[0])
    assert params["slope"][0] == pytest.approx(fitted.coef_[0, 0], rel=1e-3)
    assert params["intercepts"][0] == pytest.approx(fitted.intercept_[0], rel=1e-3)
    p = estimator.predict(params, {"confidence": c}, c.shape)[0]
    assert log_loss(hit[0], p) == pytest.approx(log_loss(hit[0], fitted.predict_proba(head_log_odds(c)[0, :, None])))
    assert log_loss(hit[0], p) < log_loss(hit[0], c[0]) - 0.05
    rate, mean = calibration_curve(hit[0], p, n_bins=10, strategy="quantile")
    assert np.abs(rate - mean).max() < 0.05


def test_heads_that_say_0_or_1_stay_correctable() -> None:
    c = np.array([[0.0, 1.0]], dtype=np.float32)
    assert head_log_odds(c) == pytest.approx(np.array([[-13.8, 13.8]]), abs=0.1)


def test_the_option_is_read_from_a_spec() -> None:
    assert make("confidence-head:recalibrate=true").init(2).keys() == {"slope", "intercepts"}
    assert make("confidence-head").init(2) == {}
