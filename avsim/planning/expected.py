"""What a policy emits and costs per step in a steady state, on drawn blocks: no queue, no drain, no learning."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from avsim.costs.base import CostTables
from avsim.planning.population import Population
from avsim.policies import NO_LOGIT_LIMIT, Policy, StepBatch
from avsim.types import F64Array, IntArray

__all__ = ["Expected", "expected_step"]


@dataclass(frozen=True, slots=True)
class Expected:
    """Steps of one arm: verified slots and expected accepted tokens of each, `[S]`."""

    admitted: IntArray
    accepted: F64Array


def expected_step(
    policy: Policy, population: Population, tables: CostTables, *, max_total_logits: int = NO_LOGIT_LIMIT
) -> Expected:
    """Let a policy without a memory decide S steps of R requests, and count what it admits and should see accepted.

    Acceptance is counted in expectation, Σ of the true survival of what is admitted, which takes the coin out.
    """
    num_slots, steps, reqs = population.live.shape
    depth = policy.depth(num_slots)
    every = np.full(steps, reqs)
    batch = StepBatch(
        population.live[:depth],
        population.sizing[:depth],
        np.full((steps, reqs), depth),
        every,
        every,
        every,
        tables,
        max_total_logits=max_total_logits,
    )
    if policy.explores:
        batch = replace(batch, chance=np.random.default_rng(0xC4A2CE).random((steps, reqs), dtype=np.float32))
    admitted = policy.admit(batch)
    kept = np.arange(num_slots)[:, None, None] < admitted
    accepted = np.where(kept, population.survival, 0.0).sum(axis=(0, 2))
    return Expected(admitted.sum(axis=1), accepted)
