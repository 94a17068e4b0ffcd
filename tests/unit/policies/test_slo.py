"""What the bound bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planning import batch_for, cost_tables

from avsim import policies
from avsim.errors import InputError
from avsim.policies import Adaptive, ServiceLevel
from avsim.policies.budget import best_budget, expected_tokens, ranked_survival, step_costs
from avsim.testing.steps import random_batches

# One sure request, and one that will get nothing out of a long step.
LIVE = np.array([[0.99, 0.05]] * 4)
BATCH = batch_for(LIVE, cost_tables(2, draft=1, per_token=2.0))


def test_the_sure_request_may_not_slow_the_other_one_down() -> None:
    """Step costs are 11 + 2 (2 + B) ms: B slots for the first leave the second with one token in 15 + 2 B ms."""
    assert Adaptive().admit(BATCH).tolist() == [[4, 0]]
    for bound, admitted in ((30.0, 4), (23.0, 4), (22.9, 3), (19.0, 2), (15.0, 0)):
        assert ServiceLevel(bound).admit(BATCH).tolist() == [[admitted, 0]]


def test_where_no_budget_keeps_the_bound_the_slowest_is_served_best() -> None:
    assert ServiceLevel(3.0).admit(BATCH).tolist() == [[0, 0]]
    # Both sure: every token more shortens both, down to the last one.
    both = batch_for(np.full((4, 2), 0.99), cost_tables(2, draft=1, per_token=2.0))
    assert ServiceLevel(3.0).admit(both).tolist() == [[4, 4]]


def test_a_loose_bound_is_adaptive() -> None:
    for batch in random_batches(Adaptive()):
        assert np.array_equal(ServiceLevel(1e6).admit(batch), Adaptive().admit(batch))


def test_bounding_the_mean_would_change_nothing() -> None:
    """N_sampling · C / N is lowest at adaptive's own budget: the reason why the slowest is bounded instead."""
    for every in random_batches(Adaptive()):
        batch = replace(every, num_sampling=every.num_sampling + 1)
        ranked = np.maximum(ranked_survival(batch.sizing, batch.num_drafted), 0)
        cost = step_costs(batch.num_reqs, batch.num_target_tokens, ranked.shape[1], batch.tables)
        mean_tpot = batch.num_sampling[:, None] * cost / expected_tokens(ranked, batch.num_sampling)
        beyond = np.arange(ranked.shape[1] + 1) > batch.num_drafted.sum(axis=1)[:, None]
        mean_tpot[beyond] = np.inf
        chosen = best_budget(batch, batch.sizing)
        assert mean_tpot[np.arange(len(chosen)), chosen] == pytest.approx(mean_tpot.min(axis=1))


def test_the_logit_limit_holds_and_bounds_are_times() -> None:
    assert ServiceLevel(30.0).admit(replace(BATCH, max_total_logits=4)).sum() == 2
    for spec in ("slo:0", "slo:-3", "slo:inf", "slo:nan"):
        with pytest.raises(InputError, match="finite and > 0"):
            policies.make(spec)
