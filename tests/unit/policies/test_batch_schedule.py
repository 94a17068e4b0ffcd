"""vLLM's table: how it is read, and what happens at a boundary."""

from __future__ import annotations

import numpy as np
import pytest
from planning import NUM_SLOTS, cost_tables, outcome_of, plan_for

from avsim import policies, registry
from avsim.errors import InputError
from avsim.policies import BatchSchedule

TABLES = cost_tables(64, draft=1, per_token=1)
LIVE = np.ones((NUM_SLOTS, 1))


@pytest.mark.parametrize(
    ("table", "num_slots", "expected"),
    [
        ("1-2:5/3-4:3/5-9:0", 7, [5, 5, 3, 3, 0, 0, 0, 0, 0, 0]),
        ("6-7:2/1-3:5", 4, [4, 4, 4, 4, 4, 2, 2, 2, 2, 2]),
        ("1-1:9/3-3:1", 4, [4, 4, 1, 1, 1, 1]),
    ],
)
def test_it_reads_as_vllm_reads_it(table: str, num_slots: int, expected: list[int]) -> None:
    """`expected` is what vLLM 0.33's `build_dynamic_sd_schedule_lookup` returned, for batch sizes from 1."""
    policy = BatchSchedule(table, lag=0)
    got = []
    for size in range(1, len(expected) + 1):
        plan = plan_for(cost_tables(size, draft=1, per_token=1), size)
        wide = np.ones((num_slots, 1, size), dtype=np.float32)
        got.append(int(policy.plan(type(plan)(wide, plan.ready, *([plan.num_reqs] * 3), plan.tables))[0]))
    assert got == expected
    assert policy.depth(num_slots) == max(expected)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("1-32", "cannot read '1-32'; write ranges"),
        ("1-32:5/", "cannot read ''"),
        ("1-32:x", "cannot read"),
        ("2-32:5", "must begin at batch size 1, not 2"),
        ("0-3:5", "batch size 0 lies in two ranges"),
        ("1-32:5/32-64:3", "batch size 32 lies in two ranges"),
        ("1-:5/64-128:3", "batch size 64 lies in two ranges"),
        ("1-8:5/16-9:3", "range 16-9 ends before it begins"),
        ("1-8:0/9-:0", "no range of .* drafts; plain decoding is the policy 'none'"),
    ],
)
def test_tables_that_make_no_sense(table: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        BatchSchedule(table)


def test_specs() -> None:
    spec = "batch-schedule:1-32:5/33-128:3/129-:0,lag=2,hysteresis=4"
    assert registry.format_spec(policies.make(spec)) == spec
    with pytest.raises(InputError, match="at least 0"):
        BatchSchedule("1-:2", lag=-1)


def depths(policy: BatchSchedule, sizes: list[int]) -> list[int]:
    memory = policy.fresh_memory(NUM_SLOTS)[:, None]
    found = []
    for size in sizes:
        found.append(int(policy.plan(plan_for(TABLES, size, memory))[0]))
        memory = policy.remember(memory, outcome_of(np.ones((NUM_SLOTS, size)), found[-1], 0))
    return found


def test_the_batch_size_that_is_read_is_old() -> None:
    sizes = [2, 9, 9, 2, 2, 2]
    assert depths(BatchSchedule("1-4:3/5-:0", lag=0), sizes) == [3, 0, 0, 3, 3, 3]
    assert depths(BatchSchedule("1-4:3/5-:0"), sizes) == [3, 3, 0, 0, 3, 3]
    assert depths(BatchSchedule("1-4:3/5-:0", lag=2), sizes) == [3, 0, 3, 0, 0, 3]


def queue(policy: BatchSchedule, steps: int = 400) -> list[int]:
    """Serve one arrival every fourth step; a request takes 33 to 34 steps, a little less with drafts.

    A boundary stands where both depths are as fast as each other, so the batch hovers there, at 8 or 9 requests.
    """
    memory = policy.fresh_memory(NUM_SLOTS)[:, None]
    waiting: list[float] = []
    found = []
    for step in range(steps):
        if step % 4 == 0:
            waiting.append(34.0)
        depth = int(policy.plan(plan_for(TABLES, len(waiting), memory))[0])
        memory = policy.remember(memory, outcome_of(np.ones((NUM_SLOTS, len(waiting))), depth, depth))
        done = 1.01 if depth else 1.0
        waiting = [left - done for left in waiting if left > done]
        found.append(depth)
    return found


def flips(found: list[int]) -> int:
    return int((np.diff(found[100:]) != 0).sum())


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_the_depth_oscillates_at_a_boundary_and_hysteresis_calms_it(lag: int) -> None:
    """Issue #49548: the depth follows each request that comes or goes; a band of a few requests takes that away."""
    plain = flips(queue(BatchSchedule("1-8:3/9-:0", lag=lag)))
    assert plain >= 100
    assert flips(queue(BatchSchedule("1-8:3/9-:0", lag=lag, hysteresis=2))) == 0


def test_within_the_band_the_range_in_force_stays() -> None:
    policy = BatchSchedule("1-4:3/5-8:2/9-:1", lag=0, hysteresis=2)
    assert depths(policy, [4, 5, 6, 7, 6, 4, 3, 2, 20, 7, 6]) == [3, 3, 3, 2, 2, 2, 2, 3, 1, 1, 2]
