"""Step costs of one load, split into the parts that a plan is unsure of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from avsim.costs.base import CostModel, CostTables, StepShape
from avsim.planning.unknowns import Draws
from avsim.types import F64Array, IntArray

__all__ = ["StepCosts"]


@dataclass(frozen=True)
class StepCosts:
    """Milliseconds of a step of R requests, before any factor.

        step = level · (plain + latency + verify · more[B] + draft · drafter)

    Attributes:
        plain: plain decoding.
        more: what verifying B = 0 … K·R drafts adds, `[K·R + 1]`.
        drafting: what the drafter takes if it drafts K slots and B of them are verified, `[K·R + 1]`.
        by_depth: what it takes if it drafts d slots and all are verified, `[K + 1]`; 0 for plain decoding.
    """

    reqs: int
    plain: float
    more: F64Array
    drafting: F64Array
    by_depth: F64Array

    @classmethod
    def of(cls, cost: CostModel, reqs: int, num_slots: int, context_tokens: float) -> StepCosts:
        """Ask a cost model for the steps of one load."""
        budget, depth = np.arange(num_slots * reqs + 1), np.arange(num_slots + 1)
        whole = _shape(reqs, budget, np.full(len(budget), num_slots), context_tokens)
        verify = cost.verify_ms(whole) + cost.overhead_ms
        fixed = cost.draft_ms(_shape(reqs, reqs * depth, depth, context_tokens))
        return cls(
            reqs,
            float(verify[0]),
            verify - verify[0],
            np.maximum(cost.draft_ms(whole), 0.0),
            np.concatenate(([0.0], np.maximum(fixed[1:], 0.0))),
        )

    def fixed_ms(self, draws: Draws) -> F64Array:
        """Return the step of every depth in each draw, depth 0 being plain decoding, `[draws, K + 1]`."""
        more = self.more[self.reqs * np.arange(len(self.by_depth))]
        parts = draws.verify[:, None] * more + draws.draft[:, None] * self.by_depth
        return draws.level[:, None] * (self.plain + draws.latency_ms[:, None] + parts)

    def tables(self, draws: Draws, index: int) -> CostTables:
        """Return what adaptive verification reads in one draw: draft + verify is the whole step but for its level."""
        drafter = draws.draft[index] * self.drafting
        verify = np.empty(self.reqs + len(self.more))
        verify[self.reqs :] = (
            self.plain + draws.latency_ms[index] + draws.verify[index] * self.more + drafter - drafter[0]
        )
        verify[: self.reqs] = verify[self.reqs]  # no step of R requests has fewer tokens
        return CostTables(np.full(self.reqs + 1, drafter[0]), verify)


def _shape(reqs: int, drafts: IntArray, depth: IntArray, context_tokens: float) -> StepShape:
    count = np.full(len(drafts), reqs)
    return StepShape(count, reqs + drafts, count * context_tokens, np.zeros(len(drafts), dtype=np.int64), depth)
