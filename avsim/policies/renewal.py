"""Tokens per ms over the run instead of per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.policies.base import Policy, StepBatch, StepOutcome
from avsim.policies.budget import (
    allocate,
    best_budget,
    best_within,
    budget_cap,
    expected_tokens,
    ranked_survival,
    step_costs,
    survival,
)
from avsim.policies.moving import moving_mean
from avsim.types import F64Array, IntArray

__all__ = ["Renewal"]


@dataclass(frozen=True)
class Renewal(Policy):
    """`adaptive`, with the budget that pays at the rate achieved so far: B = argmax N(B) − λ C(B).

    N(B) = N_sampling + Σ_{j<B} S_sorted[j] and C(B) = draft[num_reqs] + verify[T + B] as in `adaptive`, on the same
    sizing confidences; λ = emitted tokens per ms by the clock, over the last `horizon` steps, older ones fading (0:
    over the whole run so far). `adaptive` maximises each step's own ratio N/C, and a ratio of sums is not a sum of
    ratios: a step that can do little should be left quickly. The first step, without a λ, takes the ratio's maximum.
    Allocation as in `adaptive`.

    Source: Dinkelbach, On Nonlinear Fractional Programming (1967); renewal-reward.
    """

    name: ClassVar[str] = "renewal"
    uses_confidence: ClassVar[bool] = True

    horizon: int = 1000

    def __post_init__(self) -> None:
        if self.horizon < 0:
            raise InputError(f"{self.name}: horizon counts steps; it must be at least 0, not {self.horizon}")

    def lossy(self, lag: int) -> str | None:
        return "its budget is a global argmax on live confidences" if lag == 0 else None

    def memory_size(self, num_speculative_tokens: int) -> int:
        """Mean tokens and ms of a step, and the steps that they rest on."""
        return 3

    def admit(self, step: StepBatch) -> IntArray:
        if step.memory is None:
            raise ValueError(f"{self.name} needs its memory")
        tokens, ms, seen = step.memory
        rate = tokens / np.where(ms > 0, ms, 1.0)
        ranked = ranked_survival(step.sizing, step.num_drafted)
        cost = step_costs(step.num_reqs, step.num_target_tokens, ranked.shape[1], step.tables)
        value = expected_tokens(ranked, step.num_sampling) - rate[:, None] * cost
        budget = np.where(seen > 0, best_within(value, budget_cap(step)), best_budget(step, step.sizing))
        return allocate(survival(step.live, step.num_drafted), budget)

    def remember(self, memory: F64Array, outcome: StepOutcome) -> F64Array:
        happened = (outcome.num_reqs > 0).astype(np.int64)
        now = np.stack([outcome.num_emitted.sum(axis=1).astype(np.float64), outcome.ms])
        mean, seen = moving_mean(memory[:2], memory[2], now, happened, self.horizon or np.inf)
        return np.concatenate((mean, seen[None]))
