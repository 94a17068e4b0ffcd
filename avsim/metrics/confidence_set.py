"""Which models are best, given paired losses: resamples of requests, paired changes, and the model confidence set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from avsim.metrics.intervals import CONFIDENCE
from avsim.types import BoolArray, F64Array, IntArray

__all__ = [
    "MIN_UNITS",
    "ConfidenceSet",
    "PairedChange",
    "confidence_set",
    "paired_change",
    "unit_draws",
]

MIN_UNITS = 10
_TAILS = (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE))
_STREAM = 0xC0  # keeps these resamples apart from other uses of the same seed
_SAME = 1e-12  # spread that float64 sums of equal losses may show, relative to the loss

Standing = Literal["best", "not distinguishable from the best", "worse", "not enough requests"]


@dataclass(frozen=True, slots=True)
class PairedChange:
    """A change of total loss in %, with its percentile interval; all None where the reference has no loss."""

    change_pct: float | None
    low_pct: float | None
    high_pct: float | None


@dataclass(frozen=True, slots=True)
class ConfidenceSet:
    """The models that the best one cannot be told from.

    Attributes:
        p_values: a model is in the set at every level up to its p, float64 `[models]`.
        included: whether a model is in the set, bool `[models]`.
        standings: for each model `best` (alone in the set), `not distinguishable from the best` (in it with others),
            `worse` (not in it), or `not enough requests` (fewer than `MIN_UNITS` units: nothing is tested).
    """

    p_values: F64Array
    included: BoolArray
    standings: tuple[Standing, ...]


def unit_draws(num_units: int, replicates: int, seed: int) -> IntArray:
    """Return resamples of whole units with replacement, int64 `[replicates, num_units]`.

    A unit is a source request with all its blocks (the block of the bootstrap): blocks of one request are dependent.
    One set of draws serves every model, so that differences are paired.
    """
    return np.random.default_rng([seed, _STREAM]).integers(num_units, size=(replicates, num_units))


def paired_change(loss: F64Array, base: F64Array, draws: IntArray) -> PairedChange:
    """Return 100 · (Σ loss / Σ base − 1), with the percentile interval of the same ratio over resamples.

    Args:
        loss, base: summed loss of each unit for a model and for the reference, `[units]`.
        draws: resampled units, int `[B, units]`.

    >>> paired_change(np.array([1.0, 2.0]), np.array([2.0, 4.0]), unit_draws(2, 100, 0))
    PairedChange(change_pct=-50.0, low_pct=-50.0, high_pct=-50.0)
    """
    totals, bases = (np.append(_resampled(one[None], draws)[0], one.sum()) for one in (loss, base))
    if (bases <= 0).any():
        return PairedChange(None, None, None)
    change = (totals / bases - 1) * 100
    low, high = np.percentile(change[:-1], _TAILS)
    return PairedChange(float(change[-1]), float(low), float(high))


def confidence_set(losses: F64Array, draws: IntArray, *, level: float = 0.05) -> ConfidenceSet:
    """Return the model confidence set, which holds the best model with probability at least 1 − level.

    While models M are left, d̄_ij is the mean loss of i minus that of j, s_ij its standard deviation over resamples:

        t_ij = d̄_ij / s_ij,  T = max_ij |t_ij|,  T*_b = max_ij |d̄*_bij − d̄_ij| / s_ij,  P(M) = share of b with T*_b ≥ T

    If P(M) < level, the model with the largest max_j t_ij is dropped. The p-value of a model is the largest P(M) up to
    its own elimination, which accounts for how many models are compared. Models with equal losses are one model. A
    difference that is the same in every unit has no spread: 0 is a tie, anything else is certain. The law is that
    of many units: with few, s_i is too small, and a best model is dropped more often than `level` says.

    Args:
        losses: summed loss of each unit, float64 `[models, units]`; all models on the same events.
        draws: resampled units, int `[B, units]`, from `unit_draws`.
        level: of the test.

    Source: Hansen, Lunde, Nason: The Model Confidence Set (Econometrica 79(2), 2011), T_R and its elimination rule:
    models that move together from request to request are told apart better than by T_max, which compares with their
    average.

    >>> losses = np.random.default_rng(0).normal(5, 1, (3, 50)) + np.array([[0], [0.1], [2]])
    >>> confidence_set(losses, unit_draws(50, 500, 0)).included.tolist()
    [True, True, False]
    """
    models, units = losses.shape
    if units < MIN_UNITS and models > 1:
        return ConfidenceSet(np.ones(models), np.ones(models, dtype=bool), ("not enough requests",) * models)
    distinct, which = np.unique(losses, axis=0, return_inverse=True)
    p_values = _p_values(*_means(distinct, draws))[which.ravel()]
    included = p_values >= level
    kept: Standing = "best" if included.sum() == 1 else "not distinguishable from the best"
    return ConfidenceSet(p_values, included, tuple(kept if held else "worse" for held in included))


def _p_values(mean: F64Array, resampled: F64Array) -> F64Array:
    """Eliminate models until one is left; `mean` is `[models]`, `resampled` `[models, B]`."""
    p_values, left, p = np.ones(len(mean)), np.arange(len(mean)), 0.0
    while len(left) > 1:
        d = mean[left][:, None] - mean[left]
        moved = resampled[left][:, None] - resampled[left] - d[:, :, None]
        spread = np.sqrt((moved**2).mean(axis=2))
        rounding = _SAME * np.abs(mean[left]).max()
        fixed = spread <= rounding
        d[np.abs(d) <= rounding] = 0
        moved[fixed], spread[fixed] = 0, 1
        t = np.where(fixed & (d != 0), np.copysign(np.inf, d), d / spread)
        largest = (np.abs(moved) / spread[:, :, None]).max(axis=(0, 1))
        p = max(p, float((largest >= t.max()).mean()))
        worst = int(t.max(axis=1).argmax())
        p_values[left[worst]] = p
        left = np.delete(left, worst)
    return p_values


def _means(losses: F64Array, draws: IntArray) -> tuple[F64Array, F64Array]:
    """Return mean losses `[models]`, and of each resample `[models, B]`."""
    return losses.mean(axis=1), _resampled(losses, draws) / draws.shape[1]


def _resampled(losses: F64Array, draws: IntArray) -> F64Array:
    """Return the summed losses of each resample, `[models, B]`."""
    # A gather and not a product with the multiplicities: that would depend on the threads of the linear algebra.
    return np.stack([line[draws].sum(axis=1) for line in losses])
