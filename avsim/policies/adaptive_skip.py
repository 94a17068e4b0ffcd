"""Adaptive verification that may draft less, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.policies.base import DraftPlan, Policy, StepBatch, StepOutcome
from avsim.policies.budget import allocate, best_budget, depth_costs, drafting_ms, sizing_survival, survival
from avsim.policies.moving import block_means, moving_mean
from avsim.types import F64Array, IntArray

__all__ = ["AdaptiveSkip"]

LEVELS = 8
"""J, order statistics that are remembered of each slot's survivals."""
ENOUGH = 64
"""Blocks to have seen before a step may draft less than all: a mean of a few blocks would skip on bad luck."""


@dataclass(frozen=True)
class AdaptiveSkip(Policy):
    """`adaptive`, which first chooses how deep to draft, down to not at all, from the survivals seen lately.

    Each drafted step leaves the survivals of every slot behind, as the means of J = 8 equal parts of its requests, best
    first: Q_kj, a moving mean over `horizon` blocks. Averaged so, they say what the top of a batch will hold, which a
    mean per slot would not. Before a step with R requests to draft for, the expected best rate at depth d is

        rate(d) = max_B (N_sampling + top(d, B)) / (draft_d[num_reqs] + verify[T + B]),   0 ≤ B ≤ min(d R, cap),

    where top(d, B) is the sum of the B highest of the Q_kj with k < d, each of them R/J times (parts count in
    proportion). The depth is the argmax over 0 … K, the deepest of equals: depth 0 yields N_sampling / (draft_0 +
    verify[T]), where draft_0 is what a loaded drafter costs in a step that it skips. The first 64 blocks are drafted
    whole. What is drafted is then budgeted and allocated as in `adaptive`, with the cost of the depth at hand.

    A slot that is not drafted teaches nothing, so one step in `probe` drafts all K, and is paid for; 0 never probes,
    and then a pessimistic start or a hard stretch of traffic can switch drafting off for good.

    The depth depends on the past alone, so sampled drafts stay exact where `adaptive` keeps them exact. Its gain is
    that of its confidences: an overconfident estimator drafts where it should not.
    """

    name: ClassVar[str] = "adaptive+skip"
    uses_confidence: ClassVar[bool] = True

    probe: int = 50
    horizon: int = 1000

    def __post_init__(self) -> None:
        if self.horizon < 1 or self.probe < 0:
            raise InputError(f"{self.name}: horizon (blocks) must be at least 1, and probe (steps) at least 0")

    def lossy(self, lag: int) -> str | None:
        return "its budget is a global argmax on live confidences" if lag == 0 else None

    @property
    def plans(self) -> bool:
        return True

    def memory_size(self, num_speculative_tokens: int) -> int:
        """Q, `[K, J]`; the blocks that each slot of it rests on, `[K]`; and the steps since all K were drafted."""
        return (LEVELS + 1) * num_speculative_tokens + 1

    def plan(self, plan: DraftPlan) -> IntArray:
        if plan.memory is None:
            raise ValueError(f"{self.name} needs its memory")
        num_slots = len(plan.sizing)
        levels = plan.memory[: LEVELS * num_slots].reshape(num_slots, LEVELS, -1)
        levels = np.minimum.accumulate(levels, axis=0)  # deeper slots may be remembered from other steps
        costs = depth_costs(plan.tables, plan.num_reqs, num_slots)
        depth = np.full(len(plan.num_reqs), num_slots)
        best = np.full(len(plan.num_reqs), -np.inf)
        for tried in range(num_slots, -1, -1):
            if tried < num_slots and np.array_equal(costs[tried], costs[tried + 1]):
                continue  # one slot more costs nothing, and can only help
            rate = _best_rate(plan, levels[:tried], costs[tried])
            depth, best = np.where(rate > best, tried, depth), np.maximum(rate, best)
        unknown = plan.memory[LEVELS * num_slots] < min(ENOUGH, self.horizon)
        due = (self.probe > 0) & (plan.memory[-1] >= self.probe - 1)
        return np.where(unknown | due, num_slots, depth)

    def admit(self, step: StepBatch) -> IntArray:
        budget = best_budget(step, step.sizing, draft_ms=drafting_ms(step))
        return allocate(survival(step.live, step.num_drafted), budget)

    def remember(self, memory: F64Array, outcome: StepOutcome) -> F64Array:
        num_slots, steps = len(outcome.live), len(outcome.depth)
        survivals = np.sort(sizing_survival(outcome.live, outcome.num_drafted), axis=2)[:, :, ::-1]
        count = (np.arange(num_slots)[:, None, None] < outcome.num_drafted).sum(axis=2)
        now = block_means(survivals, count, LEVELS).transpose(0, 2, 1)
        levels, seen = memory[: LEVELS * num_slots].reshape(now.shape), memory[LEVELS * num_slots : -1]
        levels, _ = moving_mean(levels, seen[:, None], now, count[:, None], self.horizon)
        seen = np.minimum(seen + count, self.horizon)
        since = np.where(outcome.depth >= num_slots, 0.0, memory[-1] + 1)
        kept = np.concatenate((levels.reshape(-1, steps), seen, since[None]))
        return np.where(outcome.num_reqs > 0, kept, memory)


def _best_rate(plan: DraftPlan, levels: F64Array, draft_ms: F64Array) -> F64Array:
    """Return the highest expected tokens per ms of each step when the slots of `levels`, `[d, J, S]`, are drafted."""
    reqs = plan.ready.sum(axis=1)
    ranked = -np.sort(-levels.reshape(-1, len(reqs)).T, axis=1)
    total = np.zeros((len(reqs), ranked.shape[1] + 1))
    np.cumsum(ranked, axis=1, out=total[:, 1:])
    cap = np.minimum(reqs * len(levels), np.maximum(0, plan.max_total_logits - plan.num_reqs))
    budget = np.minimum(np.arange(int(cap.max(initial=0)) + 1), cap[:, None])
    # B slots are this many of the remembered parts, each of which stands for R / J slots.
    parts = budget * (LEVELS / np.maximum(reqs, 1))[:, None]
    low = parts.astype(np.int64)
    below = np.take_along_axis(total, low, axis=1)
    above = np.take_along_axis(total, np.minimum(low + 1, ranked.shape[1]), axis=1)
    gained = (below + (parts - low) * (above - below)) * (reqs / LEVELS)[:, None]
    index = np.minimum(plan.num_target_tokens[:, None] + budget, len(plan.tables.verify) - 1)
    rate = (plan.num_sampling[:, None] + gained) / (draft_ms[:, None] + plan.tables.verify[index])
    return np.asarray(rate.max(axis=1))
