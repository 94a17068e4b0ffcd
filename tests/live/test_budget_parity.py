"""avsim's adaptive policy against vLLM's AdaptiveVerificationManager, on vLLM's own bookkeeping of confidences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import vllm_reference as vllm
from budget_workloads import (
    CONFIDENCES,
    F32,
    Engine,
    Pair,
    Scheduled,
    curved_tables,
    flat_tables,
    knife_edge_tables,
)

from avsim.costs import CostTables
from avsim.policies import NO_LOGIT_LIMIT


@pytest.mark.parametrize("late_copies", [True, False], ids=["late", "early"])
@pytest.mark.parametrize("kind", CONFIDENCES)
@pytest.mark.parametrize("tables", ["curved", "knife-edge", "flat"])
def test_an_engine_under_churn(tables: str, kind: str, late_copies: bool) -> None:
    rng = np.random.default_rng([len(tables), len(kind), late_copies])
    budgets, trimmed = set(), 0
    for num_slots, max_num_reqs in ((1, 3), (4, 6), (7, 24)):
        max_num_tokens = max_num_reqs * (num_slots + 9)
        limit = int(rng.choice([NO_LOGIT_LIMIT, max_num_reqs * 3]))
        first = flat_tables(max_num_reqs, max_num_tokens)
        pair = Pair(max_num_reqs, num_slots, first, max_total_logits=limit, late_copies=late_copies)
        engine = Engine(pair, max_num_reqs, rng)
        for _ in range(150):
            step = engine.next_step()
            if not step:
                continue
            if tables == "curved":
                pair.use_tables(curved_tables(rng, max_num_reqs, max_num_tokens))
            elif tables == "knife-edge":
                pair.use_tables(knife_edge_tables(pair, step, rng, max_num_tokens))
            if any(request.num_drafts for request in step):  # vLLM asks for a budget only where there are drafts
                budget = pair.decide(step).budget
                budgets.add(budget)
                trimmed += budget < sum(request.num_drafts for request in step)
            pair.record(step, CONFIDENCES[kind](rng, (len(step), num_slots)))
        assert engine.left_out > 10
        assert engine.chunked > 3
    assert len(budgets) > 10
    assert trimmed > 10


# --- the sizing rule, one case at a time ----------------------------------------------------------------------------


def decoding(slot: int, drafts: int = 3) -> Scheduled:
    return Scheduled(slot, 1, drafts, samples=True)


def block(value: float, count: int = 1) -> F32:
    return np.full((count, 3), value, dtype=np.float32)


def sized_by(pair: Pair, slot: int) -> float:
    """Read vLLM's own sizing table."""
    return float(pair.manager.sizing[slot, 0])


@pytest.fixture
def pair() -> Pair:
    rng = np.random.default_rng(0)
    return Pair(4, 3, curved_tables(rng, 4, 64))


def admit_new(pair: Pair, slot: int, chunks: Sequence[int], confidence: float) -> None:
    """Prefill a request alone, one step per chunk, each step drafting a block of that confidence (rising by 0.01)."""
    pair.add_request(slot, sum(chunks))
    for index, tokens in enumerate(chunks):
        step = [Scheduled(slot, tokens, 0, samples=index == len(chunks) - 1)]
        pair.record(step, block(confidence + 0.01 * index))


def test_a_block_is_sized_by_the_block_before_it(pair: Pair) -> None:
    admit_new(pair, 0, [5], 0.10)
    expected = 1.0  # one chunk of prompt: the first block is sized at 1.0
    for drafted in (0.20, 0.30, 0.40):
        assert sized_by(pair, 0) == np.float32(expected)
        pair.decide([decoding(0)])
        expected = float(pair.confidences.live[0, 0])
        pair.record([decoding(0)], block(drafted))
    assert sized_by(pair, 0) == np.float32(0.30)


def test_several_chunks_leave_the_draft_made_mid_prompt(pair: Pair) -> None:
    admit_new(pair, 0, [5, 4, 3], 0.10)
    assert sized_by(pair, 0) == np.float32(0.11)  # of the last chunk but one
    pair.decide([decoding(0)])


def test_a_request_left_out_is_sized_by_its_live_values(pair: Pair) -> None:
    admit_new(pair, 0, [5], 0.10)
    admit_new(pair, 1, [5], 0.50)
    pair.decide([decoding(0), decoding(1)])
    pair.record([decoding(0), decoding(1)], block(0.60, 2))
    for _ in range(2):  # left out of one step, or of several in a row
        pair.decide([decoding(1)])
        pair.record([decoding(1)], block(0.70))
        assert sized_by(pair, 0) == pair.confidences.live[0, 0] == np.float32(0.60)
    pair.decide([decoding(0), decoding(1)])
    pair.record([decoding(0), decoding(1)], block(0.80, 2))
    assert sized_by(pair, 0) == np.float32(0.60)  # back to the block before
    pair.decide([decoding(0), decoding(1)])


