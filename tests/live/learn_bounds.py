"""How far a kernel and NumPy may lie apart after one operation from common inputs, from the roundings of both.

u is 2⁻²⁴ for float32 and 2⁻⁵³ for float64. A sum of m terms, in any order, is off by at most m·u·Σ|term| (Higham,
Accuracy and Stability of Numerical Algorithms, §4.2); both sides may be, hence the factors 2. Bounds are of first
order, and taken 1 % larger for what that leaves out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from avsim.estimators.bayes_logistic import BayesLogistic
from avsim.estimators.newton import drift, forget, hierarchy

U32, U64 = 2.0**-24, 2.0**-53
F64 = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


def magnitudes(estimator: Any, design: F64, p: F64, observed: NDArray[np.bool_], label: NDArray[np.bool_]) -> Arrays:
    """Return Σ|term| of every statistic, for a design `[F, K, B]` and p `[K, B]`; and, as `terms`, their number."""
    weight = np.where(observed, p * (1 - p), 0)
    residual = np.where(observed, np.abs(label - p), 0)
    x = np.where(observed, np.abs(design), 0)
    information = np.einsum("kb,ikb,jkb->kij", weight, x, x)
    cross, gradient = np.einsum("kb,ikb->ik", weight, x), np.einsum("kb,ikb->ki", residual, x)
    c, g1 = weight.sum(axis=1), residual.sum(axis=1)
    if estimator.name == "online-logistic":
        a, g0 = information[:, 0, 0], gradient[:, 0]
        return {"a": a, "b": cross[0], "c": c, "g0": g0, "g1": g1, "n": observed.sum(axis=1).astype(float)}
    if estimator.name == "multi-logistic":
        return {
            "gradient": gradient.sum(axis=0),
            "information": information.sum(axis=0),
            "slots": np.concatenate([cross, c[None], g1[None]]),
        }
    return {"sums": np.stack([information[:, 0, 0], cross[0], c, gradient[:, 0], g1])}


def sums_tolerance(before: Arrays, added: Arrays, observed: NDArray[np.bool_], roundoff: float) -> Arrays:
    """Bound the statistics after one step: the same terms, added in another order, and once to what was there."""
    terms = int(observed.sum()) + 1
    return {name: 2 * 1.01 * terms * roundoff * (np.abs(before[name]) + size) for name, size in added.items()}


def memory_tolerance(
    memory: NDArray[np.float32], p: F64, observed: NDArray[np.bool_], taken: NDArray[Any], sd: float, half_life: float
) -> F64:
    """Bound `track_request`, float32 `[2, B]`: K additions of p and of p², then the roundings of the update."""
    p = np.where(observed, p, 0)
    level, known = memory[:2].astype(np.float64)
    prior, rho = sd**-2.0, 0.5 ** (1 / half_life)
    expected, squares, slots = p.sum(axis=0), (p * p).sum(axis=0), len(p)
    off_expected = slots * U32 * expected
    off_information = off_expected + (slots + 1) * U32 * squares + U32 * (expected - squares)
    precision = known + expected - squares + prior
    off_precision = off_information + 3 * U32 * precision
    moved = np.abs(taken - expected) / precision
    new = np.abs(level) + moved
    off_level = off_expected / precision + moved * (off_precision / precision + 2 * U32) + 2 * U32 * new
    share = rho**2 / precision
    kept = 1 / (share + (1 - rho**2) / prior)
    off_kept = kept * (kept * share * (off_precision / precision + 2 * U32) + 2 * U32) + U32 * np.abs(kept - prior)
    return 2 * 1.01 * np.stack([off_level, off_kept])


def arrowhead_tolerance(estimator: Any, params: Arrays, stats: Arrays) -> tuple[float, F64]:
    """Bound slope and intercepts after a float32 refit; see `refit_tolerance` in test_estimator_parity for the steps.

    Each summand of numerator and denominator carries its K additions, the cast, λ, two products and a quotient. Where
    the bound is ∞ the comparison rests on equal bits, which the interpreter gives.
    """
    a, b, c, g0, g1, n = (stats[name].astype(np.float64) for name in ("a", "b", "c", "g0", "g1", "n"))
    c, error = c + estimator.l2, (len(c) + 7) * U32
    if not np.isfinite([a, b, c, g0, g1]).all():
        return np.inf, np.full(len(c), np.inf)
    numerator, denominator = g0.sum() - (b * g1 / c).sum(), a.sum() + estimator.l2 - (b * b / c).sum()
    off_numerator = error * (np.abs(g0) + np.abs(b * g1) / c).sum()
    off_denominator = error * ((np.abs(a) + b * b / c).sum() + estimator.l2)
    if off_denominator > 0.1 * denominator:
        return np.inf, np.full(len(c), np.inf)  # cancelled
    damp = n.sum() / max(n.sum() + estimator.damping, 1e-300)
    step = damp * numerator / denominator
    off_step = damp * (off_numerator + abs(numerator / denominator) * off_denominator) / (denominator - off_denominator)
    off_step += 4 * U32 * abs(step)
    if params["slope"][0] + step <= off_step:
        return np.inf, np.full(len(c), np.inf)  # the guard may decide either way
    damp = n / np.maximum(n + estimator.damping, 1e-300)
    delta = damp * (g1 - b * step) / c
    off_delta = damp * (error * (np.abs(g1) + np.abs(b * step)) + np.abs(b) * off_step) / c + 4 * U32 * np.abs(delta)
    intercepts = np.abs(params["intercepts"]) + np.abs(delta)
    return 2.02 * (off_step + U32 * (params["slope"][0] + abs(step))), 2.02 * (off_delta + U32 * intercepts)


def laplace_tolerance(estimator: Any, params: Arrays, stats: Arrays) -> tuple[F64, F64]:
    """Bound mean and precision after a refit in float64.

    The system A x = g is built with at most K + 12 roundings per entry of A = Λ + I and K + D + 12 of g, charged to
    the sums of magnitudes Ā and ḡ. Solvers then see perturbed systems of their own:

        both         |δx| ≤ |A⁻¹|(δA|x| + δg), twice
        NumPy        LU with partial pivoting: |δx| ≤ 3Du |A⁻¹||L||U||x| (Higham, Theorem 9.4)
        the kernel   Gauss–Jordan without: |δx| ≤ 2Du (|A⁻¹||L||U| + 3|U⁻¹||U|)|x| (Theorem 14.5)

    so that the bound grows with A's condition. A step that is shortened by s = reach/max|x| is off by
    s(|δx| + |x| max|δx|/max|x|).
    """
    if isinstance(estimator, BayesLogistic):
        a, b, c, g0, g1 = stats["sums"]
        shared = (g0.sum(keepdims=True), a.sum(keepdims=True)[None], b[None], g1, c)
        sizes = (np.abs(g0).sum(keepdims=True), np.abs(a).sum(keepdims=True)[None], np.abs(b)[None], np.abs(g1), c)
        prior_mean, prior = estimator._prior(len(c))
        level_keep = 0.5 ** (estimator.refit_interval / estimator.level_half_life)
        mean = params["mean"].copy()
        mean[1] = estimator.level + level_keep * (mean[1] - estimator.level)
        drifted = drift(params["precision"], 1, estimator.level_sd**2, level_keep)
        column, coefficients = params["precision"][1], params["coefficients"]
        noise = (1 - level_keep**2) * estimator.level_sd**2
        spread = np.abs(np.outer(column, column)) * noise / (level_keep**2 + noise * column[1])
        level = 1
    else:
        slots = stats["slots"]
        shared = (stats["gradient"], stats["information"], slots[:-2], slots[-1], slots[-2])
        sizes = tuple(np.abs(part) for part in shared)
        cold = estimator.init(slots.shape[1])
        prior_mean, prior = cold["mean"], cold["precision"].diagonal()
        mean, drifted, spread, coefficients = params["mean"], params["precision"], 0.0, params["mean"]
        level = len(stats["gradient"])
    keep = 0.5 ** (estimator.refit_interval / estimator.half_life)
    precision = forget(drifted, np.diag(prior), keep)
    size, num_slots = len(mean), len(mean) - level - 1
    size_precision = keep * (np.abs(params["precision"]) + spread) + (1 - keep) * np.diag(prior)
    build = num_slots + 12
    off_mean = 4 * U64 * (np.abs(mean) + np.abs(prior_mean))
    if not all(np.isfinite(part).all() for part in shared):
        return 2.02 * off_mean, 2.02 * build * U64 * size_precision

    gradient, information = hierarchy(*shared)
    gradient = gradient + (1 - keep) * prior * (prior_mean - mean) - information @ (mean - coefficients)
    size_gradient, size_information = hierarchy(*sizes)
    size_gradient = size_gradient + (1 - keep) * prior * (np.abs(prior_mean) + np.abs(mean))
    if coefficients is not params["mean"] or isinstance(estimator, BayesLogistic):
        size_gradient += size_information @ (np.abs(mean) + np.abs(coefficients))
    total, step = precision + information, np.linalg.solve(precision + information, gradient)
    inverse, x = np.abs(np.linalg.inv(total)), np.abs(step)
    pivoted, lower, upper = scipy.linalg.lu(total)
    ours, theirs = _eliminate(total), (pivoted @ np.abs(lower), np.abs(upper))
    built = inverse @ (build * U64 * (size_precision + size_information) @ x + (build + size) * U64 * size_gradient)
    jordan = inverse @ ours[0] @ ours[1] @ x + 3 * np.abs(np.linalg.inv(ours[2])) @ ours[1] @ x
    off = 2 * built + 3 * size * U64 * inverse @ theirs[0] @ theirs[1] @ x + 2 * size * U64 * jordan
    longest, part, off_part = float(x.max()), 1.0, 0.0
    if longest + off.max() > 1.0:
        part = min(1.0, 1.0 / longest)
        off_part = part * float(off.max()) / longest + 4 * U64
    off_step = part * off + off_part * x + 4 * U64 * part * x
    off_precision = 2 * build * U64 * (size_precision + part * size_information) + off_part * np.abs(information)
    return 1.01 * (off_step + 2 * off_mean + 2 * U64 * x), 1.01 * off_precision


def _eliminate(matrix: F64) -> tuple[F64, F64, F64]:
    """Return |L|, |U| and U of an elimination without pivoting."""
    upper, lower = matrix.copy(), np.eye(len(matrix))
    for place in range(len(matrix)):
        lower[place + 1 :, place] = upper[place + 1 :, place] / upper[place, place]
        upper[place + 1 :] -= np.outer(lower[place + 1 :, place], upper[place])
        upper[place + 1 :, place] = 0
    return np.abs(lower), np.abs(upper), upper
