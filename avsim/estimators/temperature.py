"""Sequential temperature scaling: one temperature per slot, chosen so that survival is calibrated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import Arrays, Estimator
from avsim.estimators.confidence_head import head_log_odds
from avsim.estimators.newton import forget
from avsim.features import sigmoid
from avsim.types import BoolArray, F32Array, F64Array, Features, Observations

__all__ = ["ECE_BINS", "Temperature", "TemperatureOffline", "cumulative_ece"]

ECE_BINS = 15
_COLDEST, _HOTTEST = 0.1, 50.0
_GRID, _REFINEMENTS, _REFINED = 41, 2, 21
_SMALLEST = np.float32(2.0**-24)  # half a float32 ulp below 1, so that a saturated p still has a rejection


@dataclass(frozen=True)
class _TemperatureScaling(Estimator):
    """What both forms share: p_k = σ(f_k / T_k), stored as a_k = 1 / T_k, from T_k = 1."""

    cumulative: ClassVar[bool] = True

    feature: Literal["log_odds", "confidence"] = "log_odds"

    @property
    def features(self) -> tuple[str, ...]:
        return (self.feature,)

    def init(self, num_speculative_tokens: int) -> Arrays:
        return {"inverse_temperatures": np.ones(num_speculative_tokens, dtype=np.float32)}

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        return sigmoid(params["inverse_temperatures"][:, None] * self._logits(features))

    def _logits(self, features: Features) -> F32Array:
        column = features[self.feature]
        return head_log_odds(column) if self.feature == "confidence" else column


@dataclass(frozen=True)
class Temperature(_TemperatureScaling):
    """Sequential temperature scaling, learned while serving: p_k = σ(a_k f_k), a_k = 1/T_k, from T_k = 1.

    The loss is the log-loss of the survival S_k = ∏_{j≤k} p_j on every verified slot k < M, with label y = [k < A].
    Per such slot, at the p predicted when it was drafted, gradient and Fisher information in a_k are

        g_k += (y − S_k)(1 − p_k) f_k / (1 − S_k),  I_k += S_k (1 − p_k)² f_k² / (1 − S_k)

    Slot k's loss moves a_k only, with earlier slots as they are, so temperatures settle in slot order. A refit sets
    Λ_k = γΛ_k + (1 − γ)Λ₀ + I_k and a_k += g_k / Λ_k, at most halving or doubling it, inside [0.02, 10]; γ is
    `discount` and Λ₀ = `prior_weight`, in the units of I_k: one slot at f = 4 and p = 0.5 is worth 4.

    `feature="confidence"` scales a recorded confidence head's logit in place of the drafter's log-odds.

    Source: DSpark's STS (arXiv 2607.05147), whose ECE is replaced by a loss that has a gradient.

    >>> estimator = Temperature()
    >>> features = {"log_odds": np.array([[2.0], [0.0]], dtype=np.float32)}
    >>> estimator.predict(estimator.init(2), features, (2, 1)).round(4)
    array([[0.8808],
           [0.5   ]], dtype=float32)
    """

    name: ClassVar[str] = "temperature"

    discount: float = 0.95
    prior_weight: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.discount <= 1 or not 0 < self.prior_weight < np.inf:
            raise InputError(f"{self.name}: discount must lie in (0, 1], prior_weight be > 0 and finite")

    def init(self, num_speculative_tokens: int) -> Arrays:
        information = np.full(num_speculative_tokens, self.prior_weight)
        return {**super().init(num_speculative_tokens), "information": information}

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        return {"gradient": np.zeros(num_speculative_tokens), "information": np.zeros(num_speculative_tokens)}

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        verified, survived = observations.verified, observations.survived
        p = np.where(verified, observations.confidence, np.float32(0))
        f = np.where(verified, self._logits(observations.features), np.float32(0))
        terms = np.empty((2, *p.shape), dtype=np.float32)
        survival, death = np.ones_like(p[0]), np.zeros_like(p[0])
        for slot in range(len(p)):
            rejected = np.maximum(1 - p[slot], _SMALLEST)
            # 1 − S_k as a sum of positive terms: a difference would lose all digits where S_k is near 1.
            death = rejected + p[slot] * death
            survival = survival * p[slot]
            lever = f[slot] * rejected / death
            np.multiply(survived[slot] - survival, lever, out=terms[0, slot])
            np.multiply(survival * rejected, lever * f[slot], out=terms[1, slot])
        gradient, information = terms.sum(axis=2, dtype=np.float64)
        return {"gradient": stats["gradient"] + gradient, "information": stats["information"] + information}

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        old = params["inverse_temperatures"].astype(np.float64)
        prior = np.full(len(old), self.prior_weight)
        information = forget(params["information"], prior, self.discount) + stats["information"]
        moved = np.clip(old + stats["gradient"] / information, old / 2, old * 2)
        new = np.clip(moved, 1 / _HOTTEST, 1 / _COLDEST).astype(np.float32)
        return {"inverse_temperatures": new, "information": information}, self.zero_stats(len(old))


@dataclass(frozen=True)
class TemperatureOffline(_TemperatureScaling):
    """DSpark's sequential temperature scaling, fitted on blocks kept apart: p_k = σ(f_k / T_k).

    Slot after slot, with earlier temperatures frozen, T_k is the one in [0.1, 50] that minimises the ECE of the
    survival S_k = S_{k−1} σ(f_k / T_k) against [k < A] over the verified slots k < M: a geometric grid of 41, then two
    finer ones around the best. ECE = Σ_b |Σ_{i∈b} (S_i − y_i)| / N over 15 bins of equal mass.

    A slot that no block verified keeps T = 1. `feature` as in `temperature`.

    Source: DSpark (arXiv 2607.05147), which searches a grid for the least ECE; the binning is ours.

    >>> estimator = TemperatureOffline()
    >>> rng = np.random.default_rng(0)
    >>> f = rng.normal(1, 3, (1, 4000)).astype(np.float32)
    >>> taken = (rng.random(4000) < 1 / (1 + np.exp(-f[0] / 2))).astype(int)
    >>> blocks = Observations.grade({"log_odds": f}, f, np.ones(4000, dtype=int), taken, np.array([0, 4000]))
    >>> bool(1.7 < 1 / estimator.fit(1, blocks)["inverse_temperatures"][0] < 2.3)
    True
    """

    name: ClassVar[str] = "temperature-offline"
    offline: ClassVar[bool] = True

    def fit(self, num_speculative_tokens: int, observations: Observations) -> Arrays:
        logits, verified, survived = self._logits(observations.features), observations.verified, observations.survived
        inverse = np.ones(num_speculative_tokens, dtype=np.float32)
        before = np.ones(logits.shape[1], dtype=np.float32)
        for slot in range(num_speculative_tokens):
            rows = verified[slot]
            if rows.any():
                inverse[slot] = 1 / _best_temperature(before[rows], logits[slot, rows], survived[slot, rows])
            before = before * sigmoid(inverse[slot] * logits[slot])
        return {"inverse_temperatures": inverse}


def cumulative_ece(survival: F32Array, survived: BoolArray, bins: int = ECE_BINS) -> float:
    """Return Σ_b |Σ_{i∈b} (S_i − y_i)| / N over bins of equal mass, equal S in one bin, as a fraction; `[n]`, n ≥ 1.

    >>> cumulative_ece(np.array([0.25, 0.75], dtype=np.float32), np.array([False, True]), bins=1)
    0.0
    """
    # Floats in [0, 1] sort like their bits, so the label rides in the last one: sorting is far faster than argsort.
    keys = np.sort(survival.view(np.uint32) << 1 | survived)
    ordered = (keys >> 1).view(np.float32)
    starts = np.arange(min(bins, len(keys))) * len(keys) // min(bins, len(keys))
    starts = np.unique(np.searchsorted(ordered, ordered[starts]))
    gaps = ordered - (keys & 1).astype(np.float64)
    return float(np.abs(np.add.reduceat(gaps, starts)).sum() / len(keys))


def _best_temperature(before: F32Array, logits: F32Array, survived: BoolArray) -> float:
    grid: F64Array = np.geomspace(_COLDEST, _HOTTEST, _GRID)
    ratio = float(grid[1] / grid[0])
    for _ in range(_REFINEMENTS + 1):
        errors = [cumulative_ece(before * sigmoid(logits / t), survived) for t in grid.astype(np.float32)]
        best = float(grid[int(np.argmin(errors))])
        grid = np.clip(best * np.geomspace(1 / ratio, ratio, _REFINED), _COLDEST, _HOTTEST)
        ratio **= 2 / (_REFINED - 1)
    return best
