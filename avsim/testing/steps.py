"""Random steps for checking policies: ragged, with prefills, and with the cost shapes that matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from avsim.costs.base import CostTables
from avsim.errors import InputError
from avsim.policies.base import NO_LOGIT_LIMIT, DraftPlan, Policy, StepBatch, StepOutcome
from avsim.types import F64Array

__all__ = [
    "COST_SHAPES",
    "dyadic_batches",
    "for_policy",
    "lived_memory",
    "num_slots_for",
    "random_batch",
    "random_batches",
    "random_outcome",
    "random_plans",
    "verify_table",
]

COST_SHAPES = ("flat", "proportional", "staircase", "cliff")


def num_slots_for(policy: Policy) -> int:
    """Return the first of 4, 8, 16 and 32 draft slots that is deep enough for the policy."""
    for num_slots in (4, 8, 16):
        try:
            policy.depth(num_slots)
        except InputError:
            continue
        return num_slots
    return 32


def verify_table(shape: str, size: int) -> F64Array:
    """Tabulate ms by tokens; every value is a dyadic fraction, so that ties of the objective are exact.

    Args:
        shape: `flat` (nearly memory-bound), `proportional` (the objective ties at every budget where all survivals
            are 1), `staircase` (steps of 4 tokens), or `cliff` (five times dearer beyond 16 tokens).
        size: number of entries.
    """
    tokens = np.arange(size, dtype=np.float64)
    match shape:
        case "flat":
            return 8 + tokens / 64
        case "proportional":
            return np.maximum(tokens, 0.5)
        case "staircase":
            return 4 + np.ceil(tokens / 4) / 2
        case "cliff":
            return np.where(tokens > 16, 5.0, 1.0) * (4 + np.ceil(tokens / 4) / 2)
    raise ValueError(f"no cost shape {shape!r}")


def random_batch(
    cost: str,
    *,
    num_steps: int = 40,
    num_reqs: int = 4,
    num_slots: int = 4,
    draft_ms: float = 1.0,
    levels: tuple[float, ...] | None = None,
    max_total_logits: int = NO_LOGIT_LIMIT,
    by_depth: bool = True,
    seed: int = 0,
) -> StepBatch:
    """Draw a batch of decision steps.

    Args:
        cost: a name in `COST_SHAPES`.
        num_steps, num_reqs, num_slots: S, R, K.
        draft_ms: the cost of drafting all slots without requests; each adds a quarter of it.
        levels: values that confidences are drawn from; anything in (0, 1] if None.
        max_total_logits: see `StepBatch`.
        by_depth: whether the tables say what fewer slots cost: nothing for none, and half of it for the first.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    shape = (num_slots, num_steps, num_reqs)

    def confidences() -> np.ndarray:
        return (rng.choice(levels, shape) if levels else 1 - rng.beta(1, 3, shape)).astype(np.float32)

    live, sizing = confidences(), confidences()
    drafted = rng.integers(0, num_slots + 1, shape[1:])
    drafted[rng.random(num_steps) < 0.3] = num_slots
    shallow = rng.random(num_steps) < 0.3
    drafted[shallow] = np.minimum(drafted[shallow], rng.integers(0, num_slots, (shallow.sum(), 1)))
    drafted[0] = 0
    sampling = (drafted > 0).sum(axis=1) + rng.integers(0, 2, num_steps)
    prefills = rng.integers(0, 2, num_steps)
    tokens = sampling + prefills * rng.integers(1, 9, num_steps)
    accepted = np.minimum(rng.integers(0, num_slots + 1, shape[1:]), drafted)
    draft = draft_ms * (1 + np.arange(num_reqs + 3) / 4)
    depth = np.arange(num_slots + 1)[:, None]
    at_depth = draft * np.where(depth > 0, 0.5 + depth / (2 * num_slots), 0.0) if by_depth else None
    tables = CostTables(draft, verify_table(cost, int(tokens.max()) + num_reqs * num_slots + 1), at_depth)
    return StepBatch(
        live,
        sizing,
        drafted,
        num_reqs=sampling + prefills,
        num_sampling=sampling,
        num_target_tokens=tokens,
        tables=tables,
        num_accepted=accepted,
        num_remaining=rng.integers(1, num_slots + 4, shape[1:]),
        max_total_logits=max_total_logits,
        chance=rng.random(shape[1:], dtype=np.float32),
        sizing_admitted=rng.integers(0, num_slots + 1, shape[1:]),
    )


