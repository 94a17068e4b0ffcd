"""The engine against a slow one of plain Python, and against identities that hold for any workload."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avsim import estimators, policies
from avsim.costs import StepShape
from avsim.simulate import Arm, SimulationResult, simulate
from avsim.workload import Pool
from tests.engine_cases import COSTS, LINEAR, arrivals_for, orders, pools
from tests.engine_reference import Served, serve
from tests.steps import recording_policy

POLICIES = st.sampled_from(["none", "fixed:1", "adaptive", "prefix-scheduler", "threshold:p=0.4", "oracle"])
READERS = st.sampled_from(["online-logistic:refit_interval=3", "position-rate:refit_interval=2", "online-logistic"])


def arm_of(policy: str, estimator: str = "online-logistic", **options: float) -> Arm:
    made = policies.make(policy)
    return Arm(made, estimators.make(estimator) if made.uses_confidence else None, **options)


@st.composite
def settings_of(draw, *, leave_out: bool = False):
    """Draw a workload and a way of serving it; a small budget leaves decoding requests out of steps."""
    pool = draw(pools())
    order = draw(orders(pool))
    seats = draw(st.integers(1, 4))
    scheduled = draw(st.booleans())
    least = 1 + pool.num_slots
    if leave_out:
        budget: int | None = draw(st.integers(least, 2 * least))
    else:
        budget = draw(st.sampled_from([None, seats * least, seats * least + 5]))
    chunked = budget is None or not scheduled or int(pool.prompt_len.max()) > budget or draw(st.booleans())
    options = {
        "arrivals": draw(st.one_of(st.none(), arrivals_for(len(order)))),
        "token_budget": budget,
        "chunked": chunked,
        "max_total_logits": draw(st.sampled_from([1 << 30, 6])),
    }
    return pool, order, seats, scheduled, options


def run(pool: Pool, arm: Arm, order: list[int], seats: int, cost, scheduled: bool, options) -> SimulationResult:
    arrivals = options["arrivals"]
    return simulate(
        pool, arm, np.array([order]), seats, cost, log=True, prompts="scheduled" if scheduled else "free",
        **options | {"arrivals": None if arrivals is None else np.array([arrivals])},
    )  # fmt: skip


def compare(pool: Pool, result: SimulationResult, slow: Served) -> None:
    log = result.log
    assert log is not None
    assert len(log.ms) == len(slow.steps)
    for step, (start, ms, done) in enumerate(slow.steps):
        assert log.start_ms[step] == pytest.approx(start, rel=1e-9, abs=1e-9), step
        assert log.ms[step] == pytest.approx(ms, rel=1e-9), step
        found = {}
        for seat in range(len(log.active[step])):
            if log.active[step][seat] or log.prompt_tokens[step][seat]:
                columns = (log.prompt_tokens, log.drafted, log.admitted, log.accepted, log.emitted)
                found[int(log.turn[step][seat])] = tuple(int(column[step][seat]) for column in columns)
        assert found == done, step
    for name in ("seated", "first_token", "end"):
        expected = getattr(slow, name)
        times = getattr(result.times, f"{name}_ms")[0]
        np.testing.assert_allclose(times, [expected[turn] for turn in range(len(times))], rtol=1e-9, atol=1e-9)
    assert result.idle_ms[0] == pytest.approx(slow.idle_ms)
    if slow.params:
        for name, values in slow.params.items():
            np.testing.assert_allclose(result.states[0].params[name], values, rtol=1e-5, atol=1e-6)


@given(settings_of(), POLICIES, READERS, COSTS)
def test_equals_a_slow_engine_step_by_step(case, policy, reader, cost):
    pool, order, seats, scheduled, options = case
    arm = arm_of(policy, reader, overhead_ms=0.25, overhead_us_per_req=30.0)
    slow = serve(pool, arm, order, seats, cost, scheduled=scheduled, **options)
    compare(pool, run(pool, arm, order, seats, cost, scheduled, options), slow)


@given(settings_of(leave_out=True), POLICIES, COSTS)
def test_equals_a_slow_engine_where_requests_are_left_out_of_steps(case, policy, cost):
    """With fixed parameters: an engine keeps the confidences that it drafted with, and a refit between would show."""
    pool, order, seats, scheduled, options = case
    arm = arm_of(policy, "raw-confidence")
    slow = serve(pool, arm, order, seats, cost, scheduled=scheduled, **options)
    compare(pool, run(pool, arm, order, seats, cost, scheduled, options), slow)


@given(st.one_of(settings_of(), settings_of(leave_out=True)))
def test_sizes_on_what_vllm_would_have_in_its_second_copy(case):
    """Bit for bit, request by request: after one chunk, after several, where left out, and where seated late."""
    pool, order, seats, scheduled, options = case
    (fast, seen), (slow, _) = recording_policy(), recording_policy()
    reader = estimators.make("raw-confidence")
    log = run(pool, Arm(fast, reader), order, seats, LINEAR, scheduled, options).log
    expected = serve(pool, Arm(slow, reader), order, seats, LINEAR, scheduled=scheduled, **options).sizing
    assert log is not None
    steps = [batch for batch in seen if batch.num_reqs[0]]
    for step, (batch, sizing) in enumerate(zip(steps, expected, strict=True)):
        decoding = np.flatnonzero(log.active[step])
        assert {int(log.turn[step][seat]): batch.sizing[:, 0, seat].tolist() for seat in decoding} == sizing, step


@given(st.one_of(settings_of(), settings_of(leave_out=True)), POLICIES, COSTS)
def test_identities(case, policy, cost):
    """Tokens, clock, budgets and prefixes, order of service, time to first token, Little's law."""
    pool, order, seats, scheduled, options = case
    result = run(pool, arm_of(policy), order, seats, cost, scheduled, options)
    log, times, whole = result.log, result.times, result.whole
    assert log is not None
    lengths = pool.output_len[order]
    assert whole.emitted[0] == lengths.sum() - (0 if scheduled else len(order))
    assert whole.first_tokens[0] == (len(order) if scheduled else 0)
    assert result.clock_ms[0] == pytest.approx(sum(log.ms) + result.idle_ms[0])
    assert whole.ms[0] == pytest.approx(result.clock_ms[0])
    assert result.whole_work.busy_ms[0] == pytest.approx(sum(log.ms))
    parts = zip(log.active, log.prompt_tokens, log.admitted, strict=True)
    work = sum(int(a.sum() + p.sum() + m.sum()) for a, p, m in parts)
    assert result.whole_work.tokens[0] == work
    assert result.whole_work.padded_tokens[0] >= work
    assert result.whole_work.prompt_tokens[0] == (np.maximum(pool.prompt_len[order], 1).sum() if scheduled else 0)
    budget = options["token_budget"]
    for step in range(len(log.ms)):
        active, admitted, drafted = log.active[step], log.admitted[step], log.drafted[step]
        assert (log.accepted[step] <= admitted).all()
        assert (admitted <= drafted).all()
        in_step = int((active | (log.prompt_tokens[step] > 0)).sum())
        if policy in ("adaptive", "prefix-scheduler", "oracle"):
            assert admitted.sum() <= max(0, options["max_total_logits"] - in_step)
        assert not (log.prompt_tokens[step] > 0)[active].any()
        assert in_step <= seats
        if budget is not None:
            assert active.sum() + drafted.sum() + log.prompt_tokens[step].sum() <= budget
    arrived, seated, first, end = (
        getattr(times, name)[0] for name in ("arrival_ms", "seated_ms", "first_token_ms", "end_ms")
    )
    assert (arrived <= seated).all()
    assert (seated <= first).all()
    assert (first <= end).all()
    assert (np.diff(seated) >= 0).all(), "first come, first served"
    if scheduled:
        spent = dict.fromkeys(range(len(order)), 0.0)
        for turns, prompts in zip(log.turn, log.prompt_tokens, strict=True):
            for turn, tokens in zip(turns.tolist(), prompts.tolist(), strict=True):
                spent[turn] += _prompt_ms(cost, tokens) if tokens else 0.0
        assert (first - seated >= np.array(list(spent.values())) - 1e-9).all(), "no faster than its own prompt"
        assert min(spent.values()) > 0
    zero = np.zeros(1)
    for low, high in (("arrival_ms", "end_ms"), ("arrival_ms", "seated_ms"), ("seated_ms", "end_ms")):
        spent = np.nansum(getattr(times, high)[0] - getattr(times, low)[0])
        if result.clock_ms[0] > 0:
            area = times.mean_number(low, high, zero, result.clock_ms)[0] * result.clock_ms[0]
            assert area == pytest.approx(spent)


