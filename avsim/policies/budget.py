"""The arithmetic that budget policies share: survivals, the objective, depths, and allocation to requests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.costs.base import CostTables
from avsim.policies.base import StepBatch
from avsim.types import BoolArray, F32Array, F64Array, IntArray

__all__ = [
    "allocate",
    "best_budget",
    "best_within",
    "budget_cap",
    "by_step",
    "depth_costs",
    "drafting_ms",
    "expected_tokens",
    "objective",
    "ranked_survival",
    "sizing_survival",
    "step_costs",
    "survival",
]


def survival(confidence: F32Array, num_drafted: IntArray) -> F32Array:
    """Return S_k = ∏_{j≤k} p_j, float32 `[K, S, R]`, and −1 in slots that were not drafted."""
    return _running_product(confidence, num_drafted, np.dtype(np.float32))


def sizing_survival(confidence: F32Array, num_drafted: IntArray) -> F64Array:
    """Return the survivals that budgets are sized on: as `survival`, in float64."""
    return _running_product(confidence, num_drafted, np.dtype(np.float64))


def ranked_survival(confidence: F32Array, num_drafted: IntArray) -> F64Array:
    """Return the survivals of each step in float64, sorted descending, `[S, K·R]`; undrafted slots are −1, last."""
    return _descending(sizing_survival(confidence, num_drafted))


def budget_cap(step: StepBatch) -> IntArray:
    """Return the largest budget of each step, `[S]`: every draft, unless the rejection sampler's logits bind."""
    drafts = step.num_drafted.sum(axis=1)
    return np.minimum(drafts, np.maximum(0, step.max_total_logits - step.num_reqs))


def objective(
    ranked: F64Array,
    num_sampling: IntArray | F64Array,
    num_reqs: IntArray,
    num_target_tokens: IntArray,
    tables: CostTables,
    draft_ms: F64Array | None = None,
) -> F64Array:
    """Return expected tokens per ms at every budget 0 … K·R, float64 `[S, K·R + 1]`.

    numerator(B) = N_sampling + Σ_{j<B} S_sorted[j]; cost(B) = draft[num_reqs] + verify[T + B], or `draft_ms`, `[S]`,
    in place of the draft table.
    """
    tokens = expected_tokens(ranked, num_sampling)
    tokens /= step_costs(num_reqs, num_target_tokens, ranked.shape[1], tables, draft_ms)
    return tokens


def expected_tokens(ranked: F64Array, num_sampling: IntArray | F64Array) -> F64Array:
    """Return N_sampling + Σ_{j<B} S_sorted[j] at every budget, float64 `[S, K·R + 1]`."""
    steps, width = ranked.shape
    tokens = np.empty((steps, width + 1))
    tokens[:, 0] = 0.0
    np.cumsum(ranked, axis=1, out=tokens[:, 1:])
    tokens += num_sampling[:, None]
    return tokens


def best_budget(step: StepBatch, confidence: F32Array, *, draft_ms: F64Array | None = None, floor: int = 0) -> IntArray:
    """Return B* = argmax of the objective over least ≤ B ≤ cap, first maximum, int `[S]`.

    Args:
        step: costs and sizes.
        confidence: the sizing confidences.
        draft_ms: what drafting costs, `[S]`; None for the draft table.
        floor: slots that every request is given first, as far as it has drafted them and the cap allows. They are in
            every budget (least = min(cap, their number)); vLLM knows no floor, which is 0.

    Source: vLLM 0.33 `AdaptiveVerificationManager.get_num_tokens`.
    """
    cap = budget_cap(step)
    if not floor:
        ranked = ranked_survival(confidence, step.num_drafted)
        sizes = step.num_sampling, step.num_reqs, step.num_target_tokens
        return best_within(objective(ranked, *sizes, step.tables, draft_ms), cap)
    survivals = sizing_survival(confidence, step.num_drafted)
    given = np.minimum(step.num_drafted, floor)
    first = np.arange(len(survivals))[:, None, None] < given
    tokens = step.num_sampling + np.where(first, survivals, 0).sum(axis=(0, 2))
    least = given.sum(axis=1)
    ranked = _descending(np.where(first, -1, survivals))
    value = objective(ranked, tokens, step.num_reqs, step.num_target_tokens + least, step.tables, draft_ms)
    return np.minimum(least + best_within(value, np.maximum(cap - least, 0)), cap)


def best_within(value: F64Array, cap: IntArray) -> IntArray:
    """Return the first maximum of each line among 0 … cap, int `[S]`; overwrites what lies beyond."""
    if (cap < value.shape[1] - 1).any():
        value[np.arange(value.shape[1]) > cap[:, None]] = -np.inf
    return value.argmax(axis=1)


