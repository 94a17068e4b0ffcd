"""A ratio of sums is not a sum of ratios."""

from __future__ import annotations

import numpy as np
import pytest
from planning import NUM_SLOTS, batch_for, cost_tables, outcome_of

from avsim.errors import InputError
from avsim.policies import Adaptive, Policy, Renewal
from avsim.testing.steps import random_batches

HARD, EASY = np.full((NUM_SLOTS, 2), 0.6), np.full((NUM_SLOTS, 2), 0.99)
TABLES = cost_tables(2, draft=0, per_token=1.0, fixed=2.0)


def run(policy: Policy, steps: int) -> float:
    """Serve hard and easy steps in turn, with confidences that come true on average; return tokens per ms."""
    memory = policy.fresh_memory(NUM_SLOTS)[:, None]
    tokens = ms = 0.0
    for step in range(steps):
        live = (HARD, EASY)[step % 2]
        batch = batch_for(live, TABLES, memory if len(memory) else None)
        admitted = policy.admit(batch)
        survivals = np.cumprod(live, axis=0)
        emitted = 2 + np.where(np.arange(NUM_SLOTS)[:, None] < admitted[0], survivals, 0).sum()
        time = TABLES.verify[2 + admitted.sum()]
        memory = policy.remember(memory, outcome_like(emitted, time))
        tokens, ms = tokens + emitted, ms + time
    return tokens / ms


def outcome_like(emitted: float, ms: float):  # type: ignore[no-untyped-def]
    outcome = outcome_of(HARD, NUM_SLOTS, 0, ms)
    return type(outcome)(
        outcome.live, outcome.num_drafted, outcome.num_admitted, outcome.num_accepted,
        np.array([[emitted, 0.0]]), outcome.depth, outcome.num_reqs, outcome.ms,
    )  # fmt: skip


def test_over_a_run_of_unlike_steps_it_beats_the_best_ratio_of_each() -> None:
    """A hard step's own best ratio takes slots that are worth 0.6 tokens per ms; the run makes more elsewhere."""
    per_step, per_run = run(Adaptive(), 2000), run(Renewal(horizon=0), 2000)
    assert per_run > per_step * 1.001


def test_its_rate_is_the_best_that_any_pair_of_budgets_reaches() -> None:
    """Dinkelbach's fixed point, against every pair of budgets for hard and easy steps."""
    best = 0.0
    for hard in range(2 * NUM_SLOTS + 1):
        for easy in range(2 * NUM_SLOTS + 1):
            tokens, ms = 0.0, 0.0
            for live, budget in ((HARD, hard), (EASY, easy)):
                ranked = -np.sort(-np.cumprod(live, axis=0).ravel())
                tokens, ms = tokens + 2 + ranked[:budget].sum(), ms + TABLES.verify[2 + budget]
            best = max(best, tokens / ms)
    assert run(Renewal(horizon=0), 4000) == pytest.approx(best, rel=1e-3)


def test_at_the_steps_own_best_rate_it_decides_as_adaptive() -> None:
    for batch in random_batches(Adaptive()):
        reference = Adaptive().admit(batch)
        fresh = np.zeros((3, len(reference)))
        assert np.array_equal(Renewal().admit(type(batch)(**_with(batch, fresh))), reference)


def _with(batch, memory):  # type: ignore[no-untyped-def]
    return {name: getattr(batch, name) for name in batch.__slots__} | {"memory": memory}


def test_the_horizon_fades_old_steps() -> None:
    policy = Renewal(horizon=4)
    memory = policy.fresh_memory(NUM_SLOTS)[:, None]
    for ms in (10.0, 10.0, 10.0, 10.0, 20.0):
        memory = policy.remember(memory, outcome_of(HARD, 4, 0, ms))
    assert memory[:, 0].tolist() == pytest.approx([2, 12.5, 4])
    for horizon, seen in ((1000, 1000), (0, 1500)):
        memory = Renewal().fresh_memory(NUM_SLOTS)[:, None]
        for _ in range(1500):
            memory = Renewal(horizon=horizon).remember(memory, outcome_of(HARD, 4, 0))
        assert memory[2, 0] == seen
    with pytest.raises(InputError, match="horizon"):
        Renewal(horizon=-1)