def _prompt_ms(cost, tokens: int) -> float:
    """Return the least time of a step that runs so many prompt tokens."""
    return float(cost.verify_ms(StepShape(np.array([1]), np.array([tokens]), np.zeros(1), np.array([tokens])))[0])


@given(settings_of(), st.sampled_from(["none", "fixed:1", "adaptive", "oracle"]), COSTS, st.floats(0.01, 5))
def test_overhead_never_helps(case, policy, cost, overhead):
    """In a closed loop the same steps take longer, by exactly what is charged."""
    pool, order, seats, scheduled, options = case
    options = options | {"arrivals": None}
    free = run(pool, arm_of(policy), order, seats, cost, scheduled, options)
    for extra in ({"overhead_ms": overhead}, {"overhead_us_per_req": 1000 * overhead}):
        dear = run(pool, arm_of(policy, **extra), order, seats, cost, scheduled, options)
        assert dear.whole.steps[0] == free.whole.steps[0]
        assert dear.whole.ms[0] >= free.whole.ms[0]
        reqs = free.whole_work.reqs[0] if "overhead_us_per_req" in extra else free.whole.steps[0]
        assert dear.whole.ms[0] == pytest.approx(free.whole.ms[0] + overhead * reqs)
        assert (dear.times.end_ms >= free.times.end_ms - 1e-9).all()


