"""Ordinary speculative decoding: always verify the same number of slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.policies.base import Policy, StepBatch
from avsim.types import IntArray

__all__ = ["FixedDepth"]


@dataclass(frozen=True)
class FixedDepth(Policy):
    """Draft and verify `k` slots for every request: `fixed:3`."""

    name: ClassVar[str] = "fixed"
    positional: ClassVar[str | None] = "k"

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"fixed:{self.k}: k must be at least 1; plain decoding is the policy 'none'")

    def depth(self, num_speculative_tokens: int) -> int:
        if self.k > num_speculative_tokens:
            raise InputError(
                f"fixed:{self.k} needs {self.k} draft slots, but the trace holds K = {num_speculative_tokens}; "
                f"use k ≤ {num_speculative_tokens} or a trace recorded with a larger K"
            )
        return self.k

    @property
    def separable(self) -> bool:
        return True

    def admit(self, step: StepBatch) -> IntArray:
        return np.minimum(step.num_drafted, self.k)
