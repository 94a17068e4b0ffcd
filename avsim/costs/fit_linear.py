"""A linear step cost from timings: robust non-negative least squares on relative errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from avsim.costs.fit_samples import Samples
from avsim.types import BoolArray, F64Array, IntArray

__all__ = ["Design", "LinearPart", "Term", "coefficients_of", "design_of", "fit_linear", "variance_inflation"]

HUBER = 1.345
"""Residuals beyond so many σ count in proportion to their distance: 95 % efficient for Gaussian noise (Huber 1964)."""
TOLD_APART = 100.0
"""Variance inflation beyond which a term is not fitted beside the others."""
_PER_UNIT = {"_ms": 1.0, "_us": 1e3, "_ns": 1e6}


@dataclass(frozen=True, slots=True)
class Term:
    """A fitted coefficient, in the unit of its name.

    Attributes:
        low, high: 95 % interval from resampled blocks; None with `se` where there were too few.
        inflation: variance inflation factor, 1 / (1 − R²) of the term on the others; above 10 the split between them
            is shaky.
    """

    name: str
    value: float
    se: float | None
    low: float | None
    high: float | None
    inflation: float


@dataclass(frozen=True, eq=False)
class Design:
    """The regressors of one kind of timing: `columns` is `[n, terms]`, in the units of the terms' names.

    `dropped` holds terms that cannot be fitted, with the reason.
    """

    names: tuple[str, ...]
    columns: F64Array
    dropped: tuple[tuple[str, str], ...] = ()

    def keep(self, kept: Sequence[int], dropped: Sequence[tuple[str, str]]) -> Design:
        names = tuple(self.names[index] for index in kept)
        return Design(names, self.columns[:, list(kept)], (*self.dropped, *dropped))


@dataclass(frozen=True, eq=False)
class LinearPart:
    """The linear fit of one kind of timing.

    Attributes:
        num_downweighted: samples that Huber's rule counted for less than half.
        downweighted_sizes: the smallest and the largest size among them, or None.
    """

    terms: tuple[Term, ...]
    dropped: tuple[tuple[str, str], ...]
    num_downweighted: int
    downweighted_sizes: tuple[int, int] | None

    def value(self, name: str) -> float:
        """Return a coefficient; 0 for a term that was not fitted."""
        return next((term.value for term in self.terms if term.name == name), 0.0)


def design_of(samples: Samples) -> Design:
    """Return the regressors of `LinearCost` that the samples say, tell-tale ones only.

    A term whose quantity is unknown, constant, or (variance inflation above 100) a mixture of the terms before it is
    left out with the reason, so that no cost is attributed to it by chance.
    """
    steps = samples.steps
    quantities: dict[str, F64Array]
    if samples.label == "verify":
        prompt = np.where(steps.prefill > 0, steps.prefill, 0.0)
        quantities = {
            "fixed_ms": np.ones(len(samples)),
            "per_token_us": steps.tokens - prompt,
            "per_prefill_token_us": prompt,
            "per_kv_token_ns": steps.kv,
        }
        if not prompt.any():
            del quantities["per_prefill_token_us"]
    else:
        quantities = {
            "draft_fixed_ms": np.ones(len(samples)),
            "draft_per_request_us": steps.reqs,
            "draft_per_request_token_us": steps.tokens / steps.reqs,
            "draft_per_kv_token_ns": steps.kv,
        }
    known: dict[str, F64Array] = {}
    dropped: list[tuple[str, str]] = []
    for name, values in quantities.items():
        if not np.isfinite(values).all():
            dropped.append((name, "its quantity is not recorded"))
        else:
            known[name] = values / _PER_UNIT[name[-3:]]
    design = Design(tuple(known), np.column_stack(list(known.values())), tuple(dropped))
    return _told_apart(design, 1 / samples.ms)


def fit_linear(
    design: Design, ms: F64Array, size: IntArray, used: BoolArray, counts: Iterable[IntArray] = ()
) -> LinearPart:
    """Fit ms ≈ columns · coefficients, all ≥ 0, on relative errors with Huber weights.

    Minimises Σ ρ((ms_i − x_i·c) / (x_i·c)) by iteratively reweighted non-negative least squares, ρ Huber's with its
    corner at 1.345 σ. Samples that are not `used` (outliers) do not count at all.

    Args:
        counts: how often each sample is drawn in each bootstrap replicate, `[n]` each; none: no errors are given.
    """
    weight = used.astype(np.float64)
    coefficients, robust = _solve(design.columns, ms, weight)
    draws = np.asarray([_solve(design.columns, ms, weight * count, coefficients)[0] for count in counts])
    inflation = variance_inflation(design.columns, weight / np.maximum(design.columns @ coefficients, 1e-12))
    terms = []
    for index, name in enumerate(design.names):
        low, high = np.percentile(draws[:, index], (2.5, 97.5)).tolist() if len(draws) else (None, None)
        se = float(draws[:, index].std(ddof=1)) if len(draws) > 1 else None
        terms.append(Term(name, float(coefficients[index]), se, low, high, float(inflation[index])))
    less = used & (robust < 0.5)
    span = (int(size[less].min()), int(size[less].max())) if less.any() else None
    return LinearPart(tuple(terms), design.dropped, int(less.sum()), span)


def coefficients_of(columns: F64Array, ms: F64Array) -> F64Array:
    """Return the coefficients alone, in the order of the columns."""
    return _solve(columns, ms, np.ones(len(ms)))[0]


def variance_inflation(columns: F64Array, weight: F64Array) -> F64Array:
    """Return 1 / (1 − R²) of each column on the others, rows weighted; 1 for the constant, ∞ for what is no news.

    >>> x = np.arange(8.0)
    >>> variance_inflation(np.column_stack([np.ones(8), x, x % 2]), np.ones(8)).round(2).tolist()
    [1.0, 1.05, 1.05]
    """
    scaled = columns * weight[:, None]
    result = np.ones(columns.shape[1])
    constant = int(np.flatnonzero((columns == columns[:1]).all(axis=0))[0]) if len(columns) else 0
    for index in range(columns.shape[1]):
        if index == constant:
            continue
        others = np.delete(scaled, index, axis=1)
        target = scaled[:, index]
        base = scaled[:, [constant]]
        about_mean = _left(base, target)
        left = _left(others / np.maximum(np.linalg.norm(others, axis=0), 1e-300), target)
        total = float(target @ target)
        no_news = about_mean <= 1e-20 * total or left <= 1e-12 * about_mean
        result[index] = np.inf if no_news else about_mean / left
    return result


def _left(regressors: F64Array, target: F64Array) -> float:
    solution = np.linalg.lstsq(regressors, target, rcond=None)[0]
    rest = target - regressors @ solution
    return float(rest @ rest)


def _told_apart(design: Design, weight: F64Array) -> Design:
    """Leave out terms, the last first, until each tells something that the others do not."""
    while len(design.names) > 1:
        inflation = variance_inflation(design.columns, weight)
        bad = np.flatnonzero(inflation > TOLD_APART)
        if not len(bad):
            break
        index = int(bad[-1])
        kept = [i for i in range(len(design.names)) if i != index]
        values = design.columns[:, index]
        if np.ptp(values) <= 1e-9 * np.abs(values).max(initial=0.0):
            how = f"is constant, as is that of {design.names[0]}"
        else:
            where = ", ".join(design.names[i] for i in bad if i != index) or design.names[0]
            how = f"moves together with that of {where}"
        design = design.keep(kept, [(design.names[index], f"its quantity {how}, so its cost is booked there")])
    return design


def _solve(
    columns: F64Array, ms: F64Array, weight: F64Array, start: F64Array | None = None
) -> tuple[F64Array, F64Array]:
    """Return coefficients and Huber's weights; from a start, to the precision that a bootstrap replicate needs."""
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    unit = columns / scale
    used = weight > 0
    fitted = ms if start is None else np.maximum(columns @ start, 1e-3 * ms)
    current = np.zeros(columns.shape[1]) if start is None else start * scale
    tolerance = 1e-9 if start is None else 1e-5
    robust = np.ones(len(ms))
    for iteration in range(50):
        if iteration or start is not None:
            relative = np.abs(ms / fitted - 1)
            sigma = max(1.4826 * float(np.median(relative[used])), 1e-9)
            robust = np.minimum(1.0, HUBER * sigma / np.maximum(relative, 1e-300))
        new = _non_negative(unit, ms, weight * robust / fitted**2)
        fitted = np.maximum(unit @ new, 1e-3 * ms)
        done = np.abs(new - current).max() <= tolerance * np.abs(new).max()
        current = new
        if done:
            break
    return current / scale, robust


def _non_negative(columns: F64Array, target: F64Array, weight: F64Array) -> F64Array:
    """Solve weighted non-negative least squares through its normal equations, which are small however many the rows."""
    weighted = columns * weight[:, None]
    values, vectors = np.linalg.eigh(columns.T @ weighted)
    kept = values > 1e-14 * values.max()
    root = np.sqrt(values[kept])
    return np.asarray(nnls(root[:, None] * vectors[:, kept].T, (vectors[:, kept].T @ (weighted.T @ target)) / root)[0])