@given(pools(), st.data(), COSTS)
def test_the_order_inside_a_step_does_not_matter(pool, data, cost):
    """Everybody is seated at once, so the order of service is only who sits where; fixed, ranked and plain decoding.

    Requests of equal confidence may swap what they are given, so every block here has confidences of its own.
    """
    count = len(pool.start)
    order = list(range(count))
    other = data.draw(st.permutations(order))
    policy = data.draw(st.sampled_from(["none", "fixed:1", "adaptive", "threshold:p=0.4"]))
    results = [run(pool, arm_of(policy, "raw-confidence"), o, count, cost, False, PLAIN) for o in (order, other)]
    for name in ("steps", "admitted", "accepted", "emitted"):
        assert getattr(results[0].whole, name)[0] == getattr(results[1].whole, name)[0], name
    assert results[0].whole.ms[0] == pytest.approx(results[1].whole.ms[0])
    ends = [dict(zip(o, r.times.end_ms[0], strict=True)) for o, r in zip((order, other), results, strict=True)]
    assert ends[0] == pytest.approx(ends[1])


PLAIN = {"arrivals": None, "token_budget": None, "chunked": True, "max_total_logits": 1 << 30}


@given(settings_of(), POLICIES, COSTS)
def test_a_budget_that_never_binds_changes_nothing(case, policy, cost):
    """Nor does it matter then whether prompts may be split."""
    pool, order, seats, scheduled, options = case
    ample = int((pool.prompt_len.max() + 1 + pool.num_slots) * seats)
    arm = arm_of(policy, "online-logistic:refit_interval=3")
    changes = ({"token_budget": None}, {"token_budget": ample}, {"token_budget": ample, "chunked": False})
    results = [run(pool, arm, order, seats, cost, scheduled, options | {"chunked": True} | c) for c in changes]
    for result in results[1:]:
        np.testing.assert_array_equal(result.times.end_ms, results[0].times.end_ms)
        np.testing.assert_array_equal(result.times.first_token_ms, results[0].times.first_token_ms)


