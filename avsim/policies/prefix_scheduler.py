"""DSpark's hardware-aware prefix scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.policies.base import Policy, StepBatch
from avsim.policies.budget import allocate, best_budget, budget_cap, objective, ranked_survival, survival
from avsim.types import IntArray

__all__ = ["PrefixScheduler"]


@dataclass(frozen=True)
class PrefixScheduler(Policy):
    """Algorithm 1 of DSpark on live survivals: add slots, best first, while E[tokens] × steps/s strictly rises.

    With `early_stop` (the default) it stops at the first fall, which keeps sampled drafts exact. Without, it takes
    the global maximum over all prefixes of the ranking: that looks at tokens it may not look at, and is lossy.

    Source: DSpark (arXiv 2607.05147), Algorithm 1 and appendix A.
    """

    name: ClassVar[str] = "prefix-scheduler"
    uses_confidence: ClassVar[bool] = True

    early_stop: bool = True

    def lossy(self, lag: int) -> str | None:
        return None if self.early_stop else "its budget is a global argmax on live confidences (DSpark, appendix A)"

    def admit(self, step: StepBatch) -> IntArray:
        if self.early_stop:
            ranked = ranked_survival(step.live, step.num_drafted)
            value = objective(ranked, step.num_sampling, step.num_reqs, step.num_target_tokens, step.tables)
            stops = np.ones_like(value, dtype=bool)
            stops[:, :-1] = value[:, 1:] <= value[:, :-1]
            budget = np.minimum(stops.argmax(axis=1), budget_cap(step))
        else:
            budget = best_budget(step, step.live)
        return allocate(survival(step.live, step.num_drafted), budget)
