"""Budgets in the layout of the kernels: confidences by persistent slot, a row per request, −1 in rows that pad.

The meaning is that of `avsim.policies.budget`; what is added is what a NaN counts as.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.costs.base import CostTables
from avsim.policies import budget as rules
from avsim.policies.base import StepBatch
from avsim.policies.prefix_scheduler import PrefixScheduler
from avsim.types import F32Array, IntArray

__all__ = ["allocate", "first_fall", "size"]

Ints = NDArray[np.integer[Any]]


def allocate(confidence: F32Array, idx_mapping: Ints, capacities: Ints, budget: int) -> IntArray:
    """Return the admitted counts `[B]` of `avsim.policies.budget.allocate`; rows of −1 keep their capacity.

    Args:
        confidence: by persistent slot, float32 `[R, K]`. A NaN survival ranks below every number.
        idx_mapping: persistent slot of each row, `[B]`.
        capacities: scheduled drafts of each row, `[B]`.
        budget: all are admitted where it is not below their number.

    >>> confidence = np.array([[0.9, 0.5], [0.8, np.nan]], dtype=np.float32)
    >>> allocate(confidence, np.array([1, 0, -1]), np.array([2, 2, 2]), 3).tolist()
    [1, 2, 2]
    """
    live, drafted = _rows(confidence, idx_mapping, capacities)
    survivals = rules.survival(live, drafted)
    survivals = np.where(np.isnan(survivals), np.float32(-0.5), survivals)  # between 0 and the undrafted slots' −1
    spent = np.array([min(max(budget, 0), int(drafted.sum()))])
    admitted = rules.allocate(survivals, spent)[0] if drafted.size else drafted[0]
    return np.where(idx_mapping >= 0, admitted, capacities)


def size(
    confidence: F32Array,
    idx_mapping: Ints,
    capacities: Ints,
    sizes: tuple[int, int, int],
    tables: CostTables,
    max_total_logits: int,
) -> int:
    """Return B* of `avsim.policies.budget.best_budget`; a NaN survival counts as 0.

    Args:
        confidence, idx_mapping, capacities: as in `allocate`.
        sizes: N_sampling, requests scheduled, and T, tokens that are not drafts.
        tables: ms.
        max_total_logits: logit rows that the rejection sampler takes at once.
    """
    step = _step(confidence, idx_mapping, capacities, sizes, tables, max_total_logits)
    return int(rules.best_budget(step, step.live)[0])


def first_fall(
    confidence: F32Array,
    idx_mapping: Ints,
    capacities: Ints,
    sizes: tuple[int, int, int],
    tables: CostTables,
    max_total_logits: int,
) -> tuple[int, IntArray]:
    """Return B and the admitted counts of `PrefixScheduler`; arguments as for `size`, NaN as for both."""
    step = _step(confidence, idx_mapping, capacities, sizes, tables, max_total_logits)
    budget = int(PrefixScheduler().admit(step).sum()) if step.num_drafted.size else 0
    return budget, allocate(confidence, idx_mapping, capacities, budget)


def _rows(confidence: F32Array, idx_mapping: Ints, capacities: Ints) -> tuple[F32Array, IntArray]:
    """Return confidences `[K, 1, B]` and drafted counts `[1, B]`; a padding row has drafted nothing."""
    drafted = np.where(idx_mapping >= 0, np.minimum(capacities, confidence.shape[1]), 0).astype(np.int64)
    return confidence[np.maximum(idx_mapping, 0)].T[:, None], drafted[None]


def _step(
    confidence: F32Array,
    idx_mapping: Ints,
    capacities: Ints,
    sizes: tuple[int, int, int],
    tables: CostTables,
    max_total_logits: int,
) -> StepBatch:
    live, drafted = _rows(confidence, idx_mapping, capacities)
    live = np.where(np.isnan(live), np.float32(0), live)
    num_sampling, num_reqs, num_target_tokens = (np.array([value]) for value in sizes)
    return StepBatch(
        live, live, drafted, num_reqs, num_sampling, num_target_tokens, tables, max_total_logits=max_total_logits
    )