@given(pools(), st.data())
def test_plain_decoding_alone_has_a_closed_form(pool, data):
    """One seat, no drafts: each output token after the first is one step of one token over all that is cached."""
    order = data.draw(orders(pool))
    result = run(pool, arm_of("none"), order, 1, LINEAR, True, PLAIN)
    expected = 0.0
    for request in order:
        prompt = max(int(pool.prompt_len[request]), 1)
        expected += 2.0 + 0.3 * prompt
        expected += sum(2.3 + 0.005 * (prompt + done) for done in range(1, int(pool.output_len[request])))
    assert result.clock_ms[0] == pytest.approx(expected)


@given(pools(), st.data(), COSTS)
def test_arms_meet_the_same_arrivals(pool, data, cost):
    order = data.draw(orders(pool))
    arrivals = np.array([data.draw(arrivals_for(len(order)))])
    options = PLAIN | {"arrivals": arrivals[0].tolist()}
    for policy in ("none", "fixed:1", "adaptive"):
        times = run(pool, arm_of(policy), order, 2, cost, False, options).times
        np.testing.assert_array_equal(times.arrival_ms, arrivals)
        np.testing.assert_array_equal(times.tokens[0], pool.output_len[order])


@settings(max_examples=60)
@given(pools(), st.data(), COSTS)
def test_runs_in_lockstep_are_independent(pool, data, cost):
    """Runs of different lengths and loads share arrays and nothing else."""
    all_orders = data.draw(st.lists(orders(pool), min_size=2, max_size=3))
    width = max(map(len, all_orders))
    sequences = np.array([order + [-1] * (width - len(order)) for order in all_orders])
    arrivals = np.array([data.draw(arrivals_for(width)) for _ in all_orders])
    arm = arm_of("adaptive", "online-logistic:refit_interval=3")
    shared = {"prompts": "scheduled", "token_budget": 2 * (1 + pool.num_slots)}
    together = simulate(pool, arm, sequences, 2, cost, arrivals=arrivals, **shared)
    for number, order in enumerate(all_orders):
        alone = simulate(pool, arm, np.array([order]), 2, cost, arrivals=arrivals[[number], : len(order)], **shared)
        for name in ("arrival_ms", "seated_ms", "first_token_ms", "end_ms"):
            np.testing.assert_allclose(
                getattr(together.times, name)[number, : len(order)], getattr(alone.times, name)[0], rtol=1e-12
            )
        assert np.isnan(together.times.end_ms[number, len(order) :]).all()
        assert together.clock_ms[number] == pytest.approx(alone.clock_ms[0], rel=1e-12)
        for window in ("full", "whole"):
            for name in ("steps", "drafted", "admitted", "accepted", "emitted", "ms"):
                mine, theirs = (
                    getattr(getattr(together, window), name)[number],
                    getattr(getattr(alone, window), name)[0],
                )
                assert mine == pytest.approx(theirs, rel=1e-12), (window, name)


@given(settings_of(), st.sampled_from(["adaptive", "prefix-scheduler"]), st.integers(0, 3))
def test_the_steady_way_of_sizing_equals_the_general_one(case, policy, lag):
    """Free prompts and no budget take a shorter way; a budget that never binds forces the general one."""
    pool, order, seats, _, options = case
    arm = replace(arm_of(policy, "online-logistic:refit_interval=3"), lag=lag)
    ample = {"token_budget": 1 << 10}
    steady, general = (
        run(pool, arm, order, seats, LINEAR, False, PLAIN | {"arrivals": options["arrivals"]} | extra)
        for extra in ({}, ample)
    )
    assert [a.tolist() for a in steady.log.admitted] == [a.tolist() for a in general.log.admitted]
    np.testing.assert_array_equal(steady.times.end_ms, general.times.end_ms)
