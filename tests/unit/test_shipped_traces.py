"""The shipped traces against each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from avsim.costs.linear import step_counter
from avsim.policies import FixedDepth
from avsim.simulate import Arm, simulate
from avsim.sources import open_trace
from avsim.workload import Pool, request_sequences

TRACES = Path(__file__).parents[2] / "traces"


@pytest.mark.parametrize("drafter", ["eagle", "ngram"])
def test_a_walk_through_the_dense_trace_is_the_run_of_a_live_engine(drafter: str) -> None:
    """The same prompts through Transformers, a block at every position, and through a vLLM engine."""
    dense, live = (open_trace(TRACES / f"smollm2-{drafter}-{kind}") for kind in ("greedy", "live"))
    assert (dense.card.engine, live.card.engine) == ("transformers", "vllm")
    assert dense.requests["output_len"].to_list() == live.requests["output_len"].to_list()
    features = tuple({"log_odds"} & {*dense.card.recorded})
    truth, seen = dense.blocks(features), live.blocks(features)
    row_of = {pair: row for row, pair in enumerate(zip(truth.request.tolist(), truth.position.tolist(), strict=True))}
    at = [row_of[pair] for pair in zip(seen.request.tolist(), seen.position.tolist(), strict=True)]
    assert np.asarray(truth.num_drafted)[at].tolist() == np.asarray(seen.num_drafted).tolist()
    assert np.asarray(truth.num_accepted)[at].tolist() == np.asarray(seen.num_accepted).tolist()
    for name in features:
        drafted = np.isfinite(seen.features[name])
        apart = np.abs(truth.features[name][:, at] - seen.features[name])
        # Behind a rejection both go on with their own drafts, the same unless two logits are nearly equal.
        assert np.median(apart[drafted]) < 1e-4
        assert np.quantile(apart[drafted], 0.999) < 1e-2


def test_no_prompt_is_served_twice_and_every_category_is_there() -> None:
    for name in ("smollm2-eagle-greedy", "smollm2-draft26-greedy"):
        requests = open_trace(TRACES / name).requests
        assert requests["source"].n_unique() == len(requests) == 72
        assert set(requests["category"].unique()) == {"math", "code", "chat"}


def test_a_confidence_head_changes_no_draft() -> None:
    with_head, without = (open_trace(TRACES / f"smollm2-dspark-{name}") for name in ("greedy", "headless-greedy"))
    assert {*with_head.card.recorded} - {*without.card.recorded} == {"confidence"}
    one, other = with_head.blocks(("log_odds",)), without.blocks(("log_odds",))
    assert np.array_equal(one.num_accepted, other.num_accepted)
    assert np.array_equal(one.features["log_odds"], other.features["log_odds"])


def test_adaptive_verification_has_censored_its_trace() -> None:
    trace = open_trace(TRACES / "smollm2-adaptive-live")
    blocks = trace.blocks()
    assert trace.card.adaptive_verification
    assert 0.3 < 1 - blocks.num_admitted.sum() / blocks.num_drafted.sum() < 0.6
    # What the engine itself counted: accepted tokens per position.
    assert [int((np.asarray(blocks.num_accepted) > slot).sum()) for slot in range(3)] == [714, 214, 67]


def test_sampled_drafts_are_accepted_as_often_as_alpha_says() -> None:
    """α = Σ min(p, q) is the probability of acceptance before the token is drawn, given that the slot is reached."""
    trace = open_trace(TRACES / "smollm2-eagle-sampled")
    blocks = trace.blocks(("alpha",))
    accepted = np.asarray(blocks.num_accepted)
    for slot in range(trace.card.num_speculative_tokens):
        reached = accepted >= slot
        alpha = np.asarray(blocks.features["alpha"][slot][reached], dtype=np.float64)
        assert np.isfinite(alpha).all()
        surplus = (accepted[reached] > slot).sum() - alpha.sum()
        assert abs(surplus) < 4 * np.sqrt((alpha * (1 - alpha)).sum())


def test_only_what_the_drafter_proposed_is_verified() -> None:
    """An n-gram drafter often finds less than K tokens, or none."""
    trace = open_trace(TRACES / "smollm2-ngram-greedy")
    pool = Pool.from_trace(trace)
    order = request_sequences([np.arange(len(pool.start))], 1, [[0]])
    result = simulate(pool, Arm(FixedDepth(k=3)), order, 4, step_counter())
    drafted = accepted = 0
    for start, length in zip(pool.start.tolist(), pool.output_len.tolist(), strict=True):
        position = 0
        while position < length - 1:
            drafted += min(int(pool.num_drafted[start + position]), 3)
            here = min(int(pool.num_accepted[start + position]), 3)
            accepted += here
            position += here + 1
    assert 0 < drafted < 0.8 * 3 * int(result.whole.blocks[0])
    assert int(result.whole.drafted[0]) == int(result.whole.admitted[0]) == drafted
    assert int(result.whole.accepted[0]) == accepted
