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
    (policies.Adaptive(), {}),
    (policies.Adaptive(explore=0.3), {}),
    (policies.PrefixScheduler(), {}),
    (policies.PrefixScheduler(early_stop=False), {}),
    (policies.Oracle(), ALWAYS_TIES),
    (policies.Oracle("exact"), NO_CAP),
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
    opt_outs = {broken.FixedDepth: NO_CAP, broken.Oracle: ALWAYS_TIES}.get(type(policy).__base__, {})
    assert failures(POLICY_CHECKS, policy, opt_outs) == expected


def test_every_policy_check_catches_something():
    assert set().union(*(caught for _, caught in BROKEN)) == {check.__name__ for check in POLICY_CHECKS}
