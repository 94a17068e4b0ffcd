"""A threshold on live confidences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from avsim.errors import InputError
from avsim.policies.base import Policy, StepBatch
from avsim.policies.budget import survival
from avsim.types import IntArray

__all__ = ["Threshold"]


@dataclass(frozen=True)
class Threshold(Policy):
    """Verify a request's slots up to the first whose live confidence is below p: `threshold:0.6`.

    M = max k such that c_j ≥ p for all j < k, where c_j is the confidence of slot j (`on = token`), or its survival
    S_j = ∏_{i≤j} p_i (`on = survival`); compared in float32. It knows no costs, and every request pays for drafting
    all K slots: engines that stop *drafting* at a threshold save more than this rule shows. Slot k is admitted by
    what is known before its token is drawn, so sampled drafts stay exact at any lag.

    Source: the stopping rule of Kangaroo (arXiv 2404.18911) and of vLLM PR #35301, applied to verification.
    """

    name: ClassVar[str] = "threshold"
    positional: ClassVar[str | None] = "p"
    uses_confidence: ClassVar[bool] = True

    p: float
    on: Literal["token", "survival"] = "token"

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise InputError(f"{self.name}: p is a probability, so between 0 and 1, not {self.p}")

    @property
    def separable(self) -> bool:
        return True

    def admit(self, step: StepBatch) -> IntArray:
        scores = step.live if self.on == "token" else survival(step.live, step.num_drafted)
        passed = (scores >= np.float32(self.p)) & (np.arange(len(scores))[:, None, None] < step.num_drafted)
        return np.logical_and.accumulate(passed, axis=0).sum(axis=0, dtype=np.int64)
