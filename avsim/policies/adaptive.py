"""vLLM's adaptive verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.policies.base import Policy, StepBatch, StepOutcome
from avsim.policies.budget import allocate, best_budget, budget_cap, survival
from avsim.policies.moving import moving_mean
from avsim.types import F32Array, F64Array, IntArray

__all__ = ["Adaptive"]

_HIDDEN_HORIZON = 1000
"""Trimmed slots that the mean confidence behind the cut looks back on, per slot."""


@dataclass(frozen=True)
class Adaptive(Policy):
    """Budget from the sizing confidences by global argmax, spent on the live survivals.

    B* = argmax over 0 ≤ B ≤ cap of (N_sampling + Σ_{j<B} S_sorted[j]) / (draft[num_reqs] + verify[T + B]), in
    float64 on confidences one record old; the B* slots go to the top live survivals in float32.

    With `explore` = ε, each request's first trimmed slot is verified as well with probability ε, within the cap, so
    that a slot trimmed for good goes on being labelled. The propensity of that slot is ε and of the others 1; the
    draw is independent of the drafts, so sampled drafts stay exact.

    With `floor` = f, every request has at least its first min(f, drafted) slots verified, as far as the cap allows;
    they are part of every budget that the argmax looks at, and the rest goes to the best of the other slots.

    With `hide_trimmed`, sizing does not see what was drafted behind the cut of the sizing block (slots k ≥ its own M):
    in its place stands the mean confidence of slot k in the blocks that were trimmed there, so that the sum over a
    batch keeps its mean. In a dense trace with sampled drafts those drafts know what the output will be; the option
    removes that bias, and any real engine can run it.

    vLLM has none of the three. Source: vLLM 0.33 `adaptive_verification.py` (PR #52228).
    """

    name: ClassVar[str] = "adaptive"
    uses_confidence: ClassVar[bool] = True

    explore: float = 0.0
    floor: int = 0
    hide_trimmed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.explore <= 1:
            raise InputError(f"{self.name}: explore is a probability, so between 0 and 1, not {self.explore}")
        if self.floor < 0:
            raise InputError(f"{self.name}: floor counts slots, so it must be at least 0, not {self.floor}")

    @property
    def explores(self) -> bool:
        return self.explore > 0

    def lossy(self, lag: int) -> str | None:
        return "its budget is a global argmax on live confidences" if lag == 0 else None

    def memory_size(self, num_speculative_tokens: int) -> int:
        """With `hide_trimmed`: the mean confidence of each slot where it was trimmed, and the blocks behind it."""
        return 2 * num_speculative_tokens * self.hide_trimmed

    def admit(self, step: StepBatch) -> IntArray:
        sizing = self._visible(step) if self.hide_trimmed else step.sizing
        budget = best_budget(step, sizing, floor=self.floor)
        live = survival(step.live, step.num_drafted)
        if self.floor:
            given = np.arange(len(live))[:, None, None] < np.minimum(step.num_drafted, self.floor)
            live = np.where(given, np.float32(2), live)  # above every survival
        admitted = allocate(live, budget)
        if not self.explores:
            return admitted
        if step.chance is None:
            raise ValueError("exploration needs chance")
        wanted = (step.chance < self.explore) & (admitted < step.num_drafted)
        room = budget_cap(step) - budget
        return admitted + (wanted & (np.cumsum(wanted, axis=1) <= room[:, None]))

    def remember(self, memory: F64Array, outcome: StepOutcome) -> F64Array:
        if not self.hide_trimmed:
            return memory
        slot = np.arange(len(outcome.live))[:, None, None]
        hidden = (slot >= outcome.num_admitted) & (slot < outcome.num_drafted)
        count = hidden.sum(axis=2)
        mean = np.where(hidden, outcome.live, 0.0).sum(axis=2, dtype=np.float64) / np.maximum(count, 1)
        before, seen = np.split(memory, 2)
        return np.concatenate(moving_mean(before, seen, mean, count, _HIDDEN_HORIZON))

    def _visible(self, step: StepBatch) -> F32Array:
        if step.memory is None or step.sizing_admitted is None:
            raise ValueError("hide_trimmed needs its memory and sizing_admitted")
        mean, _ = np.split(step.memory, 2)
        hidden = np.arange(len(step.sizing))[:, None, None] >= step.sizing_admitted
        return np.where(hidden, mean[:, :, None].astype(np.float32), step.sizing)
