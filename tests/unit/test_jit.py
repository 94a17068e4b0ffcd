"""The compiled closed loop does what the NumPy loop does, number for number."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avsim import costs, estimators, policies
from avsim import simulate as simulation
from avsim.costs import CostModel, DistortedCost, LinearCost, NoisyCost, StepShape
from avsim.errors import InputError
from avsim.estimators.online_logistic import OnlineLogistic
from avsim.policies.base import StepBatch
from avsim.policies.budget import allocate, best_budget, ranked_survival, survival
from avsim.simulate import Arm, SimulationResult, simulate
from avsim.workload import Pool, request_sequences
from tests.engine_cases import CARD, CLIFF, LINEAR, pools

pytest.importorskip("numba", reason="the compiled loop needs the jit extra")
from avsim.jit import kernel, loop

FEW = settings(max_examples=100, deadline=None)
LEARNER = "online-logistic:refit_interval=3"


def assert_equal(one: SimulationResult, other: SimulationResult) -> None:
    """Compare everything that a simulation returns, bit by bit."""
    for part in ("full", "whole", "work", "whole_work", "times"):
        for field in fields(getattr(one, part)):
            values = (getattr(getattr(result, part), field.name) for result in (one, other))
            np.testing.assert_array_equal(*values, err_msg=f"{part}.{field.name}")
    np.testing.assert_array_equal(one.clock_ms, other.clock_ms)
    np.testing.assert_array_equal(one.idle_ms, other.idle_ms)
    assert [state.to_json() for state in one.states] == [state.to_json() for state in other.states]
    assert (one.log is None) == (other.log is None)
    if one.log is None or other.log is None:
        return
    for field in fields(one.log):
        mine, theirs = getattr(one.log, field.name), getattr(other.log, field.name)
        assert len(mine) == len(theirs), field.name
        for step, pair in enumerate(zip(mine, theirs, strict=True)):
            np.testing.assert_array_equal(*pair, err_msg=f"{field.name}, step {step}")


class Spy:
    """Counts the steps that the kernel takes."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, *args: Any, **options: Any) -> int:
        self.steps = loop.take_steps(*args, **options)
        return self.steps


@pytest.fixture(scope="module")
def spy() -> Iterator[Spy]:
    found = Spy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "take_steps", found)
        yield found


def compare(spy: Spy, *args: Any, compiled: bool = True, **options: Any) -> SimulationResult:
    """Run a simulation both ways, and say whether the kernel should have known the case."""
    plain = simulate(*args, engine="numpy", **options)
    assert spy.steps == 0
    fast = simulate(*args, engine="jit", **options)
    assert (spy.steps > 0) == (compiled and bool(plain.clock_ms.any()))
    assert_equal(plain, fast)
    return fast


