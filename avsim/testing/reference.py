"""Slow decisions of single steps, by enumeration in exact fractions; written from the rules, not from the policies."""

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


def best_prefix_budget(
    batch: StepBatch,
    step: int,
    survivals: list[Fraction],
    early_stop: bool = False,
    draft: Fraction | None = None,
    least: int = 0,
) -> int:
    """Enumerate budgets: the first global maximum of tokens per ms, or the last before the first fall.

    Args:
        batch, step: the costs and the sizes.
        survivals: of the drafted slots, in the order in which budgets take them.
        early_stop: DSpark's Algorithm 1.
        draft: what drafting costs; None for the draft table.
        least: the smallest budget, as far as the logits allow.
    """
    if draft is None:
        draft = Fraction(float(batch.tables.draft[batch.num_reqs[step]]))
    limit = _limit(batch, step)
    tokens = Fraction(int(batch.num_sampling[step]))
    best, best_value = 0, tokens / (draft + _verify(batch, step, 0))
    for budget, gained in enumerate(survivals[:limit], start=1):
        tokens += gained
        value = tokens / (draft + _verify(batch, step, budget))
        if value > best_value or budget <= least:
            best, best_value = budget, value
        elif early_stop:
            break
    return best


def exact_survivals(confidence: F32Array, batch: StepBatch, step: int) -> list[Fraction]:
    """Return the survivals of the drafted slots of one step, best first."""
    return sorted((value for block in _blocks(confidence, batch, step) for value in block), reverse=True)


def _limit(batch: StepBatch, step: int) -> int:
    return max(0, batch.max_total_logits - int(batch.num_reqs[step]))


def _verify(batch: StepBatch, step: int, budget: int) -> Fraction:
    return Fraction(float(batch.tables.verify[batch.num_target_tokens[step] + budget]))


def _draft_at_hand(batch: StepBatch, step: int) -> Fraction:
    """Return what the deepest draft of the step cost."""
    depth, reqs = int(batch.num_drafted[step].max(initial=0)), batch.num_reqs[step]
    if batch.tables.by_depth is not None:
        return Fraction(float(batch.tables.by_depth[depth, reqs]))
    return Fraction(float(batch.tables.draft[reqs])) if depth else Fraction(0)


def _blocks(confidence: F32Array, batch: StepBatch, step: int) -> list[list[Fraction]]:
    """Return the exact survivals of each request's drafted slots."""
    blocks = []
    for request, drafted in enumerate(batch.num_drafted[step].tolist()):
        product, block = Fraction(1), []
        for slot in range(drafted):
            product *= Fraction(float(confidence[slot, step, request]))
            block.append(product)
        blocks.append(block)
    return blocks


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


def _all(policy: Any, batch: StepBatch, step: int) -> list[int]:
    return batch.num_drafted[step].tolist()


def _fixed(policy: Any, batch: StepBatch, step: int) -> list[int]:
    return [min(policy.k, drafted) for drafted in batch.num_drafted[step].tolist()]


def _threshold(policy: Any, batch: StepBatch, step: int) -> list[int]:
    admitted = []
    for request, drafted in enumerate(batch.num_drafted[step].tolist()):
        count, score = 0, np.float32(1)
        for confidence in batch.live[:drafted, step, request]:
            score = np.float32(score * confidence) if policy.on == "survival" else confidence
            if score < np.float32(policy.p):
                break
            count += 1
        admitted.append(count)
    return admitted


def _adaptive(policy: Any, batch: StepBatch, step: int) -> list[int]:
    sizing = batch.sizing
    if policy.hide_trimmed:
        assert batch.memory is not None
        assert batch.sizing_admitted is not None
        sizing = sizing.copy()
        for request, admitted in enumerate(batch.sizing_admitted[step].tolist()):
            for slot in range(admitted, len(sizing)):
                sizing[slot, step, request] = batch.memory[slot, step]
    blocks, drafted = _blocks(sizing, batch, step), batch.num_drafted[step].tolist()
    given = [block[: policy.floor] for block in blocks]
    first = [value for block in given for value in block]
    rest = sorted((value for block in blocks for value in block[policy.floor :]), reverse=True)
    budget = best_prefix_budget(batch, step, first + rest, least=len(first))
    ranked = _ranked(batch.live, batch, step)
    ranked.sort(key=lambda entry: (entry[1], entry[2]) if entry[1] < policy.floor else (len(sizing), 0))
    result = _spend(budget, ranked, len(drafted))
    if batch.chance is None:
        return result
    left = _limit(batch, step) - budget
    for request, chance in enumerate(batch.chance[step].tolist()):
        if left > 0 and chance < policy.explore and result[request] < drafted[request]:
            result[request] += 1
            left -= 1
    return result


