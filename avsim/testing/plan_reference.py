"""Slow draft depths of single steps, by enumeration in exact fractions; written from the rules."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from avsim.policies.base import DraftPlan
from avsim.types import F64Array

__all__ = ["PLAN_REFERENCES"]


def _batch_schedule(policy: Any, plan: DraftPlan, step: int) -> int:
    """Expand the table size by size, as an engine does, and read it with the size remembered."""
    ranges = []
    for part in policy.table.split("/"):
        sizes, depth = part.split(":")
        ranges.append((int(sizes.split("-")[0]), int(depth)))
    ranges.sort()

    def line(size: int) -> int:
        return max(index for index, (start, _) in enumerate(ranges) if start <= max(size, 1))

    memory = [] if plan.memory is None else plan.memory[:, step].tolist()
    size = int(plan.num_reqs[step])
    if policy.lag and memory[0]:
        size = int(memory[0])
    chosen = line(size)
    if policy.hysteresis and memory[-1]:
        held = int(memory[-1]) - 1
        near = range(size - policy.hysteresis, size + policy.hysteresis + 1)
        if any(line(other) == held for other in near if other >= 1):
            chosen = held
    return min(ranges[chosen][1], len(plan.sizing))


def _goodput(policy: Any, plan: DraftPlan, step: int) -> int:
    assert plan.memory is not None
    num_slots, reqs = len(plan.sizing), int(plan.ready[step].sum())
    one = policy.rates == "one"
    memory = [Fraction(value) for value in plan.memory[:, step].tolist()]
    rates = memory[:1] * num_slots if one else memory[:num_slots]
    values, tokens, product = [], Fraction(int(plan.num_sampling[step])), Fraction(1)
    for depth in range(num_slots + 1):
        if depth:
            product *= rates[depth - 1]
            tokens += reqs * product
        values.append(tokens / (_draft(plan, step, depth) + _verify(plan, step, reqs * depth)))
    depth = values.index(max(values))
    due = policy.probe and (memory[-1] + 1) % policy.probe == 0
    return depth + 1 if due and depth < (1 if one else num_slots) else depth


def _adaptive_skip(policy: Any, plan: DraftPlan, step: int) -> int:
    assert plan.memory is not None
    num_slots, reqs = len(plan.sizing), int(plan.ready[step].sum())
    levels = (len(plan.memory) - 1) // num_slots - 1
    memory = [Fraction(value) for value in plan.memory[:, step].tolist()]
    if memory[levels * num_slots] < min(64, policy.horizon) or (policy.probe and memory[-1] >= policy.probe - 1):
        return num_slots
    parts: list[Fraction] = []
    above = [Fraction(1)] * levels
    rates = []
    for depth in range(num_slots + 1):
        if depth:
            row = memory[(depth - 1) * levels : depth * levels]
            above = [min(pair) for pair in zip(above, row, strict=True)]
            parts += above
        most = min(reqs * depth, max(0, plan.max_total_logits - int(plan.num_reqs[step])))
        best = Fraction(0)
        for budget in range(most + 1):
            left, gained = Fraction(budget), Fraction(0)
            for part in sorted(parts, reverse=True):
                taken = min(left, Fraction(reqs, levels))
                gained += taken * part
                left -= taken
            cost = _draft(plan, step, depth) + _verify(plan, step, budget)
            best = max(best, (int(plan.num_sampling[step]) + gained) / cost)
        rates.append(best)
    return max(range(num_slots + 1), key=lambda depth: (rates[depth], depth))


def _oracle_skip(policy: Any, plan: DraftPlan, step: int) -> int:
    assert plan.num_accepted is not None
    assert plan.num_remaining is not None
    useful = [
        min(int(accepted), int(remaining) - 1) if ready else 0
        for accepted, remaining, ready in zip(
            plan.num_accepted[step], plan.num_remaining[step], plan.ready[step], strict=True
        )
    ]
    room = max(0, plan.max_total_logits - int(plan.num_reqs[step]))
    rates = [
        max(
            (int(plan.num_sampling[step]) + budget) / (_draft(plan, step, depth) + _verify(plan, step, budget))
            for budget in range(min(room, sum(min(depth, count) for count in useful)) + 1)
        )
        for depth in range(len(plan.sizing) + 1)
    ]
    return rates.index(max(rates))


def _verify(plan: DraftPlan, step: int, budget: int) -> Fraction:
    return _exact(plan.tables.verify, int(plan.num_target_tokens[step]) + budget)


def _draft(plan: DraftPlan, step: int, depth: int) -> Fraction:
    if plan.tables.by_depth is not None:
        return _exact(plan.tables.by_depth[depth], plan.num_reqs[step])
    return _exact(plan.tables.draft, plan.num_reqs[step]) if depth else Fraction(0)


def _exact(table: F64Array, index: int) -> Fraction:
    return Fraction(float(table[index]))


PLAN_REFERENCES: dict[str, Callable[[Any, DraftPlan, int], int]] = {
    "batch-schedule": _batch_schedule,
    "goodput": _goodput,
    "adaptive+skip": _adaptive_skip,
    "oracle+skip": _oracle_skip,
}
"""Name of a policy that plans its drafts to its slow rule."""
