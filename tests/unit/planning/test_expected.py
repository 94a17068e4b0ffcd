"""Steady steps of a policy on drawn blocks, where the answer is known without them."""

from __future__ import annotations

import numpy as np
import pytest
from laws import law_of

from avsim import policies
from avsim.planning.expected import expected_step
from avsim.planning.population import Latents, Population, Spread

CONDITIONAL = np.array([0.75, 0.6, 0.85, 0.7])
REQS, STEPS = 10, 60
POPULATION = Population.make(CONDITIONAL, Spread(1.3, 0.3), Latents.draw(4, STEPS, REQS, 5))
STEEP = law_of(fixed=5.0, per_token=0.2, draft_fixed=0.5).tables(REQS, 4)


def length(found) -> float:  # type: ignore[no-untyped-def]
    return 1 + float(found.accepted.sum()) / (STEPS * REQS)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_fixed_depths_emit_their_acceptance_length(depth: int) -> None:
    found = expected_step(policies.make(f"fixed:{depth}"), POPULATION, STEEP)
    assert (found.admitted == REQS * depth).all()
    assert length(found) == pytest.approx(1 + np.cumprod(CONDITIONAL)[:depth].sum(), abs=1e-8)


def test_plain_decoding_admits_nothing() -> None:
    found = expected_step(policies.make("none"), POPULATION, STEEP)
    assert not found.admitted.any()
    assert not found.accepted.any()


def test_adaptive_with_a_flat_cost_is_fixed_at_full_depth() -> None:
    flat = law_of(fixed=10.0, draft_fixed=1.0, draft_per_req=0.1).tables(REQS, 4)
    adaptive, fixed = (expected_step(policies.make(name), POPULATION, flat) for name in ("adaptive", "fixed:4"))
    assert np.array_equal(adaptive.admitted, fixed.admitted)
    assert adaptive.accepted == pytest.approx(fixed.accepted)


def test_adaptive_admits_nothing_where_a_token_costs_as_much_as_a_step() -> None:
    # R + Σ S over R + B falls in B, since every S is below 1.
    found = expected_step(policies.make("adaptive"), POPULATION, law_of(per_token=1.0).tables(REQS, 4))
    assert not found.admitted.any()


def test_without_spread_the_budget_is_that_of_the_best_depth() -> None:
    alike = Population.make(CONDITIONAL, Spread(0.0), Latents.draw(4, 3, REQS, 6))
    found = expected_step(policies.make("adaptive"), alike, STEEP)
    gained = np.concatenate(([0.0], np.repeat(np.cumprod(CONDITIONAL), REQS).cumsum()))
    budgets = np.arange(REQS * 4 + 1)
    best = int(((REQS + gained) / (5 + 0.2 * (REQS + budgets) + 0.5)).argmax())
    assert 0 < best < REQS * 4
    assert (found.admitted == best).all()
    assert found.accepted == pytest.approx(np.full(3, gained[best]), abs=1e-6)


def test_the_rejection_samplers_logits_bind() -> None:
    flat = law_of(fixed=10.0).tables(REQS, 4)
    found = expected_step(policies.make("adaptive"), POPULATION, flat, max_total_logits=REQS + 7)
    assert (found.admitted == 7).all()


def test_exploration_admits_more_and_the_same_every_time() -> None:
    plain = expected_step(policies.make("adaptive"), POPULATION, STEEP)
    one, two = (expected_step(policies.make("adaptive:explore=0.5"), POPULATION, STEEP) for _ in range(2))
    assert np.array_equal(one.admitted, two.admitted)
    assert one.admitted.sum() > plain.admitted.sum()
