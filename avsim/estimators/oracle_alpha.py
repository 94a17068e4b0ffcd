"""The bound for lossless scores: the target's own probability of accepting whatever slot k draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import Arrays, Estimator
from avsim.types import F32Array, Features, Observations, picked_slots, slot_sums

__all__ = ["OracleAlpha"]


@dataclass(frozen=True)
class OracleAlpha(Estimator):
    """p_k = α_k = Σ_v min(p_k(v), q_k(v)), p the target's and q the drafter's distribution in slot k.

    It is the probability that standard rejection sampling accepts slot k, before its token is drawn: no score that
    stays lossless with sampled drafts can know more about the slot. No engine has it before verification.

    A trace knows α only where its own verification reached the slot. Elsewhere p_k is the slot's running mean,
    (Σ α + π·m) / (n + m) over its n observed slots, with the prior mean π = `prior` and weight m = `prior_weight`.
    Traces with greedy drafts have no `alpha`.

    Source: Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding", 2023,
    corollary 3.6 (E[α]).

    >>> estimator = OracleAlpha()
    >>> features = {"alpha": np.array([[0.7], [np.nan]], dtype=np.float32)}
    >>> estimator.predict(estimator.init(2), features, (2, 1)).round(4)
    array([[0.7],
           [0.5]], dtype=float32)
    """

    name: ClassVar[str] = "oracle-alpha"
    uses_truth: ClassVar[bool] = True
    column: ClassVar[str] = "alpha"
    """The recorded probability; NaN where the trace does not know it."""

    prior: float = 0.5
    prior_weight: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.prior < 1 or not 0 < self.prior_weight < np.inf:
            raise InputError(f"{self.name}: prior must lie in (0, 1), and prior_weight be > 0 and finite")

    @property
    def features(self) -> tuple[str, ...]:
        return (self.column,)

    def init(self, num_speculative_tokens: int) -> Arrays:
        return {"rate": np.full(num_speculative_tokens, self.prior, dtype=np.float32)}

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        recorded = features[self.column]
        p = np.where(np.isnan(recorded), params["rate"][:, None], recorded)
        return np.clip(p, 0, 1, out=p)  # a recorded sum of float32 may end just outside

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        return {"total": np.zeros(num_speculative_tokens), "count": np.zeros(num_speculative_tokens)}

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        recorded = observations.features[self.column]
        picked, counts = picked_slots(observations.observed & ~np.isnan(recorded))
        total = slot_sums(recorded.ravel().take(picked), counts)
        return {"total": stats["total"] + total, "count": stats["count"] + counts}

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        rate = (stats["total"] + self.prior * self.prior_weight) / (stats["count"] + self.prior_weight)
        return {"rate": np.clip(rate, 0, 1).astype(np.float32)}, stats
