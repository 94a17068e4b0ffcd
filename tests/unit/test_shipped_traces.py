"""The shipped traces against each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from avsim.sources import open_trace

TRACES = Path(__file__).parents[2] / "traces"


def test_a_walk_through_the_dense_trace_is_the_run_of_a_live_engine() -> None:
    """The same prompts through Transformers, a block at every position, and through a vLLM engine."""
    dense, live = open_trace(TRACES / "smollm2-eagle-greedy"), open_trace(TRACES / "smollm2-eagle-live")
    assert dense.card.engine == "transformers"
    assert live.card.engine == "vllm"
    assert dense.requests["output_len"].to_list() == live.requests["output_len"].to_list()
    truth, seen = dense.blocks(("log_odds",)), live.blocks(("log_odds",))
    row_of = {pair: row for row, pair in enumerate(zip(truth.request.tolist(), truth.position.tolist(), strict=True))}
    at = [row_of[pair] for pair in zip(seen.request.tolist(), seen.position.tolist(), strict=True)]
    accepted = np.minimum(np.asarray(truth.num_accepted)[at], np.asarray(seen.num_admitted))
    assert accepted.tolist() == np.asarray(seen.num_accepted).tolist()
    drafted = np.isfinite(seen.features["log_odds"])
    apart = np.abs(truth.features["log_odds"][:, at] - seen.features["log_odds"])
    # Behind a rejection both go on with their own drafts, which are the same unless two logits are nearly equal.
    assert np.median(apart[drafted]) < 1e-4
    assert np.quantile(apart[drafted], 0.999) < 1e-2


def test_no_prompt_is_served_twice_and_every_category_is_there() -> None:
    for name in ("smollm2-eagle-greedy", "smollm2-draft26-greedy"):
        requests = open_trace(TRACES / name).requests
        assert requests["source"].n_unique() == len(requests) == 72
        assert set(requests["category"].unique()) == {"math", "code", "chat"}


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
