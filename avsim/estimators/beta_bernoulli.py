"""Beta posteriors of acceptance per slot and bin of log-odds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import Arrays, Estimator
from avsim.estimators.newton import forget
from avsim.features import sigmoid
from avsim.types import F32Array, F64Array, Features, IntArray, Observations, picked_slots

__all__ = ["EDGES", "BetaBernoulli"]

EDGES: F32Array = np.array([-3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6, 9], dtype=np.float32)
"""Log-odds that part the 15 bins; a bin holds its lower edge. Finest where acceptance changes most."""
# All edges are multiples of a half, so a bin is found by arithmetic and a small table; a binary search is slower.
_LOWEST_HALF, _HIGHEST_HALF = int(2 * EDGES[0]) - 1, int(2 * EDGES[-1])
_BIN_OF_HALF = np.searchsorted(EDGES, np.arange(_LOWEST_HALF, _HIGHEST_HALF + 1) / 2, side="right")
_TYPICAL = np.concatenate([[-4.0], (EDGES[1:] + EDGES[:-1]) / 2, [11.0]])


@dataclass(frozen=True)
class BetaBernoulli(Estimator):
    """One Beta posterior per slot and bin of log-odds; p_k is its mean: p_k = α_kb / (α_kb + β_kb), b the bin of f_k.

    Before any data, α_kb = m π_b and β_kb = m (1 − π_b) with π_b = σ(0.5·f_b − 0.2) at a typical f_b of the bin and
    m = `prior_weight` observations. A refit adds the accepted slots to α and the rejected ones to β, after both went
    back towards the prior: α = γα + (1 − γ)α₀, γ = `discount` (1 = never forget).

    Source: conjugate Beta-Bernoulli updating; the prior is vLLM PR #52228's start.

    >>> estimator = BetaBernoulli()
    >>> params, features = estimator.init(1), {"log_odds": np.array([[0.25]], dtype=np.float32)}
    >>> estimator.predict(params, features, (1, 1)).round(3)
    array([[0.481]], dtype=float32)
    """

    name: ClassVar[str] = "beta-bernoulli"

    prior_weight: float = 10.0
    discount: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.prior_weight < np.inf or not 0 < self.discount <= 1:
            raise InputError(f"{self.name}: prior_weight must be > 0 and finite, discount lie in (0, 1]")

    @property
    def features(self) -> tuple[str, ...]:
        return ("log_odds",)

    def init(self, num_speculative_tokens: int) -> Arrays:
        return {name: np.tile(row, (num_speculative_tokens, 1)) for name, row in self._prior().items()}

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        alpha, beta = params["alpha"], params["beta"]
        mean = (alpha / (alpha + beta)).astype(np.float32)
        cell = _halves(features["log_odds"])
        cell += len(_BIN_OF_HALF) * np.arange(shape[0])[:, None]
        return mean[:, _BIN_OF_HALF].ravel().take(cell)

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        shape = (num_speculative_tokens, len(_TYPICAL))
        return {"alpha": np.zeros(shape), "beta": np.zeros(shape)}

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        picked, counts = picked_slots(observations.observed)
        cell = _BIN_OF_HALF.take(_halves(observations.features["log_odds"].ravel().take(picked)))
        cell += np.repeat(len(_TYPICAL) * np.arange(len(counts)), counts)
        label = observations.accepted.ravel().take(picked)
        both = np.bincount(2 * cell + label, minlength=2 * stats["alpha"].size)
        rejected, accepted = both.reshape(*stats["alpha"].shape, 2).transpose(2, 0, 1)
        return {"alpha": stats["alpha"] + accepted, "beta": stats["beta"] + rejected}

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        prior = self._prior()
        new = {name: forget(params[name], prior[name], self.discount) + stats[name] for name in prior}
        return new, self.zero_stats(len(stats["alpha"]))

    def _prior(self) -> dict[str, F64Array]:
        mean = sigmoid(0.5 * _TYPICAL - 0.2).astype(np.float64)
        return {"alpha": self.prior_weight * mean, "beta": self.prior_weight * (1 - mean)}


def _halves(log_odds: F32Array) -> IntArray:
    """Return the index into `_BIN_OF_HALF`; NaN counts as the lowest."""
    half = np.floor(2 * log_odds)
    half = np.fmin(np.fmax(half, np.float32(_LOWEST_HALF), out=half), np.float32(_HIGHEST_HALF), out=half)
    return half.astype(np.intp) - _LOWEST_HALF
