"""A score that leaks, for tests of losslessness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.estimators import Arrays, RawConfidence
from avsim.types import F32Array, Features


@dataclass(frozen=True)
class OwnToken(RawConfidence):
    """Reads the drawn token of its own slot, and does not say so."""

    name: ClassVar[str] = "own-token"

    @property
    def features(self) -> tuple[str, ...]:
        return ("draft_logprob",)

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        return np.exp(np.minimum(features["draft_logprob"], 0))
