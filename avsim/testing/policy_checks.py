"""Checks that every budget policy must pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from avsim.costs.base import CostTables
from avsim.policies.base import Policy, StepBatch
from avsim.policies.oracle import Oracle
from avsim.testing.plan_checks import PLAN_CHECKS
from avsim.testing.reference import REFERENCES, reference_admitted
from avsim.testing.steps import COST_SHAPES, dyadic_batches, for_policy, num_slots_for, random_batch, random_batches
from avsim.types import IntArray

__all__ = ["POLICY_CHECKS"]

_PER_SLOT = ("live", "sizing")
_PER_REQUEST = ("num_drafted", "num_accepted", "num_remaining", "chance", "sizing_admitted")
_PER_STEP = ("num_reqs", "num_sampling", "num_target_tokens")


def check_depth(policy: Policy) -> None:
    """`depth(K)` is an int from 0 to K, and 0 only for a policy that never drafts."""
    num_slots = num_slots_for(policy)
    depth = policy.depth(num_slots)
    assert isinstance(depth, int), f"depth({num_slots}) is a {type(depth).__name__}, not an int"
    assert 0 <= depth <= num_slots, f"depth({num_slots}) is {depth}"
    assert (depth > 0) == policy.drafts, f"depth({num_slots}) is {depth}, but drafts is {policy.drafts}"


def check_admitted_range(policy: Policy) -> None:
    """M is an int array `[S, R]` with 0 ≤ M ≤ num_drafted; nothing is admitted where nothing was drafted."""
    for batch in (*random_batches(policy), *dyadic_batches(policy), *_undrafted(policy)):
        admitted = policy.admit(batch)
        assert isinstance(admitted, np.ndarray), f"admit returned a {type(admitted).__name__}, not an array"
        assert np.issubdtype(admitted.dtype, np.integer), f"admit returned {admitted.dtype}, not whole numbers"
        shape = batch.num_drafted.shape
        assert admitted.shape == shape, f"admit returned shape {admitted.shape}, not {shape}"
        assert (admitted >= 0).all(), f"admit returned {admitted.min()}: M counts leading slots"
        over = int((admitted - batch.num_drafted).max(initial=0))
        assert over <= 0, f"admit returned {over} slots more than a request has drafted"


def check_admit_is_pure(policy: Policy) -> None:
    """`admit` changes none of its inputs and decides the same twice."""
    for batch in random_batches(policy):
        everything = (*_PER_SLOT, *_PER_REQUEST, *_PER_STEP, "memory")
        names = [name for name in everything if getattr(batch, name) is not None]
        before = {name: np.copy(getattr(batch, name)) for name in names}
        tables = batch.tables.draft.copy(), batch.tables.verify.copy()
        first = np.copy(policy.admit(batch))
        for name in names:
            assert np.array_equal(before[name], getattr(batch, name)), f"admit changed {name}"
        same = np.array_equal(tables[0], batch.tables.draft) and np.array_equal(tables[1], batch.tables.verify)
        assert same, "admit changed the cost tables"
        assert np.array_equal(first, policy.admit(batch)), "admit decided otherwise the second time"


def check_undrafted_slots(policy: Policy) -> None:
    """What stands in slots that were not drafted is irrelevant."""
    for batch in (*random_batches(policy), *dyadic_batches(policy)):
        expected = policy.admit(batch)
        undrafted = np.arange(len(batch.live))[:, None, None] >= batch.num_drafted
        for garbage in (np.float32(np.nan), np.float32(1), np.float32(0)):
            live, sizing = (np.where(undrafted, garbage, values) for values in (batch.live, batch.sizing))
            same = np.array_equal(expected, policy.admit(replace(batch, live=live, sizing=sizing)))
            assert same, f"confidences of {garbage} in slots that were not drafted changed the decision"


def check_matches_reference(policy: Policy) -> None:
    """M equals the slow rule of `avsim.testing.reference`: the budget by enumeration, ties by slot, then request."""
    assert policy.name in REFERENCES, (
        f"no slow rule for {policy.name!r} in REFERENCES: add one, or opt out with a reason"
    )
    for batch in (*random_batches(policy), *dyadic_batches(policy)):
        admitted = policy.admit(batch)
        for step in range(len(admitted)):
            expected = reference_admitted(policy, batch, step)
            got = admitted[step].tolist()
            assert got == expected, (
                f"admitted {got} instead of {expected}: drafted {batch.num_drafted[step].tolist()}, "
                f"live {batch.live[:, step].T.tolist()}, sizing {batch.sizing[:, step].T.tolist()}"
            )


def check_ties(policy: Policy) -> None:
    """Where survivals tie, exactly as many slots are admitted as without the tie, by slot and then request order."""
    num_slots, num_reqs, num_steps = num_slots_for(policy), 5, 12
    rank = np.arange(num_slots)[:, None] * num_reqs + np.arange(num_reqs) + 1
    falling = 1 - rank * 2.0**-16
    falling = np.concatenate([falling[:1], falling[1:] / falling[:-1]])
    for level in (1.0, 0.5):
        first = np.full((num_slots, num_reqs), 1.0)
        first[0] = level
        tied = np.repeat(first[:, None], num_steps, axis=1).astype(np.float32)
        untied = np.repeat((first * falling)[:, None], num_steps, axis=1).astype(np.float32)
        batch = _tie_batch(policy, tied, num_steps)
        expected = policy.admit(replace(batch, live=untied))
        got = policy.admit(batch)
        assert got.sum() == expected.sum(), (
            f"{got.sum(axis=1).tolist()} slots admitted per step at tied survivals, {expected.sum(axis=1).tolist()} "
            "without the tie"
        )
        assert np.array_equal(got, expected), f"tied slots are not filled by slot and then request order: {got[0]}"


def check_steps_are_independent(policy: Policy) -> None:
    """A batch of steps is decided as each step alone."""
    for batch in (*random_batches(policy), *dyadic_batches(policy)):
        together = policy.admit(batch)
        for step in range(0, len(together), 3):
            alone = policy.admit(_pick(batch, np.array([step]), axis="step"))[0]
            same = np.array_equal(alone, together[step])
            assert same, f"a step is decided as {alone.tolist()} alone and as {together[step].tolist()} in a batch"


def check_padding(policy: Policy) -> None:
    """Request rows that draft nothing change nothing, wherever they stand."""
    for batch in (*random_batches(policy), *dyadic_batches(policy)):
        expected = policy.admit(batch)
        order = np.array([*range(expected.shape[1]), 0, 0])
        padded = _pick(batch, order, axis="request")
        drafted = padded.num_drafted.copy()
        drafted[:, -2:] = 0
        accepted = None if padded.num_accepted is None else np.minimum(padded.num_accepted, drafted)
        got = policy.admit(replace(padded, num_drafted=drafted, num_accepted=accepted))
        assert np.array_equal(got[:, :-2], expected), "two more request rows without drafts changed the decision"
        assert not got[:, -2:].any(), "a request row without drafts was given slots"


def check_request_permutation(policy: Policy) -> None:
    """Without ties, permuting the requests permutes the decision."""
    for seed, batch in enumerate(random_batches(policy, num_reqs=6)):
        order = np.random.default_rng(seed).permutation(6)
        expected = policy.admit(batch)[:, order]
        got = policy.admit(_pick(batch, order, axis="request"))
        assert np.array_equal(got, expected), "a request's share depends on where it stands in the batch"


def check_declared_separable(policy: Policy) -> None:
    """A policy that calls itself separable decides each request as if it were alone in the batch."""
    if not policy.separable:
        return
    for batch in random_batches(policy):
        together = policy.admit(batch)
        for request in range(together.shape[1]):
            alone = policy.admit(_pick(batch, np.array([request]), axis="request"))[:, 0]
            assert np.array_equal(alone, together[:, request]), "a separable policy decides a request by the others"


def check_logit_limit(policy: Policy) -> None:
    """All admitted slots and one bonus token a request fit into `max_total_logits`, as far as drafts can help it."""
    for limit in (0, 1, 5, 9, 14):
        for batch in random_batches(policy):
            room = np.maximum(0, limit - batch.num_reqs)
            total = policy.admit(replace(batch, max_total_logits=limit)).sum(axis=1)
            over = int((total - room).max())
            assert over <= 0, f"admits {over} slots more than max_total_logits = {limit} leaves room for"


def check_below_oracle(policy: Policy) -> None:
    """No step emits more tokens per ms than under `oracle`, drafting charged to both."""
    for seed in range(3):
        for cost in COST_SHAPES:
            batch = random_batch(cost, num_slots=num_slots_for(policy), seed=seed)
            best = _tokens_per_ms(batch, Oracle().admit(batch))
            reached = _tokens_per_ms(batch, policy.admit(for_policy(policy, batch)))
            over = np.flatnonzero(reached > best * (1 + 1e-12))
            assert not len(over), f"{reached[over[0]]} tokens per ms, and the oracle only {best[over[0]]}"


def check_declared_truth(policy: Policy) -> None:
    """A policy without `uses_truth` decides the same whether or not the verdict lies in the batch."""
    if policy.uses_truth:
        return
    num_slots = num_slots_for(policy)
    for seed in range(3):
        batch = random_batch("staircase", num_slots=num_slots, seed=seed)
        blind = for_policy(policy, batch)
        for accepted in (batch.num_accepted, batch.num_drafted):
            seeing = replace(blind, num_accepted=accepted, num_remaining=batch.num_remaining)
            same = np.array_equal(policy.admit(blind), policy.admit(seeing))
            assert same, "the verdict changed the decision, but uses_truth is False"


def check_declared_confidence(policy: Policy) -> None:
    """A policy without `uses_confidence` decides the same whatever the confidences are."""
    if policy.uses_confidence:
        return
    for batch in random_batches(policy):
        ones = np.ones_like(batch.live)
        same = np.array_equal(policy.admit(batch), policy.admit(replace(batch, live=ones, sizing=ones)))
        assert same, "the confidences changed the decision, but uses_confidence is False"


def check_lossy(policy: Policy) -> None:
    """`lossy(lag)` gives a reason or None; a policy that reads the verdict has a reason at every lag."""
    for lag in (0, 1, 2):
        reason = policy.lossy(lag)
        assert reason is None or isinstance(reason, str), f"lossy({lag}) is {reason!r}, neither a reason nor None"
        assert reason is None or reason.strip(), f"lossy({lag}) is an empty reason"
        assert reason or not policy.uses_truth, f"lossy({lag}) is None, but the policy reads the verdict"


def _undrafted(policy: Policy) -> Iterator[StepBatch]:
    for batch in random_batches(policy):
        zero = np.zeros_like(batch.num_drafted)
        yield replace(batch, num_drafted=zero, num_accepted=None if batch.num_accepted is None else zero)


def _tie_batch(policy: Policy, live: np.ndarray, num_steps: int) -> StepBatch:
    """Make steps whose best budget falls inside the tied slots: at each size another stair edge is near."""
    num_slots, _, num_reqs = live.shape
    size = num_reqs * (num_slots + 1) + num_steps + 1
    verify = np.where(np.arange(size) > num_reqs + 8, 40.0, 8.0 + np.ceil(np.arange(size) / 8) / 4)
    whole = np.full((num_steps, num_reqs), num_slots)
    reqs = np.full(num_steps, num_reqs)
    tokens = num_reqs + np.arange(num_steps)
    tables = CostTables(np.ones(num_reqs + 1), verify)
    chance = np.random.default_rng(0).random(whole.shape, dtype=np.float32)
    batch = StepBatch(
        live, live, whole, reqs, reqs, tokens, tables, whole, whole + 9, chance=chance, sizing_admitted=whole
    )
    return for_policy(policy, batch)


def _pick(batch: StepBatch, index: IntArray, *, axis: str) -> StepBatch:
    """Return the batch with some of its steps or requests, in the order of `index`."""
    if axis == "step":
        parts = {name: getattr(batch, name)[:, index] for name in _PER_SLOT}
        parts |= {name: getattr(batch, name)[index] for name in _PER_STEP}
        parts |= {name: getattr(batch, name)[index] for name in _PER_REQUEST if getattr(batch, name) is not None}
        if batch.memory is not None:
            parts["memory"] = batch.memory[:, index]
    else:
        parts = {name: getattr(batch, name)[:, :, index] for name in _PER_SLOT}
        parts |= {name: getattr(batch, name)[:, index] for name in _PER_REQUEST if getattr(batch, name) is not None}
    return replace(batch, **parts)


def _tokens_per_ms(batch: StepBatch, admitted: IntArray) -> np.ndarray:
    assert batch.num_accepted is not None
    assert batch.num_remaining is not None
    admitted = np.asarray(admitted).astype(np.int64)
    useful = np.minimum(batch.num_accepted, batch.num_remaining - 1)
    emitted = batch.num_sampling + np.clip(np.minimum(useful, admitted), 0, None).sum(axis=1)
    cost = batch.tables.draft[batch.num_reqs] + batch.tables.verify[batch.num_target_tokens + admitted.sum(axis=1)]
    return np.asarray(emitted / cost)


POLICY_CHECKS = (
    check_depth,
    check_admitted_range,
    check_admit_is_pure,
    check_undrafted_slots,
    check_matches_reference,
    check_ties,
    check_steps_are_independent,
    check_padding,
    check_request_permutation,
    check_logit_limit,
    check_below_oracle,
    check_declared_truth,
    check_declared_confidence,
    check_declared_separable,
    check_lossy,
    *PLAN_CHECKS,
)
