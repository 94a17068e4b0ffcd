"""Isotonic regression of acceptance on the drafter's log-odds, per slot, shrunk to the curve of all slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import Arrays, Estimator
from avsim.features import sigmoid
from avsim.types import F32Array, F64Array, Features, Observations, picked_slots

__all__ = ["CENTRES", "Isotonic", "monotone"]

# The kernel's own log-odds resolve nothing above 15.94, and drafters say next to nothing below −6.
_BINS, _LOWEST, _WIDTH = 64, -5.0, 1 / 3
CENTRES: F64Array = _LOWEST + _WIDTH * np.arange(_BINS, dtype=np.float64)
"""Log-odds at the middle of each bin, `[64]`; the outer bins take all that lies beyond."""


@dataclass(frozen=True)
class Isotonic(Estimator):
    """Per slot, the rising curve of acceptance over log-odds that fits best, read between bin centres.

    Accepted and observed slots are counted per bin of log-odds, s_kb and n_kb, and multiplied by `discount` at every
    refit (1 = never forget). With iso(v, w) the weighted least-squares fit that never falls,

        shared_b = iso((Σ_k s_kb + m₀ π_b) / (Σ_k n_kb + m₀)),  π_b = σ(0.5·f_b − 0.2)
        curve_kb = iso((s_kb + m shared_b) / (n_kb + m))

    each weighted by its denominator: m₀ = `prior_weight` and m = `shared_weight` count as so many observations in
    every bin. A thin or censored bin, or a slot that is never verified, thus follows the other slots, and beyond all
    data the curve of vLLM's cold start. `shared=true` uses the one curve for every slot.

    Source: Zadrozny and Elkan (2002); the prior is vLLM PR #52228's start.

    >>> estimator = Isotonic()
    >>> features = {"log_odds": np.array([[0.0], [2.0]], dtype=np.float32)}
    >>> estimator.predict(estimator.init(2), features, (2, 1)).round(3)
    array([[0.45],
           [0.69]], dtype=float32)
    """

    name: ClassVar[str] = "isotonic"

    shared: bool = False
    shared_weight: float = 20.0
    prior_weight: float = 1.0
    discount: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = (self.shared_weight, self.prior_weight)
        if not all(0 < weight < np.inf for weight in weights) or not 0 < self.discount <= 1:
            raise InputError(
                f"{self.name}: shared_weight and prior_weight must be > 0 and finite, discount lie in (0, 1]"
            )

    @property
    def features(self) -> tuple[str, ...]:
        return ("log_odds",)

    def init(self, num_speculative_tokens: int) -> Arrays:
        return {"curve": np.tile(_PRIOR, (num_speculative_tokens, 1)).astype(np.float32)}

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        curve = params["curve"]
        place = _place(features["log_odds"])
        below = np.minimum(np.floor(place), np.float32(_BINS - 2))
        cell = below.astype(np.intp)
        cell += _BINS * np.arange(shape[0])[:, None]
        rise = np.diff(curve, axis=1, append=curve[:, -1:])
        place -= below
        place *= rise.ravel().take(cell)
        place += curve.ravel().take(cell)
        return place

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        shape = (num_speculative_tokens, _BINS)
        return {"accepted": np.zeros(shape), "observed": np.zeros(shape)}

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        picked, counts = picked_slots(observations.observed)
        f = observations.features["log_odds"].ravel().take(picked)
        cell = np.rint(_place(f)).astype(np.intp)
        cell += np.repeat(_BINS * np.arange(len(counts)), counts)
        label = observations.accepted.ravel().take(picked)
        both = np.bincount(2 * cell + label, minlength=2 * stats["observed"].size)
        rejected, accepted = both.reshape(*stats["observed"].shape, 2).transpose(2, 0, 1)
        return {"accepted": stats["accepted"] + accepted, "observed": stats["observed"] + (rejected + accepted)}

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        accepted, observed = stats["accepted"], stats["observed"]
        common = _shrunk(accepted.sum(axis=0), observed.sum(axis=0), _PRIOR, self.prior_weight)
        if self.shared:
            curve = np.tile(common, (len(observed), 1))
        else:
            slots = zip(accepted, observed, strict=True)
            curve = np.stack([_shrunk(s, n, common, self.shared_weight) for s, n in slots])
        kept = {name: value * self.discount for name, value in stats.items()}
        return {"curve": curve.astype(np.float32)}, kept


def monotone(values: F64Array, weights: F64Array) -> F64Array:
    """Return the non-falling sequence nearest to values `[B]` in weighted squares, weights > 0.

    It pools adjacent violators: as long as a value is not above the one before it, the two become their weighted mean.

    >>> monotone(np.array([0.125, 0.75, 0.25, 0.5]), np.array([1.0, 1.0, 3.0, 1.0])).tolist()
    [0.125, 0.375, 0.375, 0.5]
    """
    pools: list[tuple[float, float, int]] = []
    # Plain floats: at 64 bins a loop over them is several times faster than any array form.
    for mean, weight in zip(values.tolist(), weights.tolist(), strict=True):
        size = 1
        while pools and pools[-1][0] >= mean:
            other, mass, count = pools.pop()
            mean = (other * mass + mean * weight) / (mass + weight)
            weight, size = weight + mass, size + count
        pools.append((mean, weight, size))
    means, _, sizes = zip(*pools, strict=True)
    return np.repeat(np.array(means), sizes)


def _shrunk(accepted: F64Array, observed: F64Array, towards: F64Array, weight: float) -> F64Array:
    mass = observed + weight
    return monotone((accepted + weight * towards) / mass, mass)


def _place(log_odds: F32Array) -> F32Array:
    """Return where log-odds lie on the bins, in units of bins from the first centre; NaN counts as the lowest."""
    place = (log_odds - np.float32(_LOWEST)) * np.float32(1 / _WIDTH)
    return np.fmin(np.fmax(place, np.float32(0), out=place), np.float32(_BINS - 1), out=place)


_PRIOR: F64Array = sigmoid(0.5 * CENTRES - 0.2).astype(np.float64)
