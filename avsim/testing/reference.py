"""Slow admissions of single steps, by enumeration in exact fractions; written from the rules, not from the policies."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from avsim.policies.base import StepBatch
from avsim.types import F32Array

__all__ = ["REFERENCES", "best_prefix_budget", "exact_survivals", "reference_admitted"]

Ranked = list[tuple[float, int, int]]
"""(survival, slot, request), best first: by survival, then slot, then request."""


def reference_admitted(policy: Any, batch: StepBatch, step: int) -> list[int]:
    """Return M per request of one step, as the policy's rule in `REFERENCES` says.

    Raises:
        KeyError: the policy's name has no rule there.
    """
    return REFERENCES[policy.name](policy, batch, step)


def best_prefix_budget(batch: StepBatch, step: int, survivals: list[Fraction], early_stop: bool) -> int:
    """Enumerate budgets: the first global maximum of tokens per ms, or the last before the first fall.

    Args:
        batch, step: the costs and the sizes.
        survivals: of the drafted slots, best first.
        early_stop: DSpark's Algorithm 1.
    """
    tables = batch.tables
    limit = max(0, batch.max_total_logits - int(batch.num_reqs[step]))
    draft = Fraction(float(tables.draft[batch.num_reqs[step]]))
    tokens = Fraction(int(batch.num_sampling[step]))
    best = 0
    best_value = tokens / (draft + Fraction(float(tables.verify[batch.num_target_tokens[step]])))
    for budget, gained in enumerate(survivals[:limit], start=1):
        tokens += gained
        cost = draft + Fraction(float(tables.verify[batch.num_target_tokens[step] + budget]))
        if tokens / cost > best_value:
            best, best_value = budget, tokens / cost
        elif early_stop:
            break
    return best


def exact_survivals(confidence: F32Array, batch: StepBatch, step: int) -> list[Fraction]:
    """Return the survivals of the drafted slots of one step, best first."""
    found = []
    for request, drafted in enumerate(batch.num_drafted[step].tolist()):
        product = Fraction(1)
        for slot in range(drafted):
            product *= Fraction(float(confidence[slot, step, request]))
            found.append(product)
    return sorted(found, reverse=True)


def _ranked(confidence: F32Array, batch: StepBatch, step: int) -> Ranked:
    """Rank the drafted slots by float32 survival, which is what the engine ranks by."""
    found = []
    for request, drafted in enumerate(batch.num_drafted[step].tolist()):
        product = np.float32(1)
        for slot in range(drafted):
            product = np.float32(product * confidence[slot, step, request])
            found.append((float(product), slot, request))
    return sorted(found, key=lambda entry: (-entry[0], entry[1], entry[2]))


def _spend(budget: int, ranked: Ranked, num_reqs: int) -> list[int]:
    admitted = [0] * num_reqs
    for _, _, request in ranked[:budget]:
        admitted[request] += 1
    return admitted


def _none(policy: Any, batch: StepBatch, step: int) -> list[int]:
    return [0] * batch.num_drafted.shape[1]


def _fixed(policy: Any, batch: StepBatch, step: int) -> list[int]:
    return [min(policy.k, drafted) for drafted in batch.num_drafted[step].tolist()]


def _adaptive(policy: Any, batch: StepBatch, step: int) -> list[int]:
    budget = best_prefix_budget(batch, step, exact_survivals(batch.sizing, batch, step), early_stop=False)
    admitted = _spend(budget, _ranked(batch.live, batch, step), batch.num_drafted.shape[1])
    if batch.chance is None:
        return admitted
    left = max(0, batch.max_total_logits - int(batch.num_reqs[step])) - budget
    for request, chance in enumerate(batch.chance[step].tolist()):
        if left > 0 and chance < policy.explore and admitted[request] < batch.num_drafted[step, request]:
            admitted[request] += 1
            left -= 1
    return admitted


def _prefix_scheduler(policy: Any, batch: StepBatch, step: int) -> list[int]:
    budget = best_prefix_budget(batch, step, exact_survivals(batch.live, batch, step), policy.early_stop)
    return _spend(budget, _ranked(batch.live, batch, step), batch.num_drafted.shape[1])


def _oracle(policy: Any, batch: StepBatch, step: int) -> list[int]:
    if batch.num_accepted is None:
        raise ValueError("the oracle needs num_accepted")
    accepted = batch.num_accepted[step].tolist()
    if policy.rule == "exact":
        return accepted
    useful = batch.num_accepted
    if batch.num_remaining is not None:
        useful = np.minimum(useful, batch.num_remaining - 1)
    slot = np.arange(len(batch.live))[:, None, None]
    truth = (slot < useful).astype(np.float32)
    budget = best_prefix_budget(batch, step, exact_survivals(truth, batch, step), early_stop=False)
    return _spend(budget, _ranked(truth, batch, step), batch.num_drafted.shape[1])


REFERENCES: dict[str, Callable[[Any, StepBatch, int], list[int]]] = {
    "none": _none,
    "fixed": _fixed,
    "adaptive": _adaptive,
    "prefix-scheduler": _prefix_scheduler,
    "oracle": _oracle,
}
"""Policy name to its slow rule."""