def random_batches(policy: Policy, *, num_reqs: int = 4) -> Iterator[StepBatch]:
    """Yield batches without ties, one per cost shape, as the simulator hands them to the policy."""
    for seed, cost in enumerate(COST_SHAPES):
        batch = random_batch(
            cost,
            num_reqs=num_reqs,
            num_slots=num_slots_for(policy),
            draft_ms=(1.0, 8.0)[seed // 2],
            by_depth=seed % 2 == 0,
            seed=seed,
        )
        yield for_policy(policy, batch)


def dyadic_batches(policy: Policy) -> Iterator[StepBatch]:
    """Yield small batches full of exact ties, with and without a logit limit that binds."""
    levels = ((1.0,), (0.5, 1.0), (0.25, 0.5, 1.0), (0.0, 1.0))
    for seed, cost in enumerate(COST_SHAPES):
        for offset, choice in enumerate(levels):
            batch = random_batch(
                cost,
                num_steps=12,
                num_reqs=3,
                num_slots=num_slots_for(policy),
                draft_ms=(0.0, 1.0)[offset % 2],
                levels=choice,
                max_total_logits=(7, NO_LOGIT_LIMIT)[seed % 2],
                seed=10 * seed + offset,
            )
            yield for_policy(policy, batch)


def for_policy(policy: Policy, batch: StepBatch) -> StepBatch:
    """Give a policy what it declares to read, as the simulator does: a memory, but no verdicts nor random numbers."""
    batch = batch if policy.explores else replace(batch, chance=None)
    num_slots, num_steps, _ = batch.live.shape
    if policy.memory_size(num_slots):
        batch = replace(batch, memory=lived_memory(policy, num_steps, num_slots))
    return batch if policy.uses_truth else replace(batch, num_accepted=None, num_remaining=None)


def random_plans(policy: Policy, *, num_reqs: int = 4) -> Iterator[DraftPlan]:
    """Yield steps to draft for, of every cost shape at three draft costs, as the simulator hands them over."""
    num_slots = num_slots_for(policy)
    for seed, cost in enumerate(COST_SHAPES):
        for draft_ms in (0.0, 2.0, 8.0):
            batch = random_batch(
                cost,
                num_steps=16,
                num_reqs=num_reqs,
                num_slots=num_slots,
                draft_ms=draft_ms,
                by_depth=seed % 2 == 0,
                seed=seed,
            )
            rng = np.random.default_rng([seed, 1])
            ready = rng.random(batch.num_drafted.shape) < 0.8
            memory = lived_memory(policy, len(ready), num_slots, seed)
            yield DraftPlan(
                batch.sizing,
                ready,
                ready.sum(axis=1) + (batch.num_reqs - batch.num_sampling),
                ready.sum(axis=1),
                np.minimum(batch.num_target_tokens, len(batch.tables.verify) - 1 - num_reqs * num_slots),
                batch.tables,
                memory if policy.memory_size(num_slots) else None,
                rng.integers(0, num_slots + 1, ready.shape) if policy.uses_truth else None,
                batch.num_remaining if policy.uses_truth else None,
                (NO_LOGIT_LIMIT, 9)[seed % 2],
            )


def random_outcome(num_steps: int, num_reqs: int, num_slots: int, seed: int) -> StepOutcome:
    """Draw what steps came to: some of no requests, some in which nothing was drafted, ragged drafts in the others."""
    rng = np.random.default_rng([seed, 2])
    shape = (num_steps, num_reqs)
    active = (rng.random(shape) < 0.8) & (rng.random((num_steps, 1)) < 0.9)
    depth = rng.integers(0, num_slots + 1, num_steps)
    depth[rng.random(num_steps) < 0.4] = num_slots
    drafted = np.where(active, np.minimum(depth[:, None], rng.integers(1, 2 * num_slots + 1, shape)), 0)
    admitted = np.minimum(rng.integers(0, num_slots + 2, shape), drafted)
    accepted = np.minimum(rng.integers(0, num_slots + 1, shape), admitted)
    # Some steps go badly, step after step, so that what is remembered differs.
    luck = np.linspace(0.2, 1, num_steps)[:, None]
    return StepOutcome(
        live=(luck * (1 - rng.beta(1, 3, (num_slots, *shape)))).astype(np.float32),
        num_drafted=drafted,
        num_admitted=admitted,
        num_accepted=accepted,
        num_emitted=np.where(active, accepted + 1, 0),
        depth=np.where(active.any(axis=1), depth, 0),
        num_reqs=active.sum(axis=1),
        ms=np.where(active.any(axis=1), rng.uniform(2, 9, num_steps), 0.0),
    )


def lived_memory(policy: Policy, num_steps: int, num_slots: int, seed: int = 0) -> F64Array:
    """Return a policy's memory after some random steps, float64 `[M, S]`; every fourth column stays fresh."""
    fresh = np.repeat(policy.fresh_memory(num_slots)[:, None], num_steps, axis=1)
    memory = fresh
    for step in range(8):
        memory = policy.remember(memory, random_outcome(num_steps, 16, num_slots, 10 * seed + step))
    return np.where(np.arange(num_steps) % 4 == 3, fresh, memory)
