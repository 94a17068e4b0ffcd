"""Budgets and their allocation against slow loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from avsim.costs import CostTables
from avsim.policies import NO_LOGIT_LIMIT, StepBatch
from avsim.policies.budget import allocate, best_budget, budget_cap, survival
from avsim.testing.reference import best_prefix_budget, exact_survivals

LEVELS = st.sampled_from([0.0, 0.25, 0.5, 1.0])
ANY = st.floats(0, 1, width=32)
TIED_COSTS = st.sampled_from([0.0, 0.25, 1.0])
ANY_COSTS = st.floats(0, 10)


@st.composite
def batches(draw, confidence=ANY, increments=ANY_COSTS):
    """Draw one to three steps, ragged, with a verify table that rises by `increments`."""
    slots, steps, reqs = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    shape = (slots, steps, reqs)

    def array(values, count, dtype):
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype=dtype)

    live = array(confidence, slots * steps * reqs, np.float32).reshape(shape)
    sizing = array(confidence, slots * steps * reqs, np.float32).reshape(shape)
    drafted = array(st.integers(0, slots), steps * reqs, np.int64).reshape(steps, reqs)
    num_reqs = (drafted > 0).sum(axis=1) + array(st.integers(0, 1), steps, np.int64)
    tokens = num_reqs + array(st.integers(0, 5), steps, np.int64)
    size = int(tokens.max()) + slots * reqs + 1
    verify = 1.0 + np.cumsum(array(increments, size, np.float64))
    tables = CostTables(np.full(reqs + 2, draw(increments)), verify)
    limit = draw(st.sampled_from([NO_LOGIT_LIMIT, 0, 3, 8]))
    return StepBatch(live, sizing, drafted, num_reqs, num_reqs, tokens, tables, max_total_logits=limit)


def slow_allocation(survivals: np.ndarray, budget: int) -> list[int]:
    slots, reqs = survivals.shape
    order = sorted((-survivals[slot, req], slot, req) for slot in range(slots) for req in range(reqs))
    admitted = [0] * reqs
    for _, _, req in order[:budget]:
        admitted[req] += 1
    return admitted


@given(st.one_of(batches(), batches(confidence=LEVELS)), st.data())
def test_allocation_spends_the_budget_on_prefixes_best_first(batch, data):
    survivals = survival(batch.live, batch.num_drafted)
    budget = np.array([data.draw(st.integers(0, int(total))) for total in batch.num_drafted.sum(axis=1)])
    admitted = allocate(survivals, budget)
    assert (admitted.sum(axis=1) == budget).all()
    assert (admitted >= 0).all()
    assert (admitted <= batch.num_drafted).all()
    for step in range(len(budget)):
        assert admitted[step].tolist() == slow_allocation(survivals[:, step], int(budget[step]))


@given(batches(confidence=LEVELS, increments=TIED_COSTS))
def test_budget_is_the_first_of_equally_good_ones(batch):
    """Every number is a dyadic fraction here, so that ties are exact on both sides."""
    expected = [
        best_prefix_budget(batch, step, exact_survivals(batch.sizing, batch, step), early_stop=False)
        for step in range(len(batch.num_reqs))
    ]
    assert best_budget(batch, batch.sizing).tolist() == expected


@given(batches())
def test_budget_is_a_maximum_of_the_objective(batch):
    """Against plain float64 loops; where two budgets are equal to rounding, either will do."""
    budget = best_budget(batch, batch.sizing)
    assert (budget <= budget_cap(batch)).all()
    for step, chosen in enumerate(budget.tolist()):
        survivals = []
        for req, drafted in enumerate(batch.num_drafted[step].tolist()):
            product = 1.0
            for slot in range(drafted):
                product *= float(batch.sizing[slot, step, req])
                survivals.append(product)
        survivals.sort(reverse=True)
        base = int(batch.num_target_tokens[step])
        draft = float(batch.tables.draft[batch.num_reqs[step]])
        values = [
            (int(batch.num_sampling[step]) + sum(survivals[:count]))
            / (draft + float(batch.tables.verify[base + count]))
            for count in range(int(budget_cap(batch)[step]) + 1)
        ]
        assert values[chosen] >= max(values) * (1 - 1e-12)
        assert all(value <= values[chosen] * (1 + 1e-12) for value in values[:chosen])
