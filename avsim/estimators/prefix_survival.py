"""Survival fitted as survival: a logistic factor per slot that reads the whole prefix, earlier drawn tokens too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import Arrays, Estimator
from avsim.estimators.newton import forget, newton_step
from avsim.features import sigmoid
from avsim.types import BoolArray, F32Array, Features, Observations

__all__ = ["PrefixSurvival"]

_MAX_MARGIN = 20.0
_MAX_SURPRISE = 20.0
_LEAST_DOUBT = np.float32(1e-5)  # of 1 − p: keeps the score of a survival that rounds to 1 finite


@dataclass(frozen=True)
class PrefixSurvival(Estimator):
    """Survival as a product of logistic factors, fitted to the survivals: S_k = ∏_{j≤k} p_j, p_k = σ(w·x_k + b_k).

    The weights are shared by all slots and the intercepts are not. x_k holds, of the slots 0 … k,

        f_k                      the log-odds of the slot itself
        min_{j<k} f_j            of the weakest slot before it; 0 for slot 0
        ln(1 + 10 H_k)           H the drafter's entropy in nats, with `entropy`
        min(margin_k, 20)        best logit minus second, with `margin`
        ln q(d) − ln max q       of the token d drawn in slot k − 1, at least −20, with `drawn`; 0 for slot 0

    The last one says how likely slot k − 1 is to survive now that its token is known. Slot k's own token, and any
    later one, is never read, so the scores stay lossless with sampled drafts; with greedy ones that column is 0.

    A verified slot k < M has the label y_k = [k < A], an observed one also the conditional label. The log-likelihood
    that is climbed weighs the two kinds, c = `conditional_share`:

        (1 − c) Σ_{k<M} ln Bernoulli(y_k; S_k) + c Σ_{k≤A, k<M} ln Bernoulli(y_k; p_k)

    The first sum makes ∏ p_j calibrated, which is what budgets are sized and ranked by, and does not need features
    that are conditionally independent; with c = 1 p_k is the best conditional probability instead. With q = 1 − p,
    the gradient is Σ e x and the curvature Σ u x xᵀ over the verified slots:

        e_j = (1 − c) q_j Σ_{j≤k<M} (y_k − S_k) / (1 − S_k) + c [j observed] (y_j − p_j)
        u_j = (1 − c) q_j² Σ_{j≤k<M} S_k / (1 − S_k) + c [j observed] p_j q_j

    which is the Fisher information without the terms of the first sum that couple two slots. A refit forgets towards
    the prior (`half_life` steps; its mean is the cold start, each precision is `precision`) and takes one Laplace
    step. A slot that is never verified keeps its intercept.

    Source: survivals are what vLLM PR #52228 ranks by; composite likelihoods: Varin, Reid and Firth, "An overview of
    composite likelihood methods", Statistica Sinica 21, 2011.

    >>> estimator = PrefixSurvival(entropy=False, margin=False, drawn=False)
    >>> features = {"log_odds": np.array([[2.0], [0.0]], dtype=np.float32)}
    >>> estimator.predict(estimator.init(2), features, (2, 1)).round(4)
    array([[0.69  ],
           [0.4502]], dtype=float32)
    """

    name: ClassVar[str] = "prefix-survival"
    cumulative: ClassVar[bool] = True

    refit_interval: int = field(default=50, kw_only=True)
    slope: float = 0.5
    intercept: float = -0.2
    precision: float = 1.0
    half_life: float = 300.0
    conditional_share: float = 0.5
    entropy: bool = True
    margin: bool = True
    drawn: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.isfinite([self.slope, self.intercept]).all() or not 0 < self.precision < np.inf:
            raise InputError(f"{self.name}: precision must be > 0, and slope, intercept and precision finite")
        if not self.half_life > 0 or not 0 <= self.conditional_share <= 1:
            raise InputError(f"{self.name}: half_life must be > 0 steps, and conditional_share lie in [0, 1]")

    @property
    def features(self) -> tuple[str, ...]:
        options = {"entropy": self.entropy, "margin": self.margin, "draft_logprob": self.drawn}
        return ("log_odds", *(name for name, wanted in options.items() if wanted))

    def init(self, num_speculative_tokens: int) -> Arrays:
        weights = np.zeros(1 + len(self.features))
        weights[0] = self.slope
        size = len(weights) + num_speculative_tokens
        return {
            "weights": weights,
            "intercepts": np.full(num_speculative_tokens, self.intercept),
            "precision": self.precision * np.eye(size),
        }

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        score, scratch = np.empty((2, *shape), dtype=np.float32)
        score[:] = params["intercepts"][:, None]
        for weight, column in zip(params["weights"].astype(np.float32), self._columns(features), strict=True):
            score += np.multiply(column, weight, out=scratch)
        return sigmoid(score)

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        return {"sums": np.zeros((num_speculative_tokens, 3 + len(self.features), 2 + len(self.features)))}

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        verified = observations.verified
        columns = list(self._columns(observations.features))
        residual, weight = self._scores(observations, verified)
        sums = stats["sums"].copy()
        for k, known in enumerate(verified):
            rows = slice(None) if known.all() else np.flatnonzero(known)
            u = weight[k][rows]
            x = np.ones((len(columns) + 1, len(u)))
            for line, column in zip(x, columns, strict=False):
                line[:] = column[k][rows]
            left = np.empty((len(x) + 1, len(u)))
            np.multiply(x, u, out=left[:-1])
            left[-1] = residual[k][rows]
            sums[k] += left @ x.T
        return {"sums": sums}

    def _scores(self, observations: Observations, verified: BoolArray) -> tuple[F32Array, F32Array]:
        """Return e and u, float32 `[K, n]`: the gradient is Σ e x over the verified slots, the information Σ u x xᵀ."""
        doubt = np.zeros(verified.shape, dtype=np.float32)  # 1 − p
        np.subtract(1, observations.confidence, out=doubt, where=verified)
        np.maximum(doubt, _LEAST_DOUBT, out=doubt)
        p = 1 - doubt
        survival = p.copy()
        for k in range(1, len(p)):
            survival[k] *= survival[k - 1]
        label = observations.survived.astype(np.float32)
        residual = (label - survival) / (1 - survival)
        odds = survival / (1 - survival)
        if not verified.all():
            residual *= verified
            odds *= verified
        for k in reversed(range(len(p) - 1)):
            residual[k] += residual[k + 1]
            odds[k] += odds[k + 1]
        joint = np.float32(1 - self.conditional_share) * doubt
        residual *= joint
        odds *= joint
        odds *= doubt
        reached = np.float32(self.conditional_share) * observations.observed
        label -= p
        label *= reached
        residual += label
        p *= doubt
        p *= reached
        odds += p
        return residual, odds

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        shared, num_slots = len(params["weights"]), len(params["intercepts"])
        sums, gradients = stats["sums"][:, :-1], stats["sums"][:, -1]
        information = np.diag(np.concatenate([np.zeros(shared), sums[:, shared, shared]]))
        information[:shared, :shared] = sums[:, :shared, :shared].sum(axis=0)
        information[shared:, :shared] = sums[:, shared, :shared]
        information[:shared, shared:] = sums[:, shared, :shared].T
        gradient = np.concatenate([gradients[:, :shared].sum(axis=0), gradients[:, shared]])
        mean = np.concatenate([params["weights"], params["intercepts"]])
        cold = self.init(num_slots)
        keep = 0.5 ** (self.refit_interval / self.half_life)
        # What is forgotten becomes the prior's again, mean included.
        pull = np.concatenate([cold["weights"], cold["intercepts"]]) - mean
        gradient += (1 - keep) * self.precision * pull
        precision = forget(params["precision"], cold["precision"], keep)
        mean, precision = newton_step(mean, precision, gradient, information)
        new = {"weights": mean[:shared], "intercepts": mean[shared:], "precision": precision}
        return new, self.zero_stats(num_slots)

    def _columns(self, features: Features) -> Iterator[F32Array]:
        """Yield the entries of x, each float32 `[K, n]`."""
        f = features["log_odds"]
        yield f
        weakest = np.zeros_like(f)
        for k in range(1, len(f)):
            np.minimum(f[k - 1], weakest[k - 1] if k > 1 else f[0], out=weakest[k])
        yield weakest
        if self.entropy:
            yield np.log(1 + 10 * np.maximum(features["entropy"], 0))
        if self.margin:
            yield np.clip(features["margin"], 0, _MAX_MARGIN)
        if self.drawn:
            best = np.exp(-f[:-1])  # ln max q = −ln(1 + e^−f)
            best += 1
            surprise = np.zeros_like(f)
            np.clip(np.log(best) + features["draft_logprob"][:-1], -_MAX_SURPRISE, 0, out=surprise[1:])
            yield surprise
