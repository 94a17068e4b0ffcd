"""The estimator that knows the verdict: p = 1 where the target will accept, else 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from avsim.estimators.base import Arrays, Estimator
from avsim.types import F32Array, Features

__all__ = ["OracleLabel"]


@dataclass(frozen=True)
class OracleLabel(Estimator):
    """p_k = 1 if slot k will be accepted, else 0: the best scores that confidences can have, and unattainable.

    It bounds scores, not throughput: a budget sized on the labels of the block before (lag 1) can do worse than one
    sized on good probabilities. The bound on a step's decision is the policy `oracle`.

    It reads the column `label`, which the replay makes from the trace (1 where k < A at full admission), so it
    depends on the drawn tokens and is lossy with sampled drafts.

    >>> import numpy as np
    >>> OracleLabel().predict({}, {"label": np.ones((1, 1), dtype=np.float32)}, (1, 1)).tolist()
    [[1.0]]
    """

    name: ClassVar[str] = "oracle-label"
    uses_truth: ClassVar[bool] = True
    uses_drawn_token: ClassVar[bool] = True

    @property
    def features(self) -> tuple[str, ...]:
        return ("label",)

    def init(self, num_speculative_tokens: int) -> Arrays:
        return {}

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        return features["label"]
