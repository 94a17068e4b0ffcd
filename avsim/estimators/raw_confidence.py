"""The drafter's own belief, uncalibrated: p = max q."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from avsim.estimators.base import Arrays, Estimator
from avsim.features import sigmoid
from avsim.types import F32Array, Features

__all__ = ["RawConfidence"]


@dataclass(frozen=True)
class RawConfidence(Estimator):
    """The probability that the drafter gives its most likely token: p_k = max q = σ(log-odds). It never learns.

    Source: the raw-confidence baseline of vLLM issue #52053.

    >>> import numpy as np
    >>> RawConfidence().predict({}, {"log_odds": np.zeros((1, 1), dtype=np.float32)}, (1, 1)).tolist()
    [[0.5]]
    """

    name: ClassVar[str] = "raw-confidence"

    @property
    def features(self) -> tuple[str, ...]:
        return ("log_odds",)

    def init(self, num_speculative_tokens: int) -> Arrays:
        return {}

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        return sigmoid(features["log_odds"])