def test_a_new_request_left_out_of_its_second_step_is_never_sized_at_one(pair: Pair) -> None:
    admit_new(pair, 1, [5], 0.50)
    admit_new(pair, 0, [5], 0.10)
    pair.decide([decoding(1)])
    pair.record([decoding(1)], block(0.60))
    assert sized_by(pair, 0) == np.float32(0.10)


def test_a_reused_slot_forgets_the_request_before(pair: Pair) -> None:
    admit_new(pair, 0, [5], 0.10)
    for _ in range(3):
        pair.decide([decoding(0)])
        pair.record([decoding(0)], block(0.20))
    admit_new(pair, 0, [2], 0.30)
    assert sized_by(pair, 0) == 1.0
    pair.decide([decoding(0)])


def test_a_request_mid_prompt_counts_as_a_request_but_not_as_one_that_samples() -> None:
    """Its tokens are in T, it is in num_reqs, and it adds nothing to the numerator."""
    verify = 1.0 + 0.6 * np.maximum(np.arange(20) - 7, 0)  # flat up to T = 1 + 6
    mid, final = Scheduled(1, 6, 0, samples=False), Scheduled(1, 6, 0, samples=True)
    pair = Pair(2, 3, CostTables(np.zeros(3), verify))
    admit_new(pair, 0, [5], 0.9)
    pair.add_request(1, 20)
    assert pair.decide([decoding(0), mid]).budget == 3  # 4 tokens in 2.8 ms beat 1 in 1 ms
    assert pair.decide([decoding(0), final]).budget == 0  # 5 tokens in 2.8 ms do not beat 2 in 1 ms …
    pair.use_tables(CostTables(np.array([0.0, 0.0, 100.0]), verify))
    assert pair.decide([decoding(0), final]).budget == 3  # … unless drafting for two requests takes 100 ms anyway


@pytest.mark.parametrize(("vocab", "limit"), [(129_280, 2076), (262_144, 1024), (2**31, 1), (32_000, 8388)])
def test_the_rejection_samplers_logits_cap_the_budget(vocab: int, limit: int) -> None:
    assert vllm.get_max_chunk_logits(vocab) == max(1, 2**30 // (4 * vocab)) == limit
    num_reqs, num_slots = 256, 8
    pair = Pair(num_reqs, num_slots, flat_tables(num_reqs, num_reqs * 9), max_total_logits=limit)
    rng = np.random.default_rng(vocab)
    step = [decoding(slot, num_slots) for slot in range(num_reqs)]
    prompts = [Scheduled(slot, 1, 0, samples=True) for slot in range(num_reqs)]
    for slot in range(num_reqs):
        pair.add_request(slot, 1)
    pair.record(prompts, CONFIDENCES["spread"](rng, (num_reqs, num_slots)))
    assert pair.decide(step).budget == max(
        0, min(num_reqs * num_slots, limit - num_reqs)
    )  # all new: every survival ties
    pair.record(step, CONFIDENCES["spread"](rng, (num_reqs, num_slots)))
    assert pair.decide(step).budget == max(0, min(num_reqs * num_slots, limit - num_reqs))


def test_the_first_of_several_maxima_wins() -> None:
    """New requests at 1.0 under a cost equal to the tokens: every budget is worth exactly 1 token per ms."""
    pair = Pair(2, 3, CostTables(np.zeros(3), np.maximum(np.arange(20.0), 1e-6)))
    pair.add_request(0, 1)
    pair.record([Scheduled(0, 1, 0, samples=True)], block(0.5))
    assert pair.decide([decoding(0)]).budget == 0
    verify = np.maximum(np.arange(20.0), 1e-6)
    verify[1] = 1.5  # B = 0 is worse now, and B = 1, 2, 3 tie
    pair.use_tables(CostTables(np.zeros(3), verify))
    assert pair.decide([decoding(0)]).budget == 1


@pytest.mark.parametrize("kind", CONFIDENCES)
def test_budgets_that_hang_on_the_last_bit(kind: str) -> None:
    """One wide step at a time, so that sums are long and the objective is as flat as float64 allows."""
    rng = np.random.default_rng(len(kind))
    num_reqs, num_slots = 64, 7
    pair = Pair(num_reqs, num_slots, flat_tables(num_reqs, 600))
    step = [decoding(slot, num_slots) for slot in range(num_reqs)]
    for slot in range(num_reqs):
        pair.add_request(slot, 1)
    budgets = set()
    for _ in range(200):
        pair.record(step, CONFIDENCES[kind](rng, (num_reqs, num_slots)))
        pair.use_tables(knife_edge_tables(pair, step, rng, 600))
        budgets.add(pair.decide(step).budget)
    assert len(budgets) > 5
