from __future__ import annotations

import broken_estimators as broken
import pytest
from contract_cases import failures, parametrised, unneeded

from avsim import estimators
from avsim.testing import ESTIMATOR_CHECKS

NO_FEATURES = {"check_recovers_logistic_law": "it reads no features"}
NEVER_LEARNS = {
    "check_recovers_rates": "it never learns: it repeats the drafter's own belief",
    "check_recovers_logistic_law": "it never learns: it repeats the drafter's own belief",
}
KNOWS = {"check_recovers_logistic_law": "it knows the outcome, not its probability"}

CASES = [
    (estimators.OnlineLogistic(), {}),
    (estimators.OnlineLogistic(sums="float32"), {}),
    (estimators.OnlineLogistic(feature="log_odds_f32", refit_interval=17), {}),
    (estimators.PositionRate(), NO_FEATURES),
    (estimators.PositionRate(discount=0.9, prior=0.7), NO_FEATURES),
    (estimators.RawConfidence(), NEVER_LEARNS),
    (estimators.OracleLabel(), KNOWS),
]

SPLITS = {"check_statistics_add", "check_block_split_invariance"}
COMPARES_RUNS = {
    "check_state_json",
    "check_block_split_invariance",
    "check_no_look_ahead",
    "check_request_order",
    "check_same_input_same_result",
    "check_starved_slot",
}
HIDDEN_MEMORY = COMPARES_RUNS | {"check_only_refit_changes_predictions", "check_recovers_rates"}
UNREPEATABLE = COMPARES_RUNS | {"check_unobserved_labels", "check_unobserved_values"}
BROKEN = [
    (broken.Float64Output(refit_interval=50), {"check_output_type"}),
    (broken.LinearProbability(refit_interval=50), {"check_probability_range", "check_recovers_rates"}),
    (broken.PeeksEntropy(refit_interval=50), {"check_declared_features"}),
    (broken.ScalesInPlace(), {"check_predict_is_pure"}),
    (broken.AddsInPlace(refit_interval=50), {"check_learning_is_pure"}),
    (broken.LearnsAtOnce(refit_interval=50), HIDDEN_MEMORY),
    (broken.StructuredStats(refit_interval=50), {"check_state_json", "check_statistics_add"}),
    (broken.KeepsHistory(refit_interval=50), {"check_state_size"}),
    (broken.AveragesPerCall(refit_interval=50), SPLITS),
    (broken.SingleSums(), SPLITS),
    (broken.StandardisesBlock(), SPLITS | {"check_no_look_ahead"}),
    (
        broken.LearnsUnobserved(refit_interval=50),
        {"check_unobserved_labels", "check_starved_slot", "check_recovers_rates"},
    ),
    (broken.MasksByZero(), {"check_unobserved_values"}),
    (broken.ForgetsByRow(refit_interval=50), {"check_request_order", "check_recovers_rates"}),
    (broken.DrawsFreely(refit_interval=50), UNREPEATABLE),
    (broken.RawNewton(refit_interval=50), {"check_degenerate_data"}),
    (broken.BorrowsDepth(refit_interval=50), {"check_starved_slot"}),
    (broken.JointRate(refit_interval=50), {"check_recovers_rates"}),
    (broken.RemembersTheBatch(refit_interval=50), {"check_memory", "check_unobserved_labels"}),
    (broken.FrozenSlope(), {"check_recovers_logistic_law"}),
]


def test_every_registered_estimator_is_covered():
    assert {type(case) for case, _ in CASES} == set(estimators.BUILTIN.values())


@pytest.mark.parametrize(("estimator", "check"), parametrised(CASES, ESTIMATOR_CHECKS))
def test_estimator_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize(("estimator", "opt_outs"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_estimator_opt_outs_are_needed(estimator, opt_outs):
    assert not unneeded(ESTIMATOR_CHECKS, estimator, opt_outs)


@pytest.mark.parametrize(("estimator", "expected"), BROKEN, ids=[type(case).__name__ for case, _ in BROKEN])
def test_broken_estimators_are_caught(estimator, expected):
    base = {} if isinstance(estimator, estimators.OnlineLogistic) else NO_FEATURES
    assert failures(ESTIMATOR_CHECKS, estimator, base) == expected


def test_every_estimator_check_catches_something():
    assert set().union(*(caught for _, caught in BROKEN)) == {check.__name__ for check in ESTIMATOR_CHECKS}
