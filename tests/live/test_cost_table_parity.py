"""avsim's cost staircase against the tables that vLLM builds from a profile."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import vllm_reference as vllm
from hypothesis import given, settings
from hypothesis import strategies as st

from avsim import costs
from avsim.costs import CostCard, CurveCost, staircase

Curve = list[tuple[int, float]]


def assert_same_tables(draft: Curve, verify: Curve, max_num_reqs: int, max_num_tokens: int, capture_limit: int) -> None:
    """Require the same doubles from `staircase` with vLLM's floors, and from the cost model's own tables."""
    theirs = vllm.build_cost_tables_from_curves(draft, verify, max_num_reqs, max_num_tokens, capture_limit)
    np.testing.assert_array_equal(np.maximum(staircase(max_num_reqs, draft, capture_limit), 0.0), theirs[0])
    np.testing.assert_array_equal(np.maximum(staircase(max_num_tokens, verify, capture_limit), 1e-6), theirs[1])
    if all(ms > 0 for _, ms in draft + verify):
        card = CostCard("test", "none", "none", "synthetic", "this test")
        model = CurveCost(verify=tuple(verify), draft=tuple(draft), capture_limit=capture_limit, card=card)
        ours = model.tables(max_num_reqs, max_num_tokens)
        np.testing.assert_array_equal(ours.draft, theirs[0])
        np.testing.assert_array_equal(ours.verify, theirs[1])


def curves(largest: int, lowest_ms: float) -> st.SearchStrategy[Curve]:
    """Curves of distinct sizes; times need not rise, as medians of noisy timings do not."""
    sizes = st.lists(st.integers(1, largest), min_size=1, max_size=12, unique=True).map(sorted)
    ms = st.floats(lowest_ms, 500.0, allow_nan=False)
    return sizes.flatmap(lambda found: st.tuples(*[st.tuples(st.just(size), ms) for size in found]).map(list))


@settings(max_examples=500, deadline=None, derandomize=True)
@given(
    draft=curves(40, 0.001),
    verify=curves(300, 0.001),
    max_num_reqs=st.integers(1, 64),
    max_num_tokens=st.integers(1, 500),
    limit=st.one_of(st.just(0), st.integers(1, 320)),
    limit_is_a_size=st.booleans(),
)
def test_random_curves(
    draft: Curve, verify: Curve, max_num_reqs: int, max_num_tokens: int, limit: int, limit_is_a_size: bool
) -> None:
    capture_limit = verify[limit % len(verify)][0] if limit_is_a_size else limit
    assert_same_tables(draft, verify, max_num_reqs, max_num_tokens, capture_limit)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(draft=curves(40, -5.0), verify=curves(300, -5.0), capture_limit=st.sampled_from([0, 16, 256]))
def test_times_that_are_not_positive_meet_the_floors(draft: Curve, verify: Curve, capture_limit: int) -> None:
    """vLLM floors what a profile cannot mean; avsim's cost model refuses such a curve, its staircase does not."""
    assert_same_tables(draft, verify, 64, 400, capture_limit)


def test_the_cliff_at_the_capture_limit() -> None:
    verify = [(1, 5.0), (8, 6.0), (16, 7.0), (24, 40.0), (32, 44.0)]
    assert_same_tables([(1, 0.5), (32, 1.0)], verify, 48, 64, 16)
    table = staircase(64, verify, 16)
    assert (table[16], table[17], table[24], table[28], table[64]) == (7.0, 40.0, 40.0, 42.0, 60.0)


@pytest.mark.parametrize("name", [name for name in costs.presets() if isinstance(costs.load(name), CurveCost)])
def test_shipped_curves(name: str) -> None:
    model = costs.load(name)
    assert isinstance(model, CurveCost)
    theirs = vllm.build_cost_tables_from_curves(list(model.draft), list(model.verify), 1024, 8192, model.capture_limit)
    ours = model.tables(1024, 8192)
    np.testing.assert_array_equal(ours.draft, theirs[0])
    np.testing.assert_array_equal(ours.verify, np.maximum(theirs[1] + model.overhead_ms, 1e-6))


@pytest.mark.parametrize("capture_limit", [0, 64, 512, 768, 1024])
def test_the_published_b300_curve(capture_limit: int) -> None:
    folder = os.environ.get("AVSIM_REFERENCE")
    if not folder:
        pytest.skip("AVSIM_REFERENCE is not set: it names the folder that holds reference/cost_*.csv")
    draft = read_curve(Path(folder) / "reference" / "cost_draft_v4flash_tp4_b300.csv")
    verify = read_curve(Path(folder) / "reference" / "cost_verify_v4flash_tp4_b300.csv")
    assert_same_tables(draft, verify, 1024, 8192, capture_limit)


def read_curve(path: Path) -> Curve:
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [(int(size), float(ms)) for size, ms, kind in rows if kind == "median"]
