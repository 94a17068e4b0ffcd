"""The step that Bayesian and multi-feature estimators share: a Gaussian posterior, moved by sums over a refit interval."""

from __future__ import annotations

import numpy as np

from avsim.types import F64Array

__all__ = ["forget", "newton_step"]


def forget(precision: F64Array, prior: F64Array, keep: float) -> F64Array:
    """Return γΛ + (1 − γ)Λ₀: old data lose weight, and the variance never grows beyond the prior's.

    >>> forget(np.array([[9.0]]), np.array([[1.0]]), 0.5).tolist()
    [[5.0]]
    """
    return keep * precision + (1 - keep) * prior


def newton_step(
    mean: F64Array, precision: F64Array, gradient: F64Array, information: F64Array, reach: float = 1.0
) -> tuple[F64Array, F64Array]:
    """Return `(mean, precision)` after one Laplace step: Λ' = Λ + I, m' = m + Λ'⁻¹ g.

    The step is shortened where a component would move by more than `reach`, since far from the optimum a logistic
    likelihood is flatter than its curvature there promises. Sums that are not finite change nothing.

    Args:
        mean: m, the point at which gradient and information were summed, `[D]`.
        precision: Λ, symmetric positive definite, `[D, D]`.
        gradient: g, the log-likelihood's gradient at m, `[D]`.
        information: I, its Fisher information at m, `[D, D]`.

    >>> m, precision = newton_step(np.zeros(1), np.eye(1), np.array([2.0]), np.array([[3.0]]))
    >>> m.tolist(), precision.tolist()
    ([0.5], [[4.0]])
    """
    if not (np.isfinite(gradient).all() and np.isfinite(information).all()):
        return mean, precision
    total = precision + information
    step = np.linalg.solve(total, gradient)
    longest = float(np.abs(step).max(initial=0.0))
    return mean + step * min(1.0, reach / longest if longest > 0 else 1.0), total