def depth_costs(tables: CostTables, num_reqs: IntArray, num_slots: int) -> F64Array:
    """Return what drafting 0 … K slots costs in each step, ms, float64 `[K + 1, S]`."""
    if tables.by_depth is not None:
        return tables.by_depth[: num_slots + 1, num_reqs]
    costs = np.repeat(tables.draft[num_reqs][None], num_slots + 1, axis=0)
    costs[0] = 0.0
    return costs


def drafting_ms(step: StepBatch) -> F64Array:
    """Return what the drafts at hand cost, ms, `[S]`: those of the request that drafted most."""
    depth = step.num_drafted.max(axis=1, initial=0)
    return np.asarray(depth_costs(step.tables, step.num_reqs, len(step.live))[depth, np.arange(len(depth))])


def allocate(survivals: F32Array, budget: IntArray) -> IntArray:
    """Give each step's budget to its highest survivals; a prefix per request. Ties: by slot, then request order.

    Args:
        survivals: float32 `[K, S, R]`, −1 where not drafted, non-increasing along K.
        budget: int `[S]`, at most the drafted slots of the step.

    Returns:
        M, int `[S, R]`, summing to the budget.

    >>> s = np.array([[[0.9, 0.5]], [[0.6, 0.4]]], dtype=np.float32)
    >>> allocate(s, np.array([3])).tolist()
    [[2, 1]]
    """
    flat = by_step(survivals)
    width = flat.shape[1]
    ordered = np.sort(flat, axis=1)
    line = np.arange(len(flat))
    cut = ordered[line, np.minimum(width - budget, width - 1)]
    admitted = (survivals >= cut[:, None]).sum(axis=0, dtype=np.int64)
    # Below the cut lies the next value; where it equals the cut, some of the tied slots must stay out.
    below = ordered[line, np.maximum(width - budget - 1, 0)]
    short = np.flatnonzero((budget == 0) | ((below == cut) & (budget < width)))
    if len(short):
        above, at = survivals[:, short] > cut[short, None], survivals[:, short] == cut[short, None]
        certain = above.sum(axis=0)
        admitted[short] = certain + _fill_ties(at, budget[short] - certain.sum(axis=1))
    return admitted


def step_costs(
    num_reqs: IntArray,
    num_target_tokens: IntArray,
    width: int,
    tables: CostTables,
    draft_ms: F64Array | None = None,
) -> F64Array:
    """Return draft[num_reqs] + verify[T + B] for B = 0 … width, `[S, width + 1]`, or one line if all steps agree."""
    draft = tables.draft[num_reqs] if draft_ms is None else draft_ms
    base = num_target_tokens[:, None]
    if len(base) and (base == base[:1]).all() and (draft == draft[:1]).all():
        base, draft = base[:1], draft[:1]
    index = np.minimum(base + np.arange(width + 1), len(tables.verify) - 1)
    return tables.verify[index] + draft[:, None]


def _descending(survivals: F64Array) -> F64Array:
    """Sort the survivals of each step, highest first, `[S, K·R]`."""
    ranked = by_step(survivals)
    np.negative(ranked, out=ranked)
    ranked.sort(axis=1)
    return np.negative(ranked, out=ranked)


def _running_product(confidence: F32Array, num_drafted: IntArray, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Multiply up along the slots, −1 where not drafted: `[K, S, R]`, in memory that `by_step` need not copy.

    One multiplication per slot is much faster than np.cumprod, which walks the first axis badly.
    """
    slots, steps, reqs = confidence.shape
    product = np.empty((steps, slots, reqs), dtype=dtype).transpose(1, 0, 2)
    product[:1] = confidence[:1]
    for slot in range(1, slots):
        np.multiply(product[slot - 1], confidence[slot], out=product[slot])
    if slots and (num_drafted < slots).any():
        product[np.arange(slots)[:, None, None] >= num_drafted] = -1
    return product


def _fill_ties(tied: BoolArray, left: IntArray) -> IntArray:
    """Take the first `left` tied slots of each step, slot by slot and then in request order."""
    flat = by_step(tied)
    taken = flat & (np.cumsum(flat, axis=1) <= left[:, None])
    slots, _, reqs = tied.shape
    return taken.reshape(-1, slots, reqs).sum(axis=1)


def by_step(array: np.ndarray) -> np.ndarray:
    """Lay out `[K, S, R]` as `[S, K·R]`, one contiguous line per step."""
    slots, steps, reqs = array.shape
    return np.ascontiguousarray(array.transpose(1, 0, 2)).reshape(steps, slots * reqs)
