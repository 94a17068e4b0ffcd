"""Plans, steps and outcomes with little to say, for tests that vary one thing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from avsim.costs import CostTables
from avsim.policies import DraftPlan, Policy, StepBatch, StepOutcome
from avsim.types import F64Array

NUM_SLOTS = 4


def cost_tables(num_reqs: int, *, draft: float, per_token: float, fixed: float = 10.0) -> CostTables:
    """Tabulate verify = fixed + per_token · n, and drafting that costs `draft` ms at full depth, in proportion."""
    depth = np.arange(NUM_SLOTS + 1)[:, None] / NUM_SLOTS
    reqs = np.full(num_reqs + 1, draft)
    verify = fixed + per_token * np.arange(num_reqs * (NUM_SLOTS + 1) + 1)
    return CostTables(reqs, verify, depth * reqs)


def plan_for(tables: CostTables, num_reqs: int, memory: F64Array | None = None) -> DraftPlan:
    """Describe one step of some requests, all ready."""
    sizing = np.ones((NUM_SLOTS, 1, num_reqs), dtype=np.float32)
    count = np.array([num_reqs])
    return DraftPlan(sizing, np.ones((1, num_reqs), dtype=bool), count, count, count, tables, memory)


def batch_for(live: np.ndarray, tables: CostTables, memory: F64Array | None = None) -> StepBatch:
    """Describe one step of full drafts with the same live and sizing confidences, `[K, R]`."""
    live = live[:, None].astype(np.float32)
    count = np.array([live.shape[2]])
    drafted = np.full((1, live.shape[2]), len(live))
    return StepBatch(live, live, drafted, count, count, count, tables, memory=memory, sizing_admitted=drafted)


def outcome_of(live: np.ndarray, depth: int, accepted: int, ms: float = 10.0) -> StepOutcome:
    """Describe one step in which every request drafted and verified `depth` slots and had `accepted` of them right."""
    num_reqs = live.shape[1]
    drafted = np.full((1, num_reqs), depth)
    hit = np.minimum(drafted, accepted)
    count = np.array([num_reqs])
    return StepOutcome(
        live[:, None].astype(np.float32), drafted, drafted, hit, hit + 1, np.array([depth]), count, np.array([ms])
    )


def serve(policy: Policy, tables: CostTables, num_reqs: int, live: np.ndarray, accepted: int, steps: int) -> list[int]:
    """Plan and remember step after step, always with the same confidences and verdicts; return the depths."""
    memory = policy.fresh_memory(NUM_SLOTS)[:, None]
    depths = []
    for _ in range(steps):
        depth = int(policy.plan(plan_for(tables, num_reqs, memory))[0])
        memory = policy.remember(memory, outcome_of(live, depth, accepted))
        depths.append(depth)
    return depths


def shallow(batch: StepBatch, depth: int) -> StepBatch:
    """Return the step with drafts of some depth."""
    return replace(batch, num_drafted=np.minimum(batch.num_drafted, depth))
