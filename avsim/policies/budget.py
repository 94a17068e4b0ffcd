"""The arithmetic that budget policies share: survivals, the objective, and allocation of a budget to requests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.costs.base import CostTables
from avsim.policies.base import StepBatch
from avsim.types import BoolArray, F32Array, F64Array, IntArray

__all__ = ["allocate", "best_budget", "budget_cap", "objective", "ranked_survival", "survival"]


def survival(confidence: F32Array, num_drafted: IntArray) -> F32Array:
    """Return S_k = ∏_{j≤k} p_j, float32 `[K, S, R]`, and −1 in slots that were not drafted."""
    return _running_product(confidence, num_drafted, np.dtype(np.float32))


def ranked_survival(confidence: F32Array, num_drafted: IntArray) -> F64Array:
    """Return the survivals of each step in float64, sorted descending, `[S, K·R]`; undrafted slots are −1, last."""
    ranked = _by_step(_running_product(confidence, num_drafted, np.dtype(np.float64)))
    np.negative(ranked, out=ranked)
    ranked.sort(axis=1)
    return np.negative(ranked, out=ranked)


def budget_cap(step: StepBatch) -> IntArray:
    """Return the largest budget of each step, `[S]`: every draft, unless the rejection sampler's logits bind."""
    drafts = step.num_drafted.sum(axis=1)
    return np.minimum(drafts, np.maximum(0, step.max_total_logits - step.num_reqs))


def objective(
    ranked: F64Array, num_sampling: IntArray, num_reqs: IntArray, num_target_tokens: IntArray, tables: CostTables
) -> F64Array:
    """Return expected tokens per ms at every budget 0 … K·R, float64 `[S, K·R + 1]`.

    numerator(B) = N_sampling + Σ_{j<B} S_sorted[j]; cost(B) = draft[num_reqs] + verify[T + B].
    """
    steps, width = ranked.shape
    tokens = np.empty((steps, width + 1))
    tokens[:, 0] = 0.0
    np.cumsum(ranked, axis=1, out=tokens[:, 1:])
    tokens += num_sampling[:, None]
    tokens /= _step_costs(num_reqs, num_target_tokens, width, tables)
    return tokens


def best_budget(step: StepBatch, confidence: F32Array) -> IntArray:
    """Return B* = argmax of the objective over 0 ≤ B ≤ cap, first maximum, int `[S]`.

    Source: vLLM 0.33 `AdaptiveVerificationManager.get_num_tokens`.
    """
    ranked = ranked_survival(confidence, step.num_drafted)
    value = objective(ranked, step.num_sampling, step.num_reqs, step.num_target_tokens, step.tables)
    cap = budget_cap(step)
    if (cap < ranked.shape[1]).any():
        value[np.arange(value.shape[1]) > cap[:, None]] = -np.inf
    return value.argmax(axis=1)


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
    flat = _by_step(survivals)
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


def _step_costs(num_reqs: IntArray, num_target_tokens: IntArray, width: int, tables: CostTables) -> F64Array:
    """Return draft[num_reqs] + verify[T + B] for B = 0 … width, `[S, width + 1]`, or one line if all steps agree."""
    base = num_target_tokens[:, None]
    if (base == base[:1]).all() and (num_reqs == num_reqs[:1]).all():
        base, num_reqs = base[:1], num_reqs[:1]
    index = np.minimum(base + np.arange(width + 1), len(tables.verify) - 1)
    return tables.verify[index] + tables.draft[num_reqs][:, None]


def _running_product(confidence: F32Array, num_drafted: IntArray, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Multiply up along the slots, −1 where not drafted: `[K, S, R]`, in memory that `_by_step` need not copy.

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
    flat = _by_step(tied)
    taken = flat & (np.cumsum(flat, axis=1) <= left[:, None])
    slots, _, reqs = tied.shape
    return taken.reshape(-1, slots, reqs).sum(axis=1)


def _by_step(array: np.ndarray) -> np.ndarray:
    """Lay out `[K, S, R]` as `[S, K·R]`, one contiguous line per step."""
    slots, steps, reqs = array.shape
    return np.ascontiguousarray(array.transpose(1, 0, 2)).reshape(steps, slots * reqs)
