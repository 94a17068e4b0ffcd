"""vLLM's adaptive verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.policies.base import Policy, StepBatch
from avsim.policies.budget import allocate, best_budget, budget_cap, survival
from avsim.types import IntArray

__all__ = ["Adaptive"]


@dataclass(frozen=True)
class Adaptive(Policy):
    """Budget from the sizing confidences by global argmax, spent on the live survivals.

    B* = argmax over 0 ≤ B ≤ cap of (N_sampling + Σ_{j<B} S_sorted[j]) / (draft[num_reqs] + verify[T + B]), in
    float64 on confidences one record old; the B* slots go to the top live survivals in float32.

    With `explore` = ε, each request's first trimmed slot is verified as well with probability ε, within the cap, so
    that a slot trimmed for good goes on being labelled. The propensity of that slot is ε and of the others 1; the
    draw is independent of the drafts, so sampled drafts stay exact. vLLM has no such option.

    Source: vLLM 0.33 `adaptive_verification.py` (PR #52228).
    """

    name: ClassVar[str] = "adaptive"
    uses_confidence: ClassVar[bool] = True

    explore: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.explore <= 1:
            raise InputError(f"{self.name}: explore is a probability, so between 0 and 1, not {self.explore}")

    @property
    def explores(self) -> bool:
        return self.explore > 0

    def lossy(self, lag: int) -> str | None:
        return "its budget is a global argmax on live confidences" if lag == 0 else None

    def admit(self, step: StepBatch) -> IntArray:
        budget = best_budget(step, step.sizing)
        admitted = allocate(survival(step.live, step.num_drafted), budget)
        if not self.explores:
            return admitted
        if step.chance is None:
            raise ValueError("exploration needs chance")
        wanted = (step.chance < self.explore) & (admitted < step.num_drafted)
        room = budget_cap(step) - budget
        return admitted + (wanted & (np.cumsum(wanted, axis=1) <= room[:, None]))
