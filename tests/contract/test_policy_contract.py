from __future__ import annotations

import broken_policies as broken
import pytest
from contract_cases import failures, parametrised, unneeded

from avsim import policies
from avsim.testing import POLICY_CHECKS

NO_CAP = {"check_logit_limit": "the cap is part of adaptive verification's budget; this rule has no budget"}
ALWAYS_TIES = {"check_request_permutation": "its survivals are 0 or 1, so requests always tie"}

CASES = [
    (policies.NoDrafting(), {}),
    (policies.FixedDepth(1), NO_CAP),
    (policies.FixedDepth(3), NO_CAP),
    (policies.FixedDepth(7), NO_CAP),
    (policies.BatchSchedule("1-2:3/3-5:1/6-:0"), NO_CAP),
    (policies.BatchSchedule("4-4:1/1-2:3/5-:0", lag=0, hysteresis=1), NO_CAP),
    (policies.BatchSchedule("1-2:3/3-5:1/6-:2", lag=2, hysteresis=1), NO_CAP),
    (policies.Goodput(), NO_CAP),
    (policies.Goodput(rates="per-slot", horizon=40, probe=3), NO_CAP),
    (policies.Goodput(probe=0), NO_CAP),
    (policies.Threshold(0.6), NO_CAP),
    (policies.Threshold(0.4, on="survival"), NO_CAP),
    (policies.Adaptive(), {}),
    (policies.Adaptive(explore=0.3), {}),
    (policies.Adaptive(floor=1), {}),
    (policies.Adaptive(floor=2, explore=0.3, hide_trimmed=True), {}),
    (policies.AdaptiveSkip(), {}),
    (policies.AdaptiveSkip(probe=3, horizon=30), {}),
    (policies.Renewal(), {}),
    (policies.Renewal(horizon=0), {}),
    (policies.ServiceLevel(4.0), {}),
    (policies.ServiceLevel(9.0), {}),
    (policies.PrefixScheduler(), {}),
    (policies.PrefixScheduler(early_stop=False), {}),
    (policies.Oracle(), ALWAYS_TIES),
    (policies.Oracle("exact"), NO_CAP),
    (policies.OracleSkip(), ALWAYS_TIES),
]

