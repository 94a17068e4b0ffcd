"""Bounds that know the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from avsim.policies.base import DraftPlan, Policy, StepBatch
from avsim.policies.budget import allocate, best_budget, depth_costs, drafting_ms, survival
from avsim.types import F32Array, IntArray

__all__ = ["Oracle", "OracleSkip"]


@dataclass(frozen=True)
class Oracle(Policy):
    """The budget rule on the true labels (`oracle`), or admission of exactly what will be accepted (`oracle:exact`).

    `oracle` has, per step and state, the most emitted tokens per ms of all policies that draft. It always drafts,
    so plain decoding may beat it; over a whole run nothing is claimed.
    """

    name: ClassVar[str] = "oracle"
    positional: ClassVar[str | None] = "rule"
    uses_truth: ClassVar[bool] = True

    rule: Literal["budget", "exact"] = "budget"

    @property
    def separable(self) -> bool:
        return self.rule == "exact"

    def lossy(self, lag: int) -> str | None:
        return "it reads the verdict"

    def admit(self, step: StepBatch) -> IntArray:
        if step.num_accepted is None:
            raise ValueError("oracle needs num_accepted")
        if self.rule == "exact":
            return np.minimum(step.num_accepted, step.num_drafted)
        truth = _labels(step)
        return allocate(survival(truth, step.num_drafted), best_budget(step, truth))


@dataclass(frozen=True)
class OracleSkip(Policy):
    """`oracle` that also chooses how deep to draft, down to not at all, knowing the verdicts of the step.

    Depth and budget together have the most emitted tokens per ms of the step, the smallest depth of equals: per step
    and state no less than `oracle`, nor than drafting nothing with the drafter loaded. `none` has no drafter, so where
    a skipped step still costs the drafter something, `none` can beat it. Prompts that a step schedules after the
    depth was chosen are not foreseen.
    """

    name: ClassVar[str] = "oracle+skip"
    uses_truth: ClassVar[bool] = True

    def lossy(self, lag: int) -> str | None:
        return "it reads the verdict"

    @property
    def plans(self) -> bool:
        return True

    def plan(self, plan: DraftPlan) -> IntArray:
        if plan.num_accepted is None or plan.num_remaining is None:
            raise ValueError("oracle+skip needs num_accepted and num_remaining")
        num_slots = len(plan.sizing)
        useful = np.where(plan.ready, np.minimum(plan.num_accepted, plan.num_remaining - 1), 0)
        costs = depth_costs(plan.tables, plan.num_reqs, num_slots)
        cap = np.maximum(0, plan.max_total_logits - plan.num_reqs)
        rates = []
        for depth in range(num_slots + 1):
            most = np.minimum(np.clip(useful, 0, depth).sum(axis=1), cap)
            budget = np.minimum(np.arange(int(most.max(initial=0)) + 1), most[:, None])
            index = np.minimum(plan.num_target_tokens[:, None] + budget, len(plan.tables.verify) - 1)
            rate = (plan.num_sampling[:, None] + budget) / (costs[depth][:, None] + plan.tables.verify[index])
            rates.append(rate.max(axis=1))
        return np.argmax(np.stack(rates), axis=0)

    def admit(self, step: StepBatch) -> IntArray:
        truth = _labels(step)
        budget = best_budget(step, truth, draft_ms=drafting_ms(step))
        return allocate(survival(truth, step.num_drafted), budget)


def _labels(step: StepBatch) -> F32Array:
    """Return 1 in the slots that will be accepted and that the output still has room for, float32 `[K, S, R]`."""
    if step.num_accepted is None:
        raise ValueError("an oracle needs num_accepted")
    useful = step.num_accepted
    if step.num_remaining is not None:
        # The bonus token ends an output as well as its last draft would.
        useful = np.minimum(useful, step.num_remaining - 1)
    return (np.arange(len(step.live))[:, None, None] < useful).astype(np.float32)
