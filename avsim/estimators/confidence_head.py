"""The acceptance probability that a drafter itself puts out, as recorded or recalibrated while serving."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from avsim.estimators.base import Arrays, Estimator
from avsim.estimators.online_logistic import OnlineLogistic
from avsim.types import F32Array, Features, Observations

__all__ = ["ConfidenceHead", "head_log_odds"]

_CLAMP = np.float32(1e-6)  # a head that rounds to 0 or 1 reads ±13.8, so that data can still correct it


def head_log_odds(confidence: F32Array) -> F32Array:
    """Return ln(c / (1 − c)) of probabilities, float32, with c clamped to [1e-6, 1 − 1e-6].

    >>> head_log_odds(np.array([0.0, 0.5, 1.0], dtype=np.float32)).round(1).tolist()
    [-13.800000190734863, 0.0, 13.800000190734863]
    """
    clamped = np.clip(confidence, _CLAMP, 1 - _CLAMP)
    return np.log(clamped / (1 - clamped))


@dataclass(frozen=True)
class ConfidenceHead(Estimator):
    """The drafter's recorded confidence c_k: p_k = c_k, or p_k = σ(w·logit(c_k) + b_k) with `recalibrate`.

    Recalibration is Platt scaling, learned while serving: the steps of `online-logistic` on the head's log-odds
    from w = 1 and b_k = 0, one slope and an intercept per slot. It needs a trace that carries `confidence`.

    Source: DSpark's confidence head (arXiv 2607.05147); Platt (1999); steps as vLLM PR #52228.

    >>> features = {"confidence": np.array([[0.75]], dtype=np.float32)}
    >>> ConfidenceHead().predict({}, features, (1, 1)).tolist()
    [[0.75]]
    >>> scaled = ConfidenceHead(recalibrate=True)
    >>> scaled.predict(scaled.init(1), features, (1, 1)).round(4).tolist()
    [[0.75]]
    """

    name: ClassVar[str] = "confidence-head"

    recalibrate: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        return ("confidence",)

    @property
    def platt(self) -> OnlineLogistic:
        """The estimator that recalibrates; it reads the head's log-odds in place of the drafter's."""
        return OnlineLogistic(slope=1.0, intercept=0.0, refit_interval=self.refit_interval)

    def init(self, num_speculative_tokens: int) -> Arrays:
        return self.platt.init(num_speculative_tokens) if self.recalibrate else {}

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        if not self.recalibrate:
            return np.clip(features["confidence"], np.float32(0), np.float32(1))
        return self.platt.predict(params, _as_log_odds(features), shape)

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        return self.platt.zero_stats(num_speculative_tokens) if self.recalibrate else {}

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        if not self.recalibrate:
            return stats
        return self.platt.accumulate(stats, replace(observations, features=_as_log_odds(observations.features)))

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        return self.platt.refit(params, stats) if self.recalibrate else (params, stats)


def _as_log_odds(features: Features) -> Features:
    return {"log_odds": head_log_odds(features["confidence"])}