UNREPEATABLE = {
    "check_admit_is_pure",
    "check_declared_separable",
    "check_undrafted_slots",
    "check_matches_reference",
    "check_ties",
    "check_steps_are_independent",
    "check_padding",
    "check_request_permutation",
    "check_declared_truth",
    "check_declared_confidence",
}
MEMORY = {
    "check_memory_form",
    "check_remember_is_pure",
    "check_empty_steps_are_not_remembered",
    "check_memories_are_independent",
    "check_undrafted_slots_are_not_remembered",
}
BROKEN = [
    (broken.TooDeep(9), {"check_depth"}),
    (broken.OverDrafts(3), {"check_admitted_range", "check_matches_reference", "check_padding"}),
    (broken.FloatCounts(3), {"check_admitted_range"}),
    (
        broken.MarksSkipped(),
        {"check_admitted_range", "check_matches_reference", "check_padding", "check_below_oracle"},
    ),
    (broken.CutsInPlace(3), {"check_admit_is_pure"}),
    (broken.ReadsUndrafted(), {"check_undrafted_slots", "check_matches_reference", "check_padding"}),
    (broken.LastMaximum(), {"check_matches_reference"}),
    (broken.PassesFalls(), {"check_matches_reference"}),
    (broken.AdmitsTies(), {"check_ties", "check_matches_reference"}),
    (broken.TiesByRequest(), {"check_ties", "check_matches_reference"}),
    (broken.SharesBudget(), {"check_steps_are_independent", "check_matches_reference"}),
    (broken.CountsRows(), {"check_padding", "check_logit_limit", "check_matches_reference"}),
    (broken.FavoursFirst(), {"check_request_permutation", "check_matches_reference"}),
    (broken.ForgetsLogitLimit(), {"check_logit_limit", "check_matches_reference"}),
    (broken.PeeksAtVerdict(), {"check_declared_truth"}),
    (broken.HidesConfidence(), {"check_declared_confidence"}),
    (broken.CallsItselfSeparable(), {"check_declared_separable"}),
    (broken.Alternates(3), UNREPEATABLE),
    (broken.LossyFlag(), {"check_lossy"}),
    (broken.SilentOracle(), {"check_lossy"}),
    (broken.DraftsAfterAll(), {"check_depth"}),
    (broken.ForgetsFloor(floor=1), {"check_matches_reference"}),
    (broken.LooksBehindTheCut(hide_trimmed=True), {"check_matches_reference"}),
    (broken.RoundsThreshold(0.6), {"check_matches_reference"}),
    (broken.BoundsTheMean(9.0), {"check_matches_reference"}),
    (broken.ChargesFullDepth(), {"check_matches_reference"}),
    (broken.PlansTooDeep(), {"check_plan_range", "check_plan_matches_reference"}),
    (broken.PlansFractions(), {"check_plan_range"}),
    (broken.PlansInPlace(), {"check_plan_is_pure"}),
    (broken.FreeDrafting(), {"check_plan_matches_reference"}),
    (broken.OnePlanForAll(), {"check_plan_steps_are_independent", "check_plan_matches_reference"}),
    (broken.FirstRequestPlans(), {"check_plan_steps_are_independent", "check_plan_matches_reference"}),
    (broken.PlansOnTheVerdict(), {"check_plan_reads_what_it_declares"}),
    (broken.PlansOnConfidence(), {"check_plan_reads_what_it_declares", "check_plan_matches_reference"}),
    (broken.CountsTheUnready(), {"check_plan_reads_what_it_declares", "check_plan_matches_reference"}),
    (broken.RemembersNothing(), MEMORY),
    (broken.SinglePrecision(), MEMORY),
    (broken.DividesByZero(3), {"check_memory_form", "check_empty_steps_are_not_remembered"}),
    (broken.UpdatesInPlace(), {"check_remember_is_pure", "check_memories_are_independent"}),
    (broken.CountsEmptySteps(), {"check_empty_steps_are_not_remembered"}),
    (broken.SharedMemory(), {"check_memories_are_independent", "check_empty_steps_are_not_remembered"}),
    (broken.RemembersTheFirst(), {"check_memories_are_independent"}),
    (broken.CountsSeats(), {"check_memories_are_independent"}),
    (broken.RemembersUndrafted(), {"check_undrafted_slots_are_not_remembered"}),
    (broken.RemembersConfidence(), {"check_undrafted_slots_are_not_remembered"}),
]


def test_every_registered_policy_is_covered():
    assert {type(case) for case, _ in CASES} == set(policies.BUILTIN.values())


@pytest.mark.parametrize(("policy", "check"), parametrised(CASES, POLICY_CHECKS))
def test_policy_contract(policy, check):
    check(policy)


@pytest.mark.parametrize(("policy", "opt_outs"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_policy_opt_outs_are_needed(policy, opt_outs):
    assert not unneeded(POLICY_CHECKS, policy, opt_outs)


@pytest.mark.parametrize(("policy", "expected"), BROKEN, ids=[type(case).__name__ for case, _ in BROKEN])
def test_broken_policies_are_caught(policy, expected):
    without_cap = (broken.FixedDepth, broken.Goodput, broken.Threshold)
    opt_outs = NO_CAP if isinstance(policy, without_cap) else {}
    opt_outs = ALWAYS_TIES if isinstance(policy, broken.Oracle) else opt_outs
    assert failures(POLICY_CHECKS, policy, opt_outs) == expected


def test_every_policy_check_catches_something():
    assert set().union(*(caught for _, caught in BROKEN)) == {check.__name__ for check in POLICY_CHECKS}
