"""Forgetting, drift and the Newton step, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.estimators.newton import drift, forget, hierarchy, newton_step
from avsim.types import F64Array


def random_precision(size: int, prior: F64Array, seed: int = 0) -> F64Array:
    """Return a prior's precision with the information of a few dozen observations added."""
    rows = np.random.default_rng(seed).normal(size=(40, size))
    return np.diag(prior) + rows.T @ rows


def test_one_step_solves_a_quadratic_likelihood() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    prior = np.diag([1.0, 4.0, 0.25])
    mean, precision = newton_step(np.zeros(3), prior, x.T @ y, x.T @ x, reach=np.inf)
    ridge = np.linalg.lstsq(np.vstack([x, np.sqrt(prior)]), np.concatenate([y, np.zeros(3)]), rcond=None)[0]
    assert mean == pytest.approx(ridge, abs=1e-12)
    assert precision == pytest.approx(prior + x.T @ x)


def test_a_step_that_reaches_too_far_counts_its_data_in_the_same_part() -> None:
    mean, precision = newton_step(np.zeros(2), np.eye(2), np.array([8.0, 2.0]), np.diag([1.0, 0.0]), reach=0.5)
    assert mean.tolist() == [0.5, 0.25]  # the whole step is (4, 2)
    assert precision.tolist() == [[1.125, 0.0], [0.0, 1.0]]


def test_shortened_steps_still_arrive() -> None:
    """From far away, 1,000 observations at a time: the posterior ends at the rate, not where it started."""
    mean, precision = np.array([6.0]), np.eye(1)
    for _ in range(40):
        p = 1 / (1 + np.exp(-mean[0]))
        mean, precision = newton_step(
            mean, precision, np.array([1000 * (0.2 - p)]), np.array([[1000 * p * (1 - p)]]), reach=1.0
        )
    assert mean[0] == pytest.approx(np.log(0.2 / 0.8), abs=0.05)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_sums_that_are_not_finite_change_nothing(bad: float) -> None:
    start, precision = np.array([0.3]), np.array([[2.0]])
    for gradient, information in ((bad, 1.0), (1.0, bad)):
        mean, after = newton_step(start, precision, np.array([gradient]), np.array([[information]]))
        assert (mean.tolist(), after.tolist()) == ([0.3], [[2.0]])


def test_forgetting_stays_between_what_is_known_and_the_prior() -> None:
    prior = np.array([1.0, 4.0, 0.25])
    precision = random_precision(3, prior)
    once = forget(precision, np.diag(prior), 0.9)
    assert once == pytest.approx(0.9 * precision + 0.1 * np.diag(prior))
    for _ in range(400):
        precision = forget(precision, np.diag(prior), 0.9)
    assert precision == pytest.approx(np.diag(prior))


@pytest.mark.parametrize("keep", [0.0, 1e-9, 0.3, 0.999, 1.0])
def test_drift_is_that_of_the_covariance(keep: float) -> None:
    prior = np.array([1.0, 4.0, 0.25])
    precision = random_precision(3, prior)
    covariance = np.linalg.inv(precision)
    scale = np.diag([1.0, keep, 1.0])
    expected = scale @ covariance @ scale + (1 - keep**2) * np.diag([0.0, 1 / 4, 0.0])
    drifted = drift(precision, 1, 1 / 4, keep)
    assert np.linalg.inv(drifted) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert (drifted == drifted.T).all()


def test_no_amount_of_drift_makes_a_variance_exceed_the_prior() -> None:
    prior = np.array([1.0, 4.0, 0.25])
    precision = random_precision(3, prior)
    for _ in range(200):
        precision = drift(precision, 1, 1 / 4, 0.8)
        assert np.linalg.eigvalsh(precision - np.diag(prior)).min() > -1e-9
    assert precision[1] == pytest.approx([0, 4, 0], abs=1e-6)


def test_the_hierarchy_is_that_of_the_full_design() -> None:
    rng = np.random.default_rng(2)
    shared, slots, rows = 3, 4, 50
    x, slot = rng.normal(size=(shared, rows)), rng.integers(slots, size=rows)
    weight, residual = rng.random(rows), rng.normal(size=rows)
    one_hot = (slot == np.arange(slots)[:, None]).astype(float)
    design = np.vstack([x, np.ones(rows), one_hot])
    gradient, information = hierarchy(
        x @ residual, (x * weight) @ x.T, (x * weight) @ one_hot.T, one_hot @ residual, one_hot @ weight
    )
    assert gradient == pytest.approx(design @ residual)
    assert information == pytest.approx((design * weight) @ design.T)
