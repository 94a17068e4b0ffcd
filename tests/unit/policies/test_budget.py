"""Survivals, the objective and the cap, on numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.costs import CostTables
from avsim.policies import NO_LOGIT_LIMIT, Adaptive, StepBatch
from avsim.policies.budget import allocate, best_budget, budget_cap, objective, ranked_survival, survival

CONFIDENCE = np.array([[[0.5, 1.0]], [[0.5, 0.5]], [[1.0, 0.5]]], dtype=np.float32)
DRAFTED = np.array([[3, 2]])


def batch(verify: list[float], *, limit: int = NO_LOGIT_LIMIT, draft: float = 0.0) -> StepBatch:
    two = np.array([2])
    tables = CostTables(np.full(3, draft), np.array(verify))
    return StepBatch(CONFIDENCE, CONFIDENCE, DRAFTED, two, two, two, tables, max_total_logits=limit)


def test_survivals_multiply_and_undrafted_slots_are_minus_one() -> None:
    got = survival(CONFIDENCE, DRAFTED)
    assert got.dtype == np.float32
    assert got[:, 0].T.tolist() == [[0.5, 0.25, 0.25], [1.0, 0.5, -1.0]]
    assert ranked_survival(CONFIDENCE, DRAFTED).tolist() == [[1.0, 0.5, 0.5, 0.25, 0.25, -1.0]]


def test_sizing_survivals_are_products_in_float64() -> None:
    """In float32 the last survival would be 0.001 to seven digits only; a budget can hang on the difference."""
    confidence = np.full((3, 1, 1), 0.1, dtype=np.float32)
    exact = float(np.float32(0.1)) ** 3
    assert ranked_survival(confidence, np.array([[3]]))[0, 2] == pytest.approx(exact, rel=1e-15)
    assert float(survival(confidence, np.array([[3]]))[2, 0, 0]) != exact


def test_the_objective_is_expected_tokens_per_ms() -> None:
    step = batch([1, 1, 2, 4, 4, 4, 4, 4, 4], draft=1.0)
    ranked = ranked_survival(step.sizing, step.num_drafted)
    got = objective(ranked, step.num_sampling, step.num_reqs, step.num_target_tokens, step.tables)
    assert got[0, :6].tolist() == pytest.approx([2 / 3, 3 / 5, 3.5 / 5, 4 / 5, 4.25 / 5, 4.5 / 5])


def test_the_first_of_equal_maxima_wins() -> None:
    # 2 tokens in 2 ms, then 3 in 3, 3.5 in 3.5 and 4 in 4: always 1 token per ms.
    assert best_budget(batch([1, 1, 2, 3, 3.5, 4, 9, 9, 9]), CONFIDENCE).tolist() == [0]
    assert best_budget(batch([1, 1, 2.5, 3, 3.5, 4, 9, 9, 9]), CONFIDENCE).tolist() == [1]


@pytest.mark.parametrize(("limit", "cap"), [(NO_LOGIT_LIMIT, 5), (7, 5), (6, 4), (2, 0), (1, 0), (0, 0)])
def test_the_cap_leaves_room_for_one_bonus_token_per_request(limit: int, cap: int) -> None:
    step = batch([1.0] * 9, limit=limit)
    assert budget_cap(step).tolist() == [cap]
    assert Adaptive().admit(step).sum() == cap


def test_ties_are_filled_by_slot_and_then_request() -> None:
    ones = np.ones((3, 1, 3), dtype=np.float32)
    got = [allocate(ones, np.array([budget]))[0].tolist() for budget in range(10)]
    assert got[:4] == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert got[5] == [2, 2, 1]
    assert got[9] == [3, 3, 3]


def test_float32_survivals_that_saturate_still_spend_the_budget_exactly() -> None:
    almost = np.full((7, 1, 64), np.float32(1) - np.float32(2**-25), dtype=np.float32)
    assert (almost == 1).all()
    for budget in (1, 63, 64, 65, 200, 448):
        assert allocate(almost, np.array([budget])).sum() == budget


def test_every_step_of_a_batch_has_its_own_size() -> None:
    tables = CostTables(np.ones(9), np.array([1.0] * 12 + [50.0] * 60))
    live = np.full((2, 3, 4), 0.9, dtype=np.float32)
    drafted = np.full((3, 4), 2)
    reqs, tokens = np.array([4, 4, 4]), np.array([4, 8, 11])
    step = StepBatch(live, live, drafted, reqs, reqs, tokens, tables)
    assert Adaptive().admit(step).sum(axis=1).tolist() == [7, 3, 0]


def test_no_steps_at_all_is_an_empty_decision() -> None:
    none = np.zeros(0, dtype=np.int64)
    live = np.zeros((3, 0, 4), dtype=np.float32)
    step = StepBatch(live, live, np.zeros((0, 4), dtype=np.int64), none, none, none, batch([1.0] * 9).tables)
    assert Adaptive().admit(step).shape == (0, 4)
