"""Checks of what policies keep from step to step, and of the draft depths that they plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from avsim.policies.base import DraftPlan, Policy, StepOutcome
from avsim.testing.plan_reference import PLAN_REFERENCES
from avsim.testing.steps import lived_memory, num_slots_for, random_outcome, random_plans
from avsim.types import F64Array, IntArray

__all__ = ["PLAN_CHECKS"]

_STEPS, _REQS = 24, 4


def check_plan_range(policy: Policy) -> None:
    """A policy that plans returns a draft depth per step, int `[S]`, from 0 to its `depth(K)`."""
    for plan in _plans(policy):
        depth = policy.plan(plan)
        assert isinstance(depth, np.ndarray), f"plan returned a {type(depth).__name__}, not an array"
        assert np.issubdtype(depth.dtype, np.integer), f"plan returned {depth.dtype}, not whole numbers"
        assert depth.shape == plan.num_reqs.shape, f"plan returned shape {depth.shape}, not {plan.num_reqs.shape}"
        most = policy.depth(len(plan.sizing))
        assert ((depth >= 0) & (depth <= most)).all(), f"plan returned {depth.min()} to {depth.max()} of {most} slots"


def check_plan_is_pure(policy: Policy) -> None:
    """`plan` changes none of its inputs and decides the same twice."""
    for plan in _plans(policy):
        before = _copies(plan)
        first = np.copy(policy.plan(plan))
        _assert_same(before, plan, "plan")
        assert np.array_equal(first, policy.plan(plan)), "plan decided otherwise the second time"


def check_plan_matches_reference(policy: Policy) -> None:
    """The depth equals the slow rule of `avsim.testing.plan_reference`."""
    if policy.plans:
        assert policy.name in PLAN_REFERENCES, (
            f"no slow rule for {policy.name!r} in PLAN_REFERENCES: add one, or opt out with a reason"
        )
    for plan in _plans(policy):
        depth = policy.plan(plan).tolist()
        for step, got in enumerate(depth):
            expected = PLAN_REFERENCES[policy.name](policy, plan, step)
            assert got == expected, f"plans {got} slots instead of {expected} for {plan.ready[step].sum()} requests"


def check_plan_steps_are_independent(policy: Policy) -> None:
    """A batch of plans is decided as each step alone, and where requests stand in it is irrelevant."""
    for seed, plan in enumerate(_plans(policy)):
        together = policy.plan(plan)
        for step in range(0, len(together), 3):
            alone = policy.plan(_pick_steps(plan, np.array([step])))[0]
            assert alone == together[step], f"a step is planned {alone} deep alone and {together[step]} in a batch"
        order = np.random.default_rng(seed).permutation(plan.ready.shape[1])
        moved: dict[str, Any] = {name: getattr(plan, name)[..., order] for name in ("sizing", "ready")}
        verdicts = {name: getattr(plan, name) for name in ("num_accepted", "num_remaining")}
        moved |= {name: values[:, order] for name, values in verdicts.items() if values is not None}
        assert np.array_equal(policy.plan(replace(plan, **moved)), together), "the order of requests changed the plan"


def check_plan_reads_what_it_declares(policy: Policy) -> None:
    """Who is not ready changes no plan; nor do verdicts without `uses_truth`, confidences without `uses_confidence`."""
    for plan in _plans(policy):
        expected = policy.plan(plan)
        hidden = np.where(plan.ready, plan.sizing, np.float32(0))
        others: list[tuple[str, dict[str, Any]]] = [("a request that cannot be drafted for", {"sizing": hidden})]
        if not policy.uses_confidence:
            others.append(("the confidences", {"sizing": np.ones_like(plan.sizing)}))
        if not policy.uses_truth:
            for count in (0, len(plan.sizing)):
                told = np.full(plan.ready.shape, count)
                others.append(("the verdict", {"num_accepted": told, "num_remaining": told + 1}))
        for what, changed in others:
            assert np.array_equal(policy.plan(replace(plan, **changed)), expected), f"{what} changed the plan"


def check_memory_form(policy: Policy) -> None:
    """`memory_size` is an int ≥ 0; `fresh_memory` is finite float64 `[M]`, and `remember` finite float64 `[M, S]`."""
    num_slots = num_slots_for(policy)
    size = policy.memory_size(num_slots)
    assert isinstance(size, int), f"memory_size is a {type(size).__name__}, not an int"
    assert size >= 0, f"memory_size is {size}"
    fresh = policy.fresh_memory(num_slots)
    _assert_memory(fresh, (size,), "fresh_memory")
    assert np.isfinite(fresh).all(), "fresh_memory returned a number that is not finite"
    memory = np.repeat(fresh[:, None], _STEPS, axis=1)
    for seed in range(4):
        memory = _remember(policy, memory, random_outcome(_STEPS, _REQS, num_slots, seed))
        assert np.isfinite(memory).all(), "remember returned a number that is not finite"


def check_remember_is_pure(policy: Policy) -> None:
    """`remember` changes none of its inputs and returns the same twice."""
    for memory, outcome in _memories(policy):
        before, kept = _copies(outcome), memory.copy()
        first = np.copy(_remember(policy, memory, outcome))
        _assert_same(before, outcome, "remember")
        assert np.array_equal(kept, memory), "remember changed the memory that it was given"
        assert np.array_equal(first, _remember(policy, memory, outcome)), "remember returned something else next time"


def check_empty_steps_are_not_remembered(policy: Policy) -> None:
    """A step of no requests leaves the memory as it was."""
    for memory, outcome in _memories(policy):
        empty = outcome.num_reqs == 0
        after = _remember(policy, memory, outcome)
        assert np.array_equal(after[:, empty], memory[:, empty]), "a step of no requests changed the memory"


def check_memories_are_independent(policy: Policy) -> None:
    """Each step's memory goes on as if alone; who takes no part, and where a request stands, is irrelevant."""
    for seed, (memory, outcome) in enumerate(_memories(policy)):
        together = _remember(policy, memory, outcome)
        for step in range(0, _STEPS, 3):
            index = np.array([step])
            alone = _remember(policy, memory[:, index], _pick_steps(outcome, index))
            assert np.array_equal(alone, together[:, index]), "a step is remembered otherwise alone than in a batch"
        order = np.random.default_rng(seed).permutation(_REQS)
        per_request = ("live", "num_drafted", "num_admitted", "num_accepted", "num_emitted")
        moved = replace(outcome, **{name: getattr(outcome, name)[..., order] for name in per_request})
        close = np.allclose(_remember(policy, memory, moved), together, rtol=1e-9, atol=1e-12)
        assert close, "the order of requests changed what is remembered"
        wider: dict[str, Any] = {}
        for name in per_request:
            values = getattr(outcome, name)
            fill = np.float32(np.nan) if name == "live" else 0
            wider[name] = np.concatenate((values, np.full_like(values[..., :1], fill)), axis=-1)
        close = np.allclose(_remember(policy, memory, replace(outcome, **wider)), together, rtol=1e-9, atol=1e-12)
        assert close, "a request that took no part changed what is remembered"


