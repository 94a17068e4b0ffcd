"""Logistic regression on several features: the drafter's log-odds, entropy and margin, and the request's history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import MEMORY, Arrays, Estimator
from avsim.estimators.newton import forget, hierarchy, newton_step
from avsim.estimators.request_adaptive import check_request_options, track_request
from avsim.features import MAX_LOG_ODDS, sigmoid
from avsim.types import F32Array, Features, IntArray, Observations, picked_slots, slot_sums

__all__ = ["MultiLogistic"]


@dataclass(frozen=True)
class MultiLogistic(Estimator):
    """Bayesian logistic regression on several features: p_k = σ(w·x + μ + d_k), full covariance over (w, μ, d).

    x holds, by option,

    * f, the log-odds of the most likely token;
    * `logits`: √entropy − 1 and √margin / 2 − 1 of the drafter's distribution, both cut at 40;
    * `history`: u, the acceptance of the request's own blocks beyond what was predicted, discounted and shrunk to 0
      while thin, on the logit scale (`request-adaptive`'s, its weight learned too), and 2A/M − 1 of its last
      verified block. Both are 0, nothing known, when a request begins.

    Sums over labelled slots at the p of draft time, W = p(1 − p): ΣWxxᵀ, Σ(y − p)x, and per slot ΣWx, ΣW, Σ(y − p).
    A refit forgets towards the prior (`half_life` steps) and takes one Laplace step: Λ' = γΛ + (1 − γ)Λ₀ + XᵀWX,
    m' = m + Λ'⁻¹ Xᵀ(y − p). The prior's mean is vLLM's cold start (0.5, −0.2), with weight 1 on u and 0 elsewhere; its
    widths are those of `bayes-logistic`, none chosen anew.

    Source: Opper, A Bayesian approach to on-line learning, 1998 (assumed density).

    >>> estimator = MultiLogistic(history=False)
    >>> features = {name: np.zeros((1, 1), dtype=np.float32) for name in estimator.features}
    >>> estimator.predict(estimator.init(1), features, (1, 1)).round(4)
    array([[0.4502]], dtype=float32)
    """

    name: ClassVar[str] = "multi-logistic"

    refit_interval: int = field(default=32, kw_only=True)
    logits: bool = True
    history: bool = True
    weight_sd: float = 0.25
    level_sd: float = 0.5
    slot_sd: float = 0.25
    half_life: float = 1_000.0
    request_sd: float = 0.4
    request_half_life: float = 128.0

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = np.array([self.weight_sd, self.level_sd, self.slot_sd])
        if not ((widths >= 0.01) & (widths <= 100)).all() or not self.half_life > 0:
            raise InputError(
                f"{self.name}: weight_sd, level_sd and slot_sd must lie in [0.01, 100], half_life be > 0 steps"
            )
        check_request_options(self.name, self.request_sd, self.request_half_life)

    @property
    def features(self) -> tuple[str, ...]:
        return ("log_odds", "entropy", "margin") if self.logits else ("log_odds",)

    @property
    def memory_size(self) -> int:
        return 3 if self.history else 0

    @property
    def _num_shared(self) -> int:
        return 1 + 2 * self.logits + 2 * self.history

    def init(self, num_speculative_tokens: int) -> Arrays:
        mean = np.zeros(self._num_shared + 1 + num_speculative_tokens)
        mean[0], mean[self._num_shared] = 0.5, -0.2
        if self.history:
            mean[self._num_shared - 2] = 1.0
        deviation = np.full(len(mean), self.slot_sd)
        deviation[: self._num_shared], deviation[self._num_shared] = self.weight_sd, self.level_sd
        return {"mean": mean, "precision": np.diag(deviation**-2)}

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        mean = params["mean"].astype(np.float32)
        logit: F32Array = features["log_odds"] * mean[0]
        for place, name in enumerate(self.features[1:], 1):
            logit += mean[place] * _root(name, features[name])
        logit += (mean[self._num_shared] + mean[self._num_shared + 1 :])[:, None]
        if self.history:
            own, last = features[MEMORY][0], features[MEMORY][2]
            logit += mean[self._num_shared - 2] * own + mean[self._num_shared - 1] * last
        return sigmoid(logit)

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        shared = self._num_shared
        return {
            "gradient": np.zeros(shared),
            "information": np.zeros((shared, shared)),
            "slots": np.zeros((shared + 2, num_speculative_tokens)),
        }

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        picked, counts = picked_slots(observations.observed)
        p = observations.confidence.ravel().take(picked)
        # One line per feature, then ones: its products with W are the slots' sums.
        design = np.ones((self._num_shared + 1, len(picked)), dtype=np.float32)
        self._fill(design, observations.features, picked, observations.confidence.shape[1])
        terms = np.empty((self._num_shared + 2, len(picked)), dtype=np.float32)
        np.multiply(design, p * (1 - p), out=terms[:-1])
        np.subtract(observations.accepted.ravel().take(picked), p, out=terms[-1])
        wide = design[:-1].astype(np.float64).T
        products = terms.astype(np.float64) @ wide
        return {
            "gradient": stats["gradient"] + products[-1],
            "information": stats["information"] + products[:-2],
            "slots": stats["slots"] + slot_sums(terms, counts),
        }

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        slots = stats["slots"]
        gradient, information = hierarchy(stats["gradient"], stats["information"], slots[:-2], slots[-1], slots[-2])
        keep = 0.5 ** (self.refit_interval / self.half_life)
        cold = self.init(slots.shape[1])
        precision = forget(params["precision"], cold["precision"], keep)
        # What is forgotten becomes the prior's again, mean included.
        gradient += (1 - keep) * (cold["precision"] @ (cold["mean"] - params["mean"]))
        mean, precision = newton_step(params["mean"], precision, gradient, information)
        return {"mean": mean, "precision": precision}, self.zero_stats(slots.shape[1])

    def remember(self, params: Arrays, observations: Observations) -> F32Array:
        memory = observations.features[MEMORY]
        own = track_request(observations, memory[:2], self.request_sd, self.request_half_life)
        known = observations.num_admitted
        taken = observations.survived.sum(axis=0)
        last = np.where(known > 0, 2 * taken / np.maximum(known, 1) - 1, memory[2])
        return np.concatenate([own, last[None].astype(np.float32)])

    def _fill(self, design: F32Array, features: Features, picked: IntArray, rows: int) -> None:
        """Write the features of the picked slots into the leading lines of `[F + 1, n]`."""
        design[0] = features["log_odds"].ravel().take(picked)
        for place, name in enumerate(self.features[1:], 1):
            design[place] = _root(name, features[name].ravel().take(picked))
        if self.history:
            design[-3:-1] = features[MEMORY][[0, 2]].take(picked % rows, axis=1)


def _root(name: str, x: F32Array) -> F32Array:
    """Return the square root of a feature that starts at 0 and has a long tail, brought to about −1 … 1."""
    out: F32Array = np.maximum(x, np.float32(0))
    # A drafter that leaves one token possible has an infinite margin, which says no more than one of 40.
    np.minimum(out, np.float32(MAX_LOG_ODDS), out=out)
    np.sqrt(out, out=out)
    if name == "margin":
        out *= np.float32(0.5)
    out -= np.float32(1)
    return out
