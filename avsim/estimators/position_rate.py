"""The floor that any estimator must beat: a running acceptance rate per slot, no features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import Arrays, Estimator
from avsim.types import F32Array, Features, Observations

__all__ = ["PositionRate"]


@dataclass(frozen=True)
class PositionRate(Estimator):
    """Running conditional acceptance per slot: p_k = (s_k + π·m) / (n_k + m).

    s_k and n_k count accepted and observed slots, each multiplied by `discount` at every refit (1 = never
    forget); the prior has mean π = `prior` and the weight of m = `prior_weight` observations.

    Source: the moving averages of SmartSpec (arXiv 2406.14066), without their request level.

    >>> estimator = PositionRate()
    >>> estimator.predict(estimator.init(2), {}, (2, 1)).tolist()
    [[0.5], [0.5]]
    """

    name: ClassVar[str] = "position-rate"

    prior: float = 0.5
    prior_weight: float = 10.0
    discount: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.prior < 1 or not 0 < self.prior_weight < np.inf or not 0 < self.discount <= 1:
            raise InputError(
                f"{self.name}: prior must lie in (0, 1), prior_weight be > 0 and finite, discount in (0, 1]"
            )

    def init(self, num_speculative_tokens: int) -> Arrays:
        return {"rate": np.full(num_speculative_tokens, self.prior, dtype=np.float32)}

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        return np.broadcast_to(params["rate"][:, None], shape)

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        return {"accepted": np.zeros(num_speculative_tokens), "observed": np.zeros(num_speculative_tokens)}

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        observed = observations.observed
        accepted = observed & observations.accepted
        return {
            "accepted": stats["accepted"] + accepted.sum(axis=1),
            "observed": stats["observed"] + observed.sum(axis=1),
        }

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        rate = (stats["accepted"] + self.prior * self.prior_weight) / (stats["observed"] + self.prior_weight)
        kept = {name: value * self.discount for name, value in stats.items()}
        return {"rate": rate.astype(np.float32)}, kept
