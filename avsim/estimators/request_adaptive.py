"""Each request its own level: `bayes-logistic` with a random intercept per request, tracked from block to block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import MEMORY, Arrays
from avsim.estimators.bayes_logistic import BayesLogistic
from avsim.types import F32Array, Features, Observations

__all__ = ["RequestAdaptive", "check_request_options", "track_request"]


def check_request_options(name: str, request_sd: float, request_half_life: float) -> None:
    """Refuse what `track_request` cannot work with.

    Raises:
        InputError: an option is out of range.
    """
    if not 0.01 <= request_sd <= 100 or not request_half_life > 0:
        raise InputError(f"{name}: request_sd must lie in [0.01, 100], request_half_life be > 0 blocks")


def track_request(observations: Observations, memory: F32Array, request_sd: float, half_life: float) -> F32Array:
    """Return what is known of each request's u ~ N(0, τ²) after one more block, float32 `[2, rows]`.

    Memory holds the posterior mean of u and the precision that blocks added to the prior's 1/τ². One Laplace step
    from the block's observed slots, whose p were predicted with u in them:

        1/v' = 1/v + Σ p(1 − p),  u' = u + v' Σ (y − p)

    then a drift towards the prior until the next block, by half in `half_life` blocks: u' = ρu, v' = ρ²v + (1 − ρ²)τ².
    """
    prior, rho = np.float32(request_sd**-2), np.float32(0.5 ** (1 / half_life))
    p = np.where(observations.observed, observations.confidence, np.float32(0))
    expected = p.sum(axis=0)
    information = np.maximum(expected - np.einsum("kn,kn->n", p, p), np.float32(0))
    precision = memory[1] + information + prior
    u = memory[0] + (observations.survived.sum(axis=0, dtype=np.float32) - expected) / precision
    kept = 1 / (rho**2 / precision + (1 - rho**2) / prior)
    return np.stack([rho * u, np.maximum(kept - prior, np.float32(0))])


@dataclass(frozen=True)
class RequestAdaptive(BayesLogistic):
    """`bayes-logistic` plus a random intercept per request: p_k = σ(w·f + μ + d_k + u_r), u_r ~ N(0, `request_sd`²).

    Requests differ in how well they can be drafted, and a server sees each one's verdicts block after block. Memory
    holds the posterior of u_r (`track_request`); a request that has just begun has u_r = 0. All options of
    `bayes-logistic` hold; its predictive and variance include what is not known of u_r. The defaults of `request_sd`
    and of the half-life, in blocks, are what leaving any one of the shipped dense traces out chooses on the others.

    Source: random-intercept (Rasch) models; Glickman, Applied Statistics 48(3), 1999, for the sequential update.

    >>> import numpy as np
    >>> features = {"log_odds": np.zeros((1, 2), np.float32), "memory": np.array([[0, 0.2], [0, 9]], np.float32)}
    >>> estimator = RequestAdaptive()
    >>> estimator.predict(estimator.init(1), features, (1, 2)).round(4)
    array([[0.4502, 0.5   ]], dtype=float32)
    """

    name: ClassVar[str] = "request-adaptive"

    request_sd: float = 0.4
    request_half_life: float = 128.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_request_options(self.name, self.request_sd, self.request_half_life)

    @property
    def memory_size(self) -> int:
        return 2

    def variance(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        variance = super().variance(params, features, shape)
        variance += 1 / (np.float32(self.request_sd**-2) + features[MEMORY][1])
        return variance

    def remember(self, params: Arrays, observations: Observations) -> F32Array:
        return track_request(observations, observations.features[MEMORY], self.request_sd, self.request_half_life)

    def _logit(self, params: Arrays, features: Features) -> F32Array:
        logit = super()._logit(params, features)
        logit += features[MEMORY][0]
        return logit