@st.composite
def cases(draw: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Draw a pool, an arm, ragged sequences and costs."""
    pool = draw(pools())
    if draw(st.booleans()):
        pool = replace(pool, num_drafted=np.maximum(pool.num_recorded, pool.num_accepted))
    if draw(st.booleans()):  # ties, and survivals of exactly 0 and 1
        pool = replace(pool, features={"log_odds": 20 * np.round(pool.features["log_odds"])})
    spec = draw(st.sampled_from(["adaptive", "adaptive", "adaptive", "none", "fixed:1", f"fixed:{pool.num_slots}"]))
    learner = draw(st.sampled_from([LEARNER, "online-logistic:refit_interval=1", "position-rate:refit_interval=4"]))
    overhead = draw(st.sampled_from([(0.0, 0.0), (0.3, 20.0)]))
    arm = Arm(
        policies.make(spec), estimators.make(learner), draw(st.integers(0, 3)), draw(st.booleans()),
        overhead_ms=overhead[0], overhead_us_per_req=overhead[1],
    )  # fmt: skip
    runs, width = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    sequences = np.full((runs, width), -1)
    for line in sequences:
        order = draw(st.lists(st.integers(0, len(pool.start) - 1), min_size=1, max_size=width))
        line[: len(order)] = order
    options = {
        "belief": draw(st.sampled_from([None, CLIFF, LINEAR])),
        "max_total_logits": draw(st.sampled_from([1 << 30, 5])),
        "max_steps": draw(st.sampled_from([None, None, 4])),
        "first_position": draw(st.integers(0, 1)),
        "log": draw(st.booleans()),
    }
    return (pool, arm, sequences, draw(st.integers(1, 5)), draw(st.sampled_from([CLIFF, LINEAR]))), options


@FEW
@given(case=cases())
def test_random_loops_are_equal(case: tuple[tuple[Any, ...], dict[str, Any]], spy: Spy) -> None:
    args, options = case
    compare(spy, *args, **options)


@pytest.mark.parametrize("estimator", ["online-logistic:refit_interval=20", "beta-bernoulli:refit_interval=50"])
@pytest.mark.parametrize(("concurrency", "requests"), [(1, 5), (5, 20), (64, 68)])
def test_a_shipped_trace_is_equal(
    estimator: str, concurrency: int, requests: int, greedy_pool: Pool, b300: CostModel, spy: Spy
) -> None:
    """From the cold start to the drain, in three runs of different length."""
    some = np.arange(requests)
    sequences = request_sequences([some, some[:3], some[requests // 5 :]], 2 * concurrency, [[1], [2], [3]])
    arm = Arm(policies.make("adaptive"), estimators.make(estimator))
    result = compare(spy, greedy_pool, arm, sequences, concurrency, b300, log=True)
    assert result.states[0].refits > 1


@pytest.mark.parametrize("log_odds", [40.0, -40.0, 0.0])
def test_ties_of_every_slot_are_equal(log_odds: float, greedy_pool: Pool, spy: Spy) -> None:
    """All confidences of a slot are the same, so whoever sits first gets the slots at the cut."""
    flat = np.full_like(greedy_pool.features["log_odds"], log_odds)
    pool = replace(greedy_pool, features={"log_odds": flat})
    arm = Arm(policies.make("adaptive"), estimators.make("online-logistic"))
    sequences = request_sequences([np.arange(len(pool.start))], 70, [[0]])
    compare(spy, pool, arm, sequences, 33, costs.load("deepseek-v4-flash-tp4-b300"), max_total_logits=90, log=True)


def test_warm_starts_copies_and_wrong_beliefs_are_equal(greedy_pool: Pool, b300: CostModel, spy: Spy) -> None:
    arm = Arm(policies.make("adaptive"), estimators.make(LEARNER))
    sequences = request_sequences([np.arange(12)] * 2, 12, [[0], [1]])
    belief = DistortedCost(b300, tilt_pct=30.0, jitter=0.05, card=CARD)
    first = compare(spy, greedy_pool, arm, sequences, 6, b300, belief=belief, max_steps=50)
    compare(spy, greedy_pool, arm, sequences, 6, NoisyCost(b300, sd=0.1, card=CARD), states=first.states)
    compare(spy, greedy_pool, Arm(policies.make("fixed:2")), sequences, 1, LINEAR, copies=3)


@pytest.mark.parametrize(
    "policy",
    ["adaptive:explore=0.1", "adaptive:floor=1", "adaptive:hide_trimmed=true", "oracle", "threshold:0.5", "goodput"],
)
def test_other_policies_run_in_numpy(policy: str, greedy_pool: Pool, b300: CostModel, spy: Spy) -> None:
    arm = Arm(policies.make(policy), estimators.make(LEARNER))
    compare(spy, greedy_pool, arm, np.arange(9)[None], 4, b300, compiled=False)


@pytest.mark.parametrize(
    "options",
    [{"prompts": "own-step"}, {"prompts": "scheduled"}, {"token_budget": 40}, {"arrivals": np.zeros((1, 9))}],
)
def test_other_loops_run_in_numpy(options: dict[str, Any], greedy_pool: Pool, b300: CostModel, spy: Spy) -> None:
    arm = Arm(policies.make("adaptive"), estimators.make(LEARNER))
    spy.steps = 0
    compare(spy, greedy_pool, arm, np.arange(9)[None], 4, b300, compiled=False, **options)


class Tiring(LinearCost):
    """A cost model of somebody else, which reads the clock."""

    def verify_ms(self, shape: StepShape) -> Any:
        return super().verify_ms(shape) * (1 if shape.clock_ms is None else 1 + 1e-3 * shape.clock_ms)


def test_clocks_that_drift_and_runs_out_of_step_run_in_numpy(greedy_pool: Pool, b300: CostModel, spy: Spy) -> None:
    arm = Arm(policies.make("adaptive"), estimators.make(LEARNER))
    sequences = np.stack([np.arange(6), np.arange(20, 26)])
    drift = NoisyCost(b300, drift_pct=20.0, drift_minutes=0.01, card=CARD)
    tiring = Tiring(
        fixed_ms=2.0,
        per_token_us=300.0,
        per_kv_token_ns=0.0,
        draft_fixed_ms=0.5,
        draft_per_request_token_us=4.0,
        card=CARD,
    )
    for truth in (drift, DistortedCost(drift, scale=2.0, card=CARD), tiring):
        compare(spy, greedy_pool, arm, sequences, 4, truth, compiled=False)
    start = OnlineLogistic(refit_interval=3).start(greedy_pool.num_slots)
    compare(
        spy, greedy_pool, arm, sequences, 4, b300, compiled=False, states=[start, replace(start, steps_since_refit=1)]
    )


class Overconfident(OnlineLogistic):
    """Says more than 1 once it has learned."""

    def predict(self, params: Any, features: Any, shape: tuple[int, int]) -> Any:
        return super().predict(params, features, shape) * np.float32(1 if params["slope"][0] == self.slope else 1.5)


def test_confidences_beyond_one_leave_everything_to_numpy(greedy_pool: Pool, b300: CostModel, spy: Spy) -> None:
    arm = Arm(policies.make("adaptive"), Overconfident(refit_interval=5))
    compare(spy, greedy_pool, arm, np.arange(9)[None], 4, b300, compiled=False, log=True)


@st.composite
def budgets(draw: Any) -> tuple[np.ndarray, np.ndarray, costs.CostTables, int]:
    """Draw confidences, drafted slots, and cost tables with stairs, cliffs and even falls."""
    slots, reqs = draw(st.integers(1, 8)), draw(st.integers(1, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    confidence = rng.beta(*draw(st.sampled_from([(5, 1), (1, 1), (0.3, 0.3), (1, 20)])), (slots, 1, reqs))
    confidence = confidence.astype(np.float32)
    if draw(st.booleans()):
        confidence = np.round(confidence, 1)
    drafted = rng.integers(0, slots + 1, (1, reqs)) if draw(st.booleans()) else np.full((1, reqs), slots)
    size = reqs * (slots + 1) + 1
    rises = rng.exponential(1e-3, size) * (rng.random(size) < draw(st.sampled_from([0.05, 1.0])))
    rises += 2.0 * (rng.random(size) < 0.01)
    verify = 1 + np.cumsum(rises)
    if draw(st.booleans()):
        verify = verify - 0.3 * (rng.random(size) < 0.1)
    limit = draw(st.sampled_from([1 << 30, reqs + 7]))
    return confidence, drafted, costs.CostTables(rng.random(reqs + 1), verify), limit


def step_of(confidence: np.ndarray, drafted: np.ndarray, tables: costs.CostTables) -> kernel.Scratch:
    """Return the kernel's memory as it is when it comes to choose a budget."""
    slots, _, reqs = confidence.shape
    scratch, empty = kernel.scratch_for(slots, reqs), np.zeros(0, dtype=np.int64)
    given = kernel.Given(np.ascontiguousarray(confidence), *[empty] * 6, tables.draft, tables.verify)
    seated = kernel.Seated(
        *[empty] * 6, np.ones(reqs, dtype=np.int64), np.ones(reqs, dtype=bool), empty,
        np.ones((1, reqs, slots), dtype=np.float32), empty, empty,
    )  # fmt: skip
    scratch.drafted[:] = drafted[0]
    kernel.price(reqs, slots * reqs, given, scratch)
    kernel.survivals(0, 0, int(drafted.sum()), np.arange(reqs), given, seated, scratch)
    return scratch


@settings(max_examples=300, deadline=None)
@given(case=budgets())
def test_budget_and_slots_are_those_of_the_policy(case: Any) -> None:
    """Stopping early loses nothing, and the cut is the same to the last tie."""
    confidence, drafted, tables, limit = case
    one = np.array([confidence.shape[2]])
    step = StepBatch(confidence, confidence, drafted, one, one, one, tables, max_total_logits=limit)
    budget = best_budget(step, confidence)
    wanted = allocate(survival(confidence, drafted), budget)[0]
    scratch, drafts = step_of(confidence, drafted, tables), int(drafted.sum())
    found, cut = kernel.best_budget(drafts, min(drafts, max(0, limit - one[0])), one[0], scratch)
    assert found == budget[0]
    for guess in (cut, 1e-30, 0.2):  # where the search for the cut begins must not matter
        admitted = drafted[0].copy()
        kernel.top_slots(scratch, found, guess, drafts, admitted)
        np.testing.assert_array_equal(admitted, wanted)


@settings(max_examples=300, deadline=None)
@given(case=budgets())
def test_every_rank_is_in_order(case: Any) -> None:
    """A budget hardly depends on the order within a class, so the order is looked at itself."""
    confidence, drafted, tables, _ = case
    scratch, drafts = step_of(confidence, drafted, tables), int(drafted.sum())
    kernel.lay_out(drafts, scratch)
    sorted_to = number = 0
    while sorted_to < drafts:
        sorted_to, number = kernel.sort_next(sorted_to, number, scratch)
    even, odd = np.split(scratch.ranked, 2)
    np.testing.assert_array_equal(
        np.stack([even, odd], axis=1).ravel()[:drafts], ranked_survival(confidence, drafted)[0, :drafts]
    )


@pytest.mark.parametrize("below", [1e-10, 2e-9, 1e-8])
def test_rounding_decides_between_budgets_that_are_worth_the_same(below: float) -> None:
    """Slots that pay for themselves but for a hair, and change the objective by less than it is rounded."""
    reqs, found = 61, []
    for survivals in np.random.default_rng(0).uniform(6.4e-9, 1.28e-8, 40).astype(np.float32):
        confidence = np.full((1, 1, reqs), survivals)
        slope = 1.7 * float(survivals) / reqs / (1 - below)
        more = np.maximum(np.arange(2 * reqs + 1) - reqs, 0)
        tables = costs.CostTables(np.zeros(reqs + 1), 1.7 + slope * more)
        drafted, one = np.ones((1, reqs), dtype=np.int64), np.array([reqs])
        budget = best_budget(StepBatch(confidence, confidence, drafted, one, one, one, tables), confidence)[0]
        found.append(budget)
        assert kernel.best_budget(reqs, reqs, reqs, step_of(confidence, drafted, tables))[0] == budget
    assert max(found) > 0


def test_without_numba(monkeypatch: pytest.MonkeyPatch, greedy_pool: Pool, b300: CostModel) -> None:
    args = greedy_pool, Arm(policies.make("none")), np.arange(9)[None], 4, b300
    plain = simulate(*args, engine="numpy")
    monkeypatch.setattr(loop, "_WORTH_COMPILING", 100)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert_equal(simulate(*args), plain)
        with pytest.raises(InputError, match=r"install avsim\[jit\]"):
            simulate(*args, engine="jit")
    monkeypatch.setattr(kernel, "NUMBA", False)
    assert_equal(simulate(*args), plain)
    with pytest.raises(InputError, match="cannot be imported"):
        simulate(*args, engine="jit")


def test_only_long_simulations_are_compiled_for(
    monkeypatch: pytest.MonkeyPatch, greedy_pool: Pool, b300: CostModel, spy: Spy
) -> None:
    args = greedy_pool, Arm(policies.make("none")), np.arange(9)[None], 4, b300
    simulate(*args)
    assert spy.steps == 0
    monkeypatch.setattr(loop, "_WORTH_COMPILING", 100)
    simulate(*args)
    assert spy.steps > 0


def test_importing_avsim_does_not_import_numba() -> None:
    code = "import sys, avsim.simulate, avsim.study, avsim.jit; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_folder_for_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba refuses to keep anything where it finds no folder to write to; then it is compiled for the process."""
    import numba

    original = numba.njit

    def njit(*, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return original(**options)

    monkeypatch.setattr(numba, "njit", njit)

    def double(x: int) -> int:
        return 2 * x

    compiled = kernel._compiled(double)
    assert compiled is not double
    assert compiled(4) == 8
