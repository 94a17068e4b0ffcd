"""A plan against closed forms, against a simulated closed loop, and against itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from avsim import estimators
from avsim.costs import CostCard, CostModel, CurveCost, load
from avsim.costs.base import StepShape
from avsim.errors import InputError
from avsim.planning.acceptance import Acceptance
from avsim.planning.borrow import borrow
from avsim.planning.crossover import crossover
from avsim.planning.given import PlanInput
from avsim.planning.plan import Plan, make_plan
from avsim.planning.population import Population, Spread
from avsim.planning.step_costs import StepCosts
from avsim.planning.unknowns import draw_unknowns, log_cost_sd, unknown_layer_latency
from avsim.policies import Adaptive, FixedDepth, NoDrafting
from avsim.simulate import Arm, simulate
from avsim.sources import Trace
from avsim.workload import Pool, request_sequences, requests_for

RATES = Acceptance.from_conditional([0.8, 0.7, 0.75])
LONG = Acceptance.from_conditional([0.66, 0.58, 0.52, 0.47, 0.43, 0.4, 0.38])
EAGLE = "roofline:model=llama-3.1-8b,gpu=h200,drafter=eagle,k=3"


def curve(verify: list[tuple[int, float]], draft: float = 1.0, capture_limit: int = 0) -> CostModel:
    card = CostCard("made", "none", "none", "measured", "a test")
    return CurveCost(tuple(verify), ((1, draft), (64, draft)), capture_limit, card=card)


def tokens(fixed_ms: float, per_token_ms: float, most: int = 512) -> list[tuple[int, float]]:
    return [(n, fixed_ms + per_token_ms * n) for n in range(1, most + 1)]


def sure(cost: CostModel, acceptance: Acceptance = RATES, **more: object) -> PlanInput:
    """Everything known that can be."""
    known = {"auc": 0.8, "auc_sd": 0.0, "calibration_slope": 1.0, "calibration_offset": 0.0, "request_share": 0.2,
             "cost_sd": 0.0, "overhead_ms": 0.0, "draws": 40}  # fmt: skip
    return PlanInput(acceptance, cost, **(known | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("cost", [load(EAGLE), load("deepseek-v4-flash-tp4-b300")])
def test_fixed_depths_equal_the_closed_form(cost: CostModel) -> None:
    plan = make_plan(sure(cost, context_tokens=2000.0), [7])
    for fixed in plan.loads[0].fixed:
        one, reqs = np.array([7]), np.array([7 * 2000.0])
        shape = StepShape(one, one * (1 + fixed.depth), reqs, np.array([0]), np.array([fixed.depth]))
        ms = cost.step_ms(shape, drafting=fixed.depth > 0)[0]
        length = 1 + np.cumprod([0.8, 0.7, 0.75])[: fixed.depth].sum()
        assert fixed.acceptance_length == pytest.approx(length)
        for value in (fixed.throughput_tok_s.low, fixed.throughput_tok_s.middle, fixed.throughput_tok_s.high):
            assert value == pytest.approx(7 * length / ms * 1e3, rel=1e-9)


def test_parts_of_a_step_add_up_for_every_budget() -> None:
    cost = load(EAGLE)
    draws = draw_unknowns(sure(cost))
    tables = StepCosts.of(cost, 4, 3, 500.0).tables(draws, 0)
    for budget in range(13):
        shape = StepShape(np.array([4]), np.array([4 + budget]), np.array([2000.0]), np.array([0]), np.array([3]))
        whole = tables.draft[4] + tables.verify[4 + budget]
        assert whole == pytest.approx(cost.step_ms(shape, drafting=True)[0], rel=1e-9)


def test_adaptive_at_full_budget_costs_what_the_full_depth_costs_in_every_draw() -> None:
    given = PlanInput(RATES, load(EAGLE), draws=40)
    draws, costs = draw_unknowns(given), StepCosts.of(given.cost, 16, 3, 1024.0)
    fixed = costs.fixed_ms(draws)
    for index in range(len(draws)):
        tables = costs.tables(draws, index)
        assert draws.level[index] * (tables.draft[16] + tables.verify[64]) == pytest.approx(fixed[index, 3])


def test_where_drafts_are_free_adaptive_is_the_full_depth() -> None:
    flat = curve([(1, 10.0), (512, 10.0)])
    plan = make_plan(sure(flat), [1, 16])
    for line in plan.loads:
        assert (line.verified.low, line.best_fixed) == (1.0, 3)
        assert line.over_tuned.middle == pytest.approx(1, abs=0.002)
        assert line.over_tuned.low < 1 < line.over_tuned.high
        assert line.word == "not distinguishable"


def test_weak_acceptance_at_a_high_load_is_a_loss(b300: CostModel) -> None:
    given = PlanInput(Acceptance.from_conditional([0.35, 0.35, 0.4]), b300, context_tokens=8192.0)
    plan = make_plan(given, [1, 256])
    low, high = plan.loads
    assert (low.best_fixed, low.over_none.low > 1.1) == (3, True)
    assert (high.best_fixed, high.word, high.word_over_none) == (0, "loss", "loss")
    assert high.over_none.high < 0.95
    assert plan.adaptive_crossover.for_good is not None
    assert plan.fixed_crossover.for_good is not None


def test_break_even_is_where_the_depth_equals_plain_decoding(b300: CostModel) -> None:
    line = make_plan(sure(b300, context_tokens=8192.0), [64]).loads[0]
    depth, wanted = line.drafting_depth, line.break_even_length.middle
    # Lower every rate alike until the acceptance length at that depth is the one that is needed.
    scale = np.linspace(0.01, 1, 20001)
    lengths = 1 + np.cumprod(scale[:, None] * RATES.conditional[:depth], axis=1).sum(axis=1)
    factor = scale[np.abs(lengths - wanted).argmin()]
    weak = Acceptance.from_conditional(factor * RATES.conditional)
    there = make_plan(sure(b300, weak, context_tokens=8192.0), [64]).loads[0].fixed[depth]
    assert there.acceptance_length == pytest.approx(wanted, abs=2e-4)
    assert there.over_none.middle == pytest.approx(1, abs=2e-4)


def cliff_at(limit: int, jump: float) -> CostModel:
    points = [(n, 10 + 0.02 * n + (jump if n > limit else 0.0)) for n in (1, 16, 32, 48, 64, 65, 96, 128, 256)]
    return curve(points, draft=0.5, capture_limit=limit)


def test_a_gain_that_is_all_cliff_says_so() -> None:
    acceptance = Acceptance.from_conditional([0.95])  # one slot, so that no shallower depth avoids the cliff
    line = make_plan(sure(cliff_at(64, 30.0), acceptance), [36]).loads[0]
    assert line.word == "gain"
    assert line.cliff_share is not None
    assert line.cliff_share.middle > 0.9


def test_a_gain_that_is_mostly_slope_says_so() -> None:
    """Ten times the slope and a hundredth of the jump: what trimming saves is mostly there without the cliff."""
    steep = [(n, 10 + 0.5 * n + (0.5 if n > 64 else 0.0)) for n in (1, 16, 32, 48, 64, 65, 96, 128, 256)]
    cost = curve(steep, draft=0.5, capture_limit=64)
    line = make_plan(sure(cost, Acceptance.from_conditional([0.6, 0.6, 0.6]), auc=0.9), [36]).loads[0]
    assert line.word == "gain"
    assert line.cliff_share is not None
    assert line.cliff_share.middle < 0.3


def test_a_gain_without_a_cliff_has_no_share() -> None:
    smooth = make_plan(sure(curve(tokens(5, 0.5))), [36]).loads[0]
    assert smooth.word == "gain"
    assert smooth.cliff_share is None
    within = make_plan(sure(cliff_at(64, 30.0)), [8]).loads[0]
    assert within.cliff_share is None
    past = replace(cliff_at(64, 0.001), verify=tuple((n, ms) for n, ms in tokens(5, 0.5)))  # a limit, but no jump
    line = make_plan(sure(past), [36]).loads[0]
    assert line.cliff_share is None or abs(line.cliff_share.middle) < 0.05


def test_staircases_cross_more_than_once() -> None:
    ratios = np.array([[1.3, 1.3], [0.9, 0.8], [1.1, 1.2], [0.8, 1.1], [0.7, 0.7]])
    found = crossover([1, 2, 4, 8, 16], ratios)
    assert (found.first, found.for_good) == (2, 8)
    assert (found.low, found.high) == (8, 16)
    never = crossover([1, 2], np.array([[1.1], [1.2]]))
    assert (never.first, never.for_good, never.low, never.high, never.most) == (None, None, None, None, 2)
    regained = crossover([1, 2, 4], np.array([[1.1], [0.9], [1.1]]))
    assert (regained.first, regained.for_good) == (2, None)
    always = crossover([1, 2], np.array([[0.9], [0.8]]))
    assert (always.first, always.for_good) == (1, 1)


def test_the_same_seed_gives_the_same_plan_and_another_one_another(b300: CostModel) -> None:
    def at(seed: int) -> Plan:
        return make_plan(PlanInput(RATES, b300, draws=40, seed=seed), [8])

    first, again, other = at(1), at(1), at(2)
    assert first.loads == again.loads
    assert (first.auc, first.adaptive_crossover) == (again.auc, again.adaptive_crossover)
    assert first.loads != other.loads
    # Another seed moves a median by less than its interval.
    left, right = first.loads[0].over_tuned, other.loads[0].over_tuned
    assert left.low < right.middle < left.high


def test_draws_do_not_depend_on_their_number() -> None:
    few, many = (draw_unknowns(PlanInput(RATES, load(EAGLE), draws=draws)) for draws in (40, 90))
    assert few.spreads == many.spreads[:40]
    assert np.array_equal(few.level, many.level[:40])
    assert np.array_equal(few.model, many.first(40).model)
    other = draw_unknowns(PlanInput(RATES, load(EAGLE), draws=40, seed=1))
    assert not np.isin(other.level, few.level).any()
    assert not np.array_equal(other.latents(0, 3, 8).slot, few.latents(0, 3, 8).slot)


@pytest.mark.parametrize("auc", [0.6, 0.75, 0.9])
@pytest.mark.parametrize("rates", [[0.8, 0.7, 0.75], [0.35, 0.4, 0.45], [0.95, 0.93]])
def test_the_auc_asked_for_is_the_auc_of_the_requests(auc: float, rates: list[float]) -> None:
    given = sure(load(EAGLE), Acceptance.from_conditional(rates), auc=auc)
    draws = draw_unknowns(given)
    assert draws.auc == pytest.approx(auc, abs=1e-3)
    made = Population.make(given.acceptance.conditional, draws.spreads[3], draws.latents(3, len(rates), 20_000))
    assert made.auc().mean() == pytest.approx(auc, abs=0.01)


def test_better_confidences_gain_more_and_bad_calibration_costs(b300: CostModel) -> None:
    def gain(**more: object) -> float:
        return make_plan(sure(b300, LONG, **more), [128]).loads[0].over_none.middle

    good, poor = gain(auc=0.9), gain(auc=0.6)
    assert good > poor + 0.02
    assert gain(auc=0.9, calibration_offset=3.0) < good - 0.01
    calibrated = make_plan(sure(b300), [64]).calibration_error
    off = make_plan(sure(b300, calibration_offset=1.0), [64]).calibration_error
    assert calibrated.high < 1e-6
    assert off.low > 0.05


def test_an_unknown_overhead_withholds_a_gain_that_a_known_one_keeps(b300: CostModel) -> None:
    known = make_plan(sure(b300, LONG, auc=0.9), [32]).loads[0]
    unknown = make_plan(sure(b300, LONG, auc=0.9, overhead_ms=None), [32]).loads[0]
    assert (known.word, unknown.word) == ("gain", "gain withheld")
    dear = make_plan(sure(b300, LONG, auc=0.9, overhead_ms=20.0), [32]).loads[0]
    assert dear.word == "loss"


def test_what_costs_are_unsure_of_follows_their_kind() -> None:
    dense, experts = load(EAGLE), load("roofline:model=qwen3-30b-a3b,gpu=h200,drafter=mtp,k=3")
    assert log_cost_sd(sure(dense, cost_sd=None)) == 0.3
    assert log_cost_sd(sure(curve(tokens(5, 0.1)), cost_sd=None)) == 0.05
    assert unknown_layer_latency(sure(dense, cost_sd=None)) == 0
    assert unknown_layer_latency(sure(experts, cost_sd=None)) == pytest.approx(48 * 14 * 3e-3)
    assert unknown_layer_latency(sure(experts)) == 0
    wide = make_plan(PlanInput(RATES, experts, draws=40), [1]).loads[0].fixed[3].over_none
    narrow = make_plan(PlanInput(RATES, experts, draws=40, cost_sd=0.05), [1]).loads[0].fixed[3].over_none
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_a_plan_from_summary_numbers_of_a_trace_holds_what_the_trace_gives(greedy: Trace, b300: CostModel) -> None:
    """The plan knows rates and quality only; the closed loop serves the trace itself, estimator warmed."""
    loads = (1, 8, 32, 64, 256)
    found = borrow(greedy)
    given = PlanInput(
        found.acceptance, b300, 8192.0, float(found.auc.mean()), 0.04, found.slope, found.offset, found.request_share,
        cost_sd=0.0, overhead_ms=0.0,
    )  # fmt: skip
    plan = make_plan(given, loads)
    reader = estimators.make_online("online-logistic")
    pool, least = Pool.from_trace(greedy, reader.features), 8
    everyone = np.arange(len(pool.start))

    def rate(arm: Arm, load: int, states: list | None = None) -> float:
        order = request_sequences([everyone], least * load, [[7]])
        return float(simulate(pool, arm, order, load, b300, states=states).full.throughput_tok_s[0])

    for load_, line in zip(loads, plan.loads, strict=True):
        arm = Arm(Adaptive(), reader)
        order = request_sequences([everyone], requests_for(pool, load_, 300), [[3]])
        warm = simulate(pool, arm, order, load_, b300).states
        adaptive, none = rate(arm, load_, warm), rate(Arm(NoDrafting()), load_)
        deepest = pool.num_slots if load_ <= 8 else 3
        fixed = [rate(Arm(FixedDepth(depth)), load_) for depth in range(1, deepest + 1)]
        assert load_ <= 8 or max(fixed) > fixed[-1]  # so that deeper ones need not be tried
        over_none, over_tuned = adaptive / none, adaptive / max([none, *fixed])
        # Drawn requests stand for real ones: 1.4 % was the worst of the shipped traces (experiments/plan-check).
        assert line.over_none.middle == pytest.approx(over_none, rel=0.015)
        assert line.over_tuned.middle == pytest.approx(over_tuned, rel=0.015)
        assert line.over_none.low < over_none < line.over_none.high
        assert line.over_tuned.low < over_tuned < line.over_tuned.high
        # Rates are those of a walk at full depth; a shallower walk visits other positions.
        best = max(one.over_none.middle for one in line.fixed[1:])
        assert best == pytest.approx(max(fixed) / none, rel=0.02)
    assert plan.loads[-1].word == "loss"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"auc": 0.4}, "above 0.5"),
        ({"auc": 0.99}, "at most 0.97"),
        ({"auc_sd": -0.1}, "auc sd"),
        ({"calibration_slope": 0.0}, "slope"),
        ({"calibration_offset": float("nan")}, "offset"),
        ({"draws": 10}, "at least 40"),
        ({"context_tokens": float("inf")}, "context"),
        ({"cost_sd": 2.5}, "cost uncertainty"),
        ({"request_share": 1.0}, "request share"),
        ({"overhead_ms": -1.0}, "overhead"),
    ],
)
def test_input_that_nothing_has_is_refused(change: dict[str, float], says: str, b300: CostModel) -> None:
    with pytest.raises(InputError, match=says):
        PlanInput(RATES, b300, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("loads", [[], [0], [4, 4]])
def test_loads_that_are_none_are_refused(loads: list[int], b300: CostModel) -> None:
    with pytest.raises(InputError, match="concurrency"):
        make_plan(PlanInput(RATES, b300), loads)


def test_spread_is_what_the_policy_reads() -> None:
    draws = draw_unknowns(sure(load(EAGLE), calibration_slope=2.0, calibration_offset=-0.5))
    assert {(s.slope, s.offset, s.request_share) for s in draws.spreads} == {(2.0, -0.5, 0.2)}
    assert isinstance(draws.spreads[0], Spread)
