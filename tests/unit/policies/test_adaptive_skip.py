"""When to draft, how deep, and how to go on knowing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planning import NUM_SLOTS, batch_for, cost_tables, outcome_of, plan_for, serve, shallow

from avsim.errors import InputError
from avsim.policies import Adaptive, AdaptiveSkip, OracleSkip
from avsim.policies.adaptive_skip import ENOUGH, LEVELS
from avsim.policies.budget import objective, ranked_survival
from avsim.testing.steps import random_batches

GOOD, BAD = np.full((NUM_SLOTS, 16), 0.95), np.full((NUM_SLOTS, 16), 0.2)
CHEAP, DEAR = (cost_tables(16, draft=ms, per_token=0.2) for ms in (1.0, 20.0))


def test_it_drafts_all_while_that_pays_and_nothing_where_it_does_not() -> None:
    assert set(serve(AdaptiveSkip(), CHEAP, 16, GOOD, 4, 30)) == {4}
    found = serve(AdaptiveSkip(probe=10), DEAR, 16, BAD, 0, 64)
    start = ENOUGH // 16
    assert found[:start] == [4] * start
    assert found[start:] == ([0] * 9 + [4]) * 6


def test_it_drafts_as_deep_as_pays() -> None:
    """Two slots are nearly sure and the rest hopeless: drafting them would cost 2.5 ms each."""
    live = np.array([0.99, 0.99, 0.05, 0.05])[:, None].repeat(16, axis=1)
    found = serve(AdaptiveSkip(probe=8), cost_tables(16, draft=10, per_token=0.1), 16, live, 2, 28)
    assert found[4:] == ([2] * 7 + [4]) * 3


def test_a_depth_that_costs_nothing_more_is_taken() -> None:
    tables = cost_tables(16, draft=1, per_token=0.2)
    flat = replace(tables, by_depth=np.where(np.arange(NUM_SLOTS + 1)[:, None] > 0, tables.draft, 0.0))
    hopeless = np.array([0.99, 0.99, 0.0, 0.0])[:, None].repeat(16, axis=1)
    assert set(serve(AdaptiveSkip(), flat, 16, hopeless, 2, 20)) == {4}
    assert set(serve(AdaptiveSkip(), replace(flat, by_depth=None), 16, hopeless, 2, 20)) == {4}


@pytest.mark.parametrize("probe", [0, 20])
def test_without_probing_a_hard_stretch_ends_drafting_for_good(probe: int) -> None:
    policy = AdaptiveSkip(probe=probe, horizon=100)
    tables = cost_tables(16, draft=4.0, per_token=0.2)
    memory = policy.fresh_memory(NUM_SLOTS)[:, None]
    found = []
    for step in range(400):
        depth = int(policy.plan(plan_for(tables, 16, memory))[0])
        memory = policy.remember(memory, outcome_of(BAD if step < 100 else GOOD, depth, 0))
        found.append(depth)
    assert max(found[50:99]) == (4 if probe else 0)
    assert found[-1] == (4 if probe else 0)


def test_what_is_remembered_of_one_batch_is_what_it_can_gain() -> None:
    """With R = J requests the remembered parts are the survivals themselves, so the rate is that of the budget rule."""
    policy = AdaptiveSkip(probe=0, horizon=LEVELS)
    live = np.random.default_rng(2).uniform(0.3, 1, (NUM_SLOTS, LEVELS))
    memory = policy.remember(policy.fresh_memory(NUM_SLOTS)[:, None], outcome_of(live, 4, 0))
    batch = batch_for(live, cost_tables(LEVELS, draft=0, per_token=0.5))
    sizes = batch.num_sampling, batch.num_reqs, batch.num_target_tokens
    parts = objective(ranked_survival(batch.live, batch.num_drafted), *sizes, batch.tables).max()
    plain = LEVELS / batch.tables.verify[LEVELS]
    # Drafting pays up to the draft cost at which both rates are equal.
    for draft, expected in ((0.98, 4), (1.02, 0)):
        tables = cost_tables(LEVELS, draft=0, per_token=0.5)
        fair = _break_even(batch, plain)
        costs = np.where(np.arange(NUM_SLOTS + 1)[:, None] > 0, draft * fair, 0.0) + 0 * tables.draft
        plan = plan_for(replace(tables, by_depth=costs), LEVELS, memory)
        assert policy.plan(plan).tolist() == [expected]
    assert parts > plain


def _break_even(batch, plain: float) -> float:  # type: ignore[no-untyped-def]
    ranked = ranked_survival(batch.live, batch.num_drafted)[0]
    tokens = LEVELS + np.concatenate(([0.0], np.cumsum(ranked)))
    return float((tokens / plain - batch.tables.verify[LEVELS + np.arange(len(tokens))]).max())


def test_order_statistics_see_what_a_mean_would_not() -> None:
    """Half of the requests are sure and half hopeless: only their top is worth verifying."""
    mixed = np.where(np.arange(16) % 2, 0.98, 0.02) * np.ones((NUM_SLOTS, 1))
    level = np.full((NUM_SLOTS, 16), 0.5)
    tables = cost_tables(16, draft=2.0, per_token=0.6)
    assert serve(AdaptiveSkip(probe=0), tables, 16, mixed, 0, 20)[-1] == 4
    assert serve(AdaptiveSkip(probe=0), tables, 16, level, 0, 20)[-1] == 0


def test_full_drafts_are_budgeted_as_adaptive_does() -> None:
    for batch in random_batches(Adaptive()):
        full = replace(batch, num_drafted=np.full_like(batch.num_drafted, len(batch.live)))
        if batch.tables.by_depth is not None:
            full = replace(full, tables=replace(batch.tables, by_depth=batch.tables.by_depth * 0 + batch.tables.draft))
        assert np.array_equal(AdaptiveSkip().admit(full), Adaptive().admit(full))


def test_shallow_drafts_are_budgeted_at_their_own_cost() -> None:
    """A dear draft that is paid already is worth following up; a cheap one is not."""
    batch = shallow(batch_for(np.full((NUM_SLOTS, 4), 0.5), cost_tables(4, draft=40, per_token=3.0)), 1)
    assert Adaptive().admit(batch).sum() == 4
    assert AdaptiveSkip().admit(batch).sum() == 4
    cheap = replace(batch.tables, by_depth=batch.tables.by_depth * np.array([0, 0.01, 1, 1, 1])[:, None])
    assert Adaptive().admit(replace(batch, tables=cheap)).sum() == 4
    assert AdaptiveSkip().admit(replace(batch, tables=cheap)).sum() == 0


def test_the_logit_limit_caps_what_a_depth_is_worth() -> None:
    policy = AdaptiveSkip(probe=0)
    memory = policy.fresh_memory(NUM_SLOTS)[:, None]
    for _ in range(8):
        memory = policy.remember(memory, outcome_of(GOOD, 4, 4))
    plan = plan_for(cost_tables(16, draft=8, per_token=0.1), 16, memory)
    assert policy.plan(plan).tolist() == [4]
    assert policy.plan(replace(plan, max_total_logits=16 + 16)).tolist() == [1]
    assert policy.plan(replace(plan, max_total_logits=17)).tolist() == [0]


def test_options_and_missing_parts() -> None:
    with pytest.raises(InputError, match="horizon"):
        AdaptiveSkip(horizon=0)
    with pytest.raises(ValueError, match="memory"):
        AdaptiveSkip().plan(plan_for(CHEAP, 16))
    with pytest.raises(ValueError, match="num_accepted"):
        OracleSkip().plan(plan_for(CHEAP, 16))


def test_deep_slots_remembered_from_better_days_are_no_better_than_the_first() -> None:
    levels = np.repeat([0.1, 0.1, 0.9, 0.9], LEVELS)
    memory = np.concatenate((levels, np.full(NUM_SLOTS, 1000.0), [0.0]))[:, None]
    plan = plan_for(cost_tables(16, draft=6, per_token=0.2), 16, memory)
    assert AdaptiveSkip().plan(plan).tolist() == [0]
    memory[: LEVELS * NUM_SLOTS] = 0.9
    assert AdaptiveSkip().plan(plan).tolist() == [4]


def test_of_equal_depths_the_deepest_is_drafted_in_each_step() -> None:
    """Slots that are never accepted: free to draft for 16 requests, dear for 8, in one batch of steps."""
    sizes = np.array([16, 8])
    by_depth = np.zeros((NUM_SLOTS + 1, 17))
    by_depth[:, 8] = np.arange(NUM_SLOTS + 1)
    memory = np.repeat(np.concatenate((np.zeros(LEVELS * NUM_SLOTS), np.full(NUM_SLOTS, 1000.0), [0.0]))[:, None], 2, 1)
    plan = plan_for(replace(CHEAP, by_depth=by_depth), 16, memory)
    both = replace(
        plan,
        sizing=np.repeat(plan.sizing, 2, axis=1),
        ready=np.arange(16) < sizes[:, None],
        num_reqs=sizes,
        num_sampling=sizes,
        num_target_tokens=sizes,
    )
    assert AdaptiveSkip().plan(both).tolist() == [4, 0]