def check_undrafted_slots_are_not_remembered(policy: Policy) -> None:
    """What stands in slots that were not drafted is not remembered, nor any confidence without `uses_confidence`."""
    for memory, outcome in _memories(policy):
        expected = _remember(policy, memory, outcome)
        undrafted = np.arange(len(outcome.live))[:, None, None] >= outcome.num_drafted
        for garbage in (np.float32(np.nan), np.float32(1), np.float32(0)):
            live = np.where(undrafted, garbage, outcome.live)
            same = np.array_equal(_remember(policy, memory, replace(outcome, live=live)), expected)
            assert same, f"confidences of {garbage} in slots that were not drafted are remembered"
        if not policy.uses_confidence:
            ones = replace(outcome, live=np.ones_like(outcome.live))
            assert np.array_equal(_remember(policy, memory, ones), expected), (
                "the confidences are remembered, but uses_confidence is False"
            )


def _plans(policy: Policy) -> Iterator[DraftPlan]:
    if policy.plans:
        yield from random_plans(policy)


def _memories(policy: Policy) -> Iterator[tuple[F64Array, StepOutcome]]:
    num_slots = num_slots_for(policy)
    if policy.memory_size(num_slots):
        for seed in range(3):
            outcome = random_outcome(_STEPS, _REQS, num_slots, 100 + seed)
            yield lived_memory(policy, _STEPS, num_slots, seed), outcome


def _remember(policy: Policy, memory: F64Array, outcome: StepOutcome) -> F64Array:
    after = policy.remember(memory, outcome)
    _assert_memory(after, (len(memory), len(outcome.num_reqs)), "remember")
    return after


def _pick_steps(item: Any, index: IntArray) -> Any:
    """Return a plan or an outcome of some of its steps."""
    last = ("sizing", "live")
    parts = {}
    for field in fields(item):
        values = getattr(item, field.name)
        if isinstance(values, np.ndarray):
            by_column = field.name in last or field.name == "memory"
            parts[field.name] = values[:, index] if by_column else values[index]
    return replace(item, **parts)


def _copies(item: Any) -> dict[str, np.ndarray]:
    values = {field.name: getattr(item, field.name) for field in fields(item)}
    return {name: np.copy(array) for name, array in values.items() if isinstance(array, np.ndarray)}


def _assert_same(before: dict[str, np.ndarray], item: Any, method: str) -> None:
    for name, values in before.items():
        assert np.array_equal(values, getattr(item, name)), f"{method} changed {name}"


def _assert_memory(memory: Any, shape: tuple[int, ...], method: str) -> None:
    assert isinstance(memory, np.ndarray), f"{method} returned a {type(memory).__name__}, not an array"
    assert memory.dtype == np.float64, f"{method} returned {memory.dtype}, not float64"
    assert memory.shape == shape, f"{method} returned shape {memory.shape}, not {shape}"


PLAN_CHECKS = (
    check_plan_range,
    check_plan_is_pure,
    check_plan_matches_reference,
    check_plan_steps_are_independent,
    check_plan_reads_what_it_declares,
    check_memory_form,
    check_remember_is_pure,
    check_empty_steps_are_not_remembered,
    check_memories_are_independent,
    check_undrafted_slots_are_not_remembered,
)
