"""Random decision steps for checking policies: ragged, with prefills, and with the cost shapes that matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from avsim.costs.base import CostTables
from avsim.errors import InputError
from avsim.policies.base import NO_LOGIT_LIMIT, Policy, StepBatch
from avsim.types import F64Array

__all__ = ["COST_SHAPES", "dyadic_batches", "num_slots_for", "random_batch", "random_batches", "verify_table"]

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
    seed: int = 0,
) -> StepBatch:
    """Draw a batch of decision steps.

    Args:
        cost: a name in `COST_SHAPES`.
        num_steps, num_reqs, num_slots: S, R, K.
        draft_ms: the draft cost without requests; each adds a quarter of it.
        levels: values that confidences are drawn from; anything in (0, 1] if None.
        max_total_logits: see `StepBatch`.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    shape = (num_slots, num_steps, num_reqs)

    def confidences() -> np.ndarray:
        return (rng.choice(levels, shape) if levels else 1 - rng.beta(1, 3, shape)).astype(np.float32)

    live, sizing = confidences(), confidences()
    drafted = rng.integers(0, num_slots + 1, shape[1:])
    drafted[rng.random(num_steps) < 0.3] = num_slots
    drafted[0] = 0
    sampling = (drafted > 0).sum(axis=1) + rng.integers(0, 2, num_steps)
    prefills = rng.integers(0, 2, num_steps)
    tokens = sampling + prefills * rng.integers(1, 9, num_steps)
    accepted = np.minimum(rng.integers(0, num_slots + 1, shape[1:]), drafted)
    tables = CostTables(
        draft_ms * (1 + np.arange(num_reqs + 3) / 4), verify_table(cost, int(tokens.max()) + num_reqs * num_slots + 1)
    )
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
    )


def random_batches(policy: Policy, *, num_reqs: int = 4) -> Iterator[StepBatch]:
    """Yield batches without ties, one per cost shape, with verdicts only where the policy declares to read them."""
    for seed, cost in enumerate(COST_SHAPES):
        yield for_policy(policy, random_batch(cost, num_reqs=num_reqs, num_slots=num_slots_for(policy), seed=seed))


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
    """Hide verdicts and random numbers from a policy that does not declare to read them, as the replay does."""
    batch = batch if policy.explores else replace(batch, chance=None)
    return batch if policy.uses_truth else replace(batch, num_accepted=None, num_remaining=None)
