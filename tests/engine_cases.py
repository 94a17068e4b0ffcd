"""Small random workloads, for engines that are slow."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from avsim.costs import CostCard, CurveCost, LinearCost
from avsim.workload import Pool

CARD = CostCard("toy", "toy", "toy", "synthetic", "a test")
LINEAR = LinearCost(
    fixed_ms=2.0,
    per_token_us=300.0,
    per_kv_token_ns=5000.0,
    draft_fixed_ms=0.5,
    draft_per_request_token_us=40.0,
    card=CARD,
)
CLIFF = CurveCost(
    verify=((1, 1.0), (2, 1.1), (4, 1.3), (8, 1.9), (12, 9.0), (24, 12.0), (64, 30.0)),
    draft=((1, 0.2), (4, 0.4), (8, 0.7)),
    capture_limit=8,
    card=CARD,
)
COSTS = st.sampled_from([LINEAR, CLIFF])


def pool_of(
    num_slots: int, prompts: list[int], outputs: list[int], accepted: list[int], log_odds: Any, recorded: Any = None
) -> Pool:
    """Return a pool with a block at every output position; `accepted` is read in a circle."""
    output_len = np.array(outputs)
    rows = int(output_len.sum())
    start = np.concatenate(([0], np.cumsum(output_len)[:-1]))
    known = np.full(rows, num_slots) if recorded is None else np.resize(recorded, rows)
    taken = np.minimum(np.resize(accepted, rows), known)
    features = {"log_odds": np.asarray(log_odds, dtype=np.float32).reshape(num_slots, rows)}
    features["label"] = (np.arange(num_slots)[:, None] < taken).astype(np.float32)
    return Pool(
        num_slots, start, np.array(prompts), output_len, np.arange(len(outputs)), taken, known,
        np.full(rows, num_slots), features, np.zeros(rows, dtype=bool),
    )  # fmt: skip


@st.composite
def pools(draw: Any, *, max_output: int = 7, max_prompt: int = 12) -> Pool:
    """Draw two to five requests; some of them may be of one token."""
    slots, requests = draw(st.integers(1, 3)), draw(st.integers(2, 5))
    outputs = draw(st.lists(st.integers(1, max_output), min_size=requests, max_size=requests))
    outputs[0] = max(outputs[0], 2)
    prompts = draw(st.lists(st.integers(0, max_prompt), min_size=requests, max_size=requests))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = sum(outputs)
    return pool_of(
        slots, prompts, outputs, rng.integers(0, slots + 1, rows).tolist(), rng.normal(0, 2, (slots, rows)),
        rng.integers(0, slots + 1, rows) if draw(st.booleans()) else None,
    )  # fmt: skip


@st.composite
def orders(draw: Any, pool: Pool) -> list[int]:
    return draw(st.lists(st.integers(0, len(pool.start) - 1), min_size=2, max_size=9))


@st.composite
def arrivals_for(draw: Any, count: int) -> list[float]:
    """Draw rising times, ms; many at once, and some long after the engine has run dry."""
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 1.5, 4.0, 60.0]), min_size=count, max_size=count))
    return np.cumsum(gaps).tolist()
