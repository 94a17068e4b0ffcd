"""The bound over depths and admissions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from avsim.policies import DraftPlan, Oracle, OracleSkip, StepBatch
from avsim.testing.steps import COST_SHAPES, random_batch
from avsim.types import F64Array, IntArray


def states(cost: str, draft_ms: float, by_depth: bool) -> tuple[DraftPlan, StepBatch]:
    """Draw steps in which everybody can draft all K slots."""
    batch = random_batch(cost, num_reqs=4, num_slots=4, draft_ms=draft_ms, by_depth=by_depth, seed=5)
    full = np.full_like(batch.num_drafted, 4)
    accepted = np.random.default_rng(6).integers(0, 5, full.shape)
    reqs = np.full(len(full), 4)
    tokens = 4 + (batch.num_target_tokens - batch.num_target_tokens.min()) // 2
    size = int(tokens.max()) + 17
    tables = replace(batch.tables, verify=np.resize(batch.tables.verify, max(size, len(batch.tables.verify))))
    tables.verify.sort()
    step = replace(
        batch, num_drafted=full, num_accepted=accepted, num_reqs=reqs, num_sampling=reqs, num_target_tokens=tokens,
        tables=tables,
    )  # fmt: skip
    ready = np.ones_like(full, dtype=bool)
    return DraftPlan(batch.sizing, ready, reqs, reqs, tokens, tables, None, accepted, batch.num_remaining), step


def rate(step: StepBatch, depth: IntArray, admitted: IntArray) -> F64Array:
    assert step.num_accepted is not None
    assert step.num_remaining is not None
    useful = np.minimum(step.num_accepted, step.num_remaining - 1)
    emitted = step.num_sampling + np.minimum(useful, admitted).sum(axis=1)
    if step.tables.by_depth is None:
        draft = np.where(depth > 0, step.tables.draft[step.num_reqs], 0.0)
    else:
        draft = step.tables.by_depth[depth, step.num_reqs]
    return np.asarray(emitted / (draft + step.tables.verify[step.num_target_tokens + admitted.sum(axis=1)]))


@pytest.mark.parametrize("cost", COST_SHAPES)
@pytest.mark.parametrize("draft_ms", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("by_depth", [True, False])
def test_it_is_no_worse_than_any_depth_with_the_oracle_nor_than_drafting_nothing(
    cost: str, draft_ms: float, by_depth: bool
) -> None:
    plan, step = states(cost, draft_ms, by_depth)
    depth = OracleSkip().plan(plan)
    drafted = replace(step, num_drafted=np.repeat(depth[:, None], 4, axis=1))
    reached = rate(step, depth, OracleSkip().admit(drafted))
    nothing = np.zeros_like(step.num_drafted)
    others = [rate(step, np.zeros_like(depth), nothing), rate(step, np.full_like(depth, 4), Oracle().admit(step))]
    for fixed in range(1, 5):
        shallow = replace(step, num_drafted=np.full_like(step.num_drafted, fixed))
        at = np.full_like(depth, fixed)
        others += [rate(step, at, Oracle("exact").admit(shallow)), rate(step, at, Oracle().admit(shallow))]
        others.append(rate(step, at, shallow.num_drafted))
    for other in others:
        assert (reached >= other * (1 - 1e-12)).all()
    assert (reached > others[0]).any()


def test_it_skips_where_drafting_is_dear_and_the_smallest_depth_of_equals_wins() -> None:
    plan, _ = states("proportional", 1000.0, True)
    assert not OracleSkip().plan(plan).any()
    free, _ = states("flat", 0.0, False)
    assert plan.num_accepted is not None
    assert free.num_accepted is not None
    assert free.num_remaining is not None
    useful = np.minimum(free.num_accepted, free.num_remaining - 1).max(axis=1)
    assert OracleSkip().plan(free).tolist() == np.clip(useful, 0, 4).tolist()
