"""vLLM's adaptive verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from avsim.policies.base import Policy, StepBatch
from avsim.policies.budget import allocate, best_budget, survival
from avsim.types import IntArray

__all__ = ["Adaptive"]


@dataclass(frozen=True)
class Adaptive(Policy):
    """Budget from the sizing confidences by global argmax, spent on the live survivals.

    B* = argmax over 0 ≤ B ≤ cap of (N_sampling + Σ_{j<B} S_sorted[j]) / (draft[num_reqs] + verify[T + B]), in
    float64 on confidences one record old; the B* slots go to the top live survivals in float32.

    Source: vLLM 0.33 `adaptive_verification.py` (PR #52228).
    """

    name: ClassVar[str] = "adaptive"
    uses_confidence: ClassVar[bool] = True

    def lossy(self, lag: int) -> str | None:
        return "its budget is a global argmax on live confidences" if lag == 0 else None

    def admit(self, step: StepBatch) -> IntArray:
        budget = best_budget(step, step.sizing)
        return allocate(survival(step.live, step.num_drafted), budget)
