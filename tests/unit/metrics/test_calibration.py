"""Scores against scikit-learn on the same data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from avsim.metrics.calibration import ECE_BINS, Calibration, brier_parts, calibration_line, debiased_ece


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


def scored_stream() -> tuple[Calibration, np.ndarray, np.ndarray]:
    """Return scores with the exact confidences and labels behind them, all slots pooled."""
    p, label, scored = stream(n=20000)
    calibration = Calibration(3)
    calibration.add(p, label, scored)
    return calibration, p[scored].astype(np.float64), label[scored]


def test_reliability_equals_scikit_learn() -> None:
    calibration, p, label = scored_stream()
    rate, mean = calibration_curve(label, p, n_bins=ECE_BINS, strategy="quantile")
    lines = calibration.reliability()
    # Bins end at a cell here and at a quantile there: a few of about 2,400 slots change sides.
    np.testing.assert_allclose([line["confidence"] for line in lines], mean, atol=5e-4)
    np.testing.assert_allclose([line["acceptance"] for line in lines], rate, atol=4e-3)


def test_slope_and_intercept_equal_scikit_learn() -> None:
    p, label, scored = stream(n=20000)
    calibration = Calibration(3)
    calibration.add(p, label, scored)
    found = calibration.summary()
    slots = [(found["slots"][k], scored & (np.arange(3) == k)[:, None]) for k in range(3)]
    for got, mask in [(found, scored), *slots]:
        q = p[mask].astype(np.float64)
        exact = LogisticRegression(C=np.inf, tol=1e-10).fit(np.log(q / (1 - q))[:, None], label[mask])
        assert got["calibration_slope"] == pytest.approx(exact.coef_[0, 0], abs=2e-3)
        assert got["calibration_intercept"] == pytest.approx(exact.intercept_[0], abs=2e-3)


@pytest.mark.parametrize("seed", range(5))
def test_line_is_the_fit_to_the_histogram(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 50, (2, 64)) * (rng.random((2, 64)) < 0.3)
    p = (np.arange(64) + 0.5) / 64
    log_odds, label = np.tile(np.log(p / (1 - p)), 2)[:, None], np.repeat([0, 1], 64)
    fit = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(log_odds, label, sample_weight=counts.ravel())
    assert calibration_line(counts) == pytest.approx((fit.coef_[0, 0], fit.intercept_[0]), abs=1e-5)


@pytest.mark.parametrize(
    ("rejected", "accepted"),
    [({2: 1, 15: 10}, {5: 1}), ({8: 1, 9: 100}, {4: 1, 10: 10**6}), ({10: 10**6}, {5: 1000, 15: 100})],
)
def test_line_is_found_where_plain_newton_steps_overshoot(rejected: dict[int, int], accepted: dict[int, int]) -> None:
    counts = np.zeros((2, 16), dtype=np.int64)
    for line, cells in zip(counts, (rejected, accepted), strict=True):
        line[list(cells)] = list(cells.values())
    slope, intercept = calibration_line(counts)
    assert slope is not None
    p = (np.arange(16) + 0.5) / 16
    log_odds = np.log(p / (1 - p))
    residual = counts[1] - counts.sum(axis=0) * expit(intercept + slope * log_odds)
    # At the maximum of the likelihood both derivatives are 0.
    assert abs(residual.sum()) < 1e-6
    assert abs((residual * log_odds).sum()) < 1e-6


@pytest.mark.parametrize(
    "cells",
    [([0, 3], []), ([], [1, 2]), ([2], [2]), ([0, 1], [1, 3]), ([2, 3], [0, 2])],
    ids=["rejected", "accepted", "one cell", "separated", "separated upside down"],
)
def test_line_is_undefined_where_no_finite_fit_exists(cells: tuple[list[int], list[int]]) -> None:
    counts = np.zeros((2, 4), dtype=np.int64)
    counts[0, cells[0]], counts[1, cells[1]] = 5, 7
    assert calibration_line(counts) == (None, None)


def test_brier_parts_equal_their_definition() -> None:
    """Murphy's parts and the two within-bin parts, from the events themselves in the bins of scikit-learn's curve."""
    calibration, p, label = scored_stream()
    edges = np.percentile(p, np.linspace(0, 100, ECE_BINS + 1))
    which = np.searchsorted(edges[1:-1], p)
    count = np.bincount(which)
    mean, rate = np.bincount(which, p) / count, np.bincount(which, label) / count
    expected = {
        "brier_reliability": (count * (mean - rate) ** 2).sum() / len(p),
        "brier_resolution": (count * (rate - label.mean()) ** 2).sum() / len(p),
        "brier_uncertainty": label.var(),
        "brier_within_variance": ((p - mean[which]) ** 2).mean(),
        "brier_within_covariance": 2 * ((p - mean[which]) * (label - rate[which])).mean(),
    }
    found = calibration.summary()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=2e-5, rel=0.02), name


@pytest.mark.parametrize("seed", range(3))
def test_brier_parts_add_up_to_the_score_of_the_cells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 9, (2, 256)) * (rng.random(256) < 0.4)
    p = (np.arange(256) + 0.5) / 256
    score = (counts[0] * p**2 + counts[1] * (1 - p) ** 2).sum() / counts.sum()
    for bins in (1, 4, 15, 256, 1000):
        part = {name.removeprefix("brier_"): value for name, value in brier_parts(counts, bins).items()}
        within = part["within_variance"] - part["within_covariance"]
        assert part["reliability"] - part["resolution"] + part["uncertainty"] + within == pytest.approx(
            score, rel=1e-12
        )
    assert within == 0  # every bin is one cell


def test_brier_parts_say_how_far_they_miss_the_exact_score() -> None:
    for found in (scored_stream()[0].summary(), *scored_stream()[0].summary()["slots"]):
        parts = found["brier_reliability"] - found["brier_resolution"] + found["brier_uncertainty"]
        parts += found["brier_within_variance"] - found["brier_within_covariance"]
        assert parts + found["brier_rounding"] == pytest.approx(found["brier"], rel=1e-12)
        assert 0 < abs(found["brier_rounding"]) < 2.5e-4


def test_saturated_confidences_stay_finite() -> None:
    calibration = Calibration(1)
    p = np.array([[0.0, 1.0, 1.0, 0.0]], dtype=np.float32)
    calibration.add(p, np.array([[True, False, True, False]]), np.ones((1, 4), dtype=bool))
    assert calibration.summary()["log_loss"] == pytest.approx(24 * np.log(2) / 2)
    assert calibration.summary()["brier"] == 0.5


def test_nothing_scored_gives_nulls() -> None:
    summary = Calibration(2).summary()
    assert summary["count"] == 0
    assert set(summary) == set(stream_summary := scored_stream()[0].summary())
    assert {value for name, value in summary.items() if name not in {"count", "slots"}} == {None}
    assert summary["slots"][1].keys() == stream_summary["slots"][1].keys()


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
