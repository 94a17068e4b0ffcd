"""What the estimators with a Gaussian posterior share: forgetting, drift, and one Newton step per refit interval."""

from __future__ import annotations

import numpy as np

from avsim.types import F64Array

__all__ = ["drift", "forget", "hierarchy", "newton_step"]


def forget(precision: F64Array, prior: F64Array, keep: float) -> F64Array:
    """Return γΛ + (1 − γ)Λ₀: old data lose weight, and the variance never grows beyond the prior's.

    >>> forget(np.array([[9.0]]), np.array([[1.0]]), 0.5).tolist()
    [[5.0]]
    """
    return keep * precision + (1 - keep) * prior


def drift(precision: F64Array, index: int, prior_variance: float, keep: float) -> F64Array:
    """Return Λ after parameter i has moved by x' = ρx + ε, ε ~ N(0, (1 − ρ²)σ₀²), x counted from its prior mean.

    A random walk drawn back just so strongly that the variance never grows beyond the prior's σ₀² (a discrete
    Ornstein–Uhlenbeck process); what the data say of the other parameters given this one stays known.

    >>> drift(np.array([[9.0]]), 0, 0.25, 1.0).tolist(), drift(np.array([[9.0]]), 0, 0.25, 0.0).tolist()
    ([[9.0]], [[4.0]])
    """
    column, noise = precision[index], (1 - keep**2) * prior_variance
    total = keep**2 + noise * column[index]
    # Σ' = RΣR + (1 − ρ²)σ₀² e eᵀ inverted by the rank-one formula, in a form that stays finite at ρ = 0.
    drifted = precision - np.outer(column, column) * (noise / total)
    drifted[index] = drifted[:, index] = column * (keep / total)
    drifted[index, index] = column[index] / total
    return drifted


def hierarchy(
    shared_gradient: F64Array,
    shared_information: F64Array,
    cross: F64Array,
    slot_gradient: F64Array,
    slot_information: F64Array,
) -> tuple[F64Array, F64Array]:
    """Return gradient and information of (w, μ, d) for logits w·x + μ + d_k, from sums over each slot.

    Args:
        shared_gradient, shared_information: of the F weights w, `[F]` and `[F, F]`.
        cross: Σ W x in each slot, `[F, K]`.
        slot_gradient, slot_information: Σ (y − p) and Σ W in each slot, `[K]`.

    >>> gradient, information = hierarchy(np.zeros(1), np.eye(1), np.ones((1, 2)), np.ones(2), np.array([2.0, 3.0]))
    >>> gradient.tolist(), information[1].tolist(), information[2].tolist()
    ([0.0, 2.0, 1.0, 1.0], [2.0, 5.0, 2.0, 3.0], [1.0, 2.0, 2.0, 0.0])
    """
    level = len(shared_gradient)
    size = level + 1 + len(slot_gradient)
    information = np.zeros((size, size))
    information.flat[(level + 1) * (size + 1) :: size + 1] = slot_information
    # The level enters every slot, so its row is the sum of theirs.
    information[level, level + 1 :] = information[level + 1 :, level] = slot_information
    information[level, level] = slot_information.sum()
    information[:level, :level] = shared_information
    information[:level, level + 1 :] = cross
    information[:level, level] = cross.sum(axis=1)
    information[level:, :level] = information[:level, level:].T
    gradient = np.empty(size)
    gradient[:level], gradient[level], gradient[level + 1 :] = shared_gradient, slot_gradient.sum(), slot_gradient
    return gradient, information


def newton_step(
    mean: F64Array, precision: F64Array, gradient: F64Array, information: F64Array, reach: float = 1.0
) -> tuple[F64Array, F64Array]:
    """Return `(mean, precision)` after one Laplace step: Λ' = Λ + sI, m' = m + s(Λ + I)⁻¹ g.

    s = 1, unless a component would move by more than `reach`: far from the optimum a logistic likelihood is flatter
    than its curvature there promises, so the step is shortened to that, and the data count as known only in the same
    part. Sums that are not finite change nothing.

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
    longest = float(np.abs(step).max())
    if longest <= reach:
        return mean + step, total
    part = reach / longest
    return mean + part * step, precision + part * information
