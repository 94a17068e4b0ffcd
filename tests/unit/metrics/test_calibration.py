"""Scores against scikit-learn on the same data."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from avsim.metrics.calibration import Calibration, debiased_ece


def stream(n: int = 4000, slots: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.beta(2, 1.5, size=(slots, n)).astype(np.float32)
    label = rng.random((slots, n)) < p**1.3
    scored = rng.random((slots, n)) < np.array([[1.0], [0.6], [0.2]])
    return p, label, scored


def test_scores_equal_scikit_learn() -> None:
    p, label, scored = stream()
    calibration = Calibration(3)
    for part in np.array_split(np.arange(p.shape[1]), 7):
        calibration.add(p[:, part], label[:, part], scored[:, part])
    summary = calibration.summary()
    for got, mask in [(summary, scored)] + [
        (summary["slots"][k], scored & (np.arange(3) == k)[:, None]) for k in range(3)
    ]:
        y, q = label[mask], p[mask].astype(np.float64)
        assert got["count"] == mask.sum()
        assert got["log_loss"] == pytest.approx(log_loss(y, q), rel=1e-5)
        assert got["brier"] == pytest.approx(brier_score_loss(y, q), rel=1e-5)
        assert got["auc"] == pytest.approx(roc_auc_score(y, q), abs=2e-4)
        assert got["mean_confidence"] == pytest.approx(q.mean(), abs=2e-4)
        assert got["acceptance"] == pytest.approx(y.mean())


def test_saturated_confidences_stay_finite() -> None:
    calibration = Calibration(1)
    p = np.array([[0.0, 1.0, 1.0, 0.0]], dtype=np.float32)
    calibration.add(p, np.array([[True, False, True, False]]), np.ones((1, 4), dtype=bool))
    assert calibration.summary()["log_loss"] == pytest.approx(24 * np.log(2) / 2)
    assert calibration.summary()["brier"] == 0.5


def test_nothing_scored_gives_nulls() -> None:
    summary = Calibration(2).summary()
    assert (summary["count"], summary["log_loss"], summary["ece"]) == (0, None, None)


def test_debiasing_takes_two_fifths_of_the_noise_out_of_ece() -> None:
    rng = np.random.default_rng(1)
    plain, debiased = [], []
    for _ in range(50):
        mean = np.linspace(0.05, 0.95, 15)
        rate = rng.binomial(60, mean) / 60
        plain.append(np.abs(rate - mean).mean())
        debiased.append(debiased_ece(mean, rate, np.full(15, 60)))
    # E|N(0, σ²)| = 0.798 σ is what noise adds; the estimator leaves 2 · 0.798 − 1.128 = 0.468 σ of it.
    assert np.mean(debiased) / np.mean(plain) == pytest.approx(0.468 / 0.798, abs=0.06)


def test_ece_keeps_a_real_gap() -> None:
    mean = np.linspace(0.2, 0.7, 15)
    assert debiased_ece(mean, mean + 0.2, np.full(15, 500)) == pytest.approx(0.2, abs=0.002)


def test_reliability_bins_hold_equal_mass() -> None:
    p, label, scored = stream()
    calibration = Calibration(3)
    calibration.add(p, label, scored)
    counts = [line["count"] for line in calibration.reliability(0, bins=10)]
    assert len(counts) == 10
    assert max(counts) - min(counts) < 40
    assert sum(counts) == 4000