def _adaptive_skip(policy: Any, batch: StepBatch, step: int) -> list[int]:
    survivals = exact_survivals(batch.sizing, batch, step)
    budget = best_prefix_budget(batch, step, survivals, draft=_draft_at_hand(batch, step))
    return _spend(budget, _ranked(batch.live, batch, step), batch.num_drafted.shape[1])


def _renewal(policy: Any, batch: StepBatch, step: int) -> list[int]:
    assert batch.memory is not None
    survivals = exact_survivals(batch.sizing, batch, step)
    tokens, ms, seen = (Fraction(value) for value in batch.memory[:, step].tolist())
    if seen == 0:
        budget = best_prefix_budget(batch, step, survivals)
    else:
        worth = [
            sum(survivals[:size], Fraction(0)) - tokens / ms * _verify(batch, step, size)
            for size in range(min(len(survivals), _limit(batch, step)) + 1)
        ]
        budget = worth.index(max(worth))
    return _spend(budget, _ranked(batch.live, batch, step), batch.num_drafted.shape[1])


def _slo(policy: Any, batch: StepBatch, step: int) -> list[int]:
    num_reqs = batch.num_drafted.shape[1]
    draft = Fraction(float(batch.tables.draft[batch.num_reqs[step]]))
    slots = [
        (value, slot, request)
        for request, block in enumerate(_blocks(batch.sizing, batch, step))
        for slot, value in enumerate(block)
    ]
    slots.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
    kept: list[tuple[Fraction, int]] = []
    slow: list[tuple[Fraction, int]] = []
    for budget in range(min(len(slots), _limit(batch, step)) + 1):
        emitted = [Fraction(1) for _ in range(num_reqs)]
        for value, _, request in slots[:budget]:
            emitted[request] += value
        cost = draft + _verify(batch, step, budget)
        least = min((emitted[i] for i in range(num_reqs) if batch.num_drafted[step, i]), default=None)
        rate = (int(batch.num_sampling[step]) + sum(emitted) - num_reqs) / cost
        if least is None or cost / least <= Fraction(policy.tpot_ms):
            kept.append((rate, -budget))
        elif least is not None:
            slow.append((-cost / least, -budget))
    return _spend(-max(kept or slow)[1], _ranked(batch.live, batch, step), num_reqs)


def _prefix_scheduler(policy: Any, batch: StepBatch, step: int) -> list[int]:
    budget = best_prefix_budget(batch, step, exact_survivals(batch.live, batch, step), policy.early_stop)
    return _spend(budget, _ranked(batch.live, batch, step), batch.num_drafted.shape[1])


def _labels(batch: StepBatch) -> F32Array:
    if batch.num_accepted is None:
        raise ValueError("the oracle needs num_accepted")
    useful = batch.num_accepted
    if batch.num_remaining is not None:
        useful = np.minimum(useful, batch.num_remaining - 1)
    return (np.arange(len(batch.live))[:, None, None] < useful).astype(np.float32)


def _oracle(policy: Any, batch: StepBatch, step: int) -> list[int]:
    truth = _labels(batch)
    if policy.name == "oracle" and policy.rule == "exact":
        assert batch.num_accepted is not None
        return batch.num_accepted[step].tolist()
    draft = _draft_at_hand(batch, step) if policy.name == "oracle+skip" else None
    budget = best_prefix_budget(batch, step, exact_survivals(truth, batch, step), draft=draft)
    return _spend(budget, _ranked(truth, batch, step), batch.num_drafted.shape[1])


REFERENCES: dict[str, Callable[[Any, StepBatch, int], list[int]]] = {
    "none": _none,
    "fixed": _fixed,
    "batch-schedule": _all,
    "goodput": _all,
    "threshold": _threshold,
    "adaptive": _adaptive,
    "adaptive+skip": _adaptive_skip,
    "renewal": _renewal,
    "slo": _slo,
    "prefix-scheduler": _prefix_scheduler,
    "oracle": _oracle,
    "oracle+skip": _oracle,
}
"""Policy name to its slow rule."""
