from __future__ import annotations

import broken_estimators as broken
import numpy as np
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
SCALES_ONLY = {
    "check_recovers_rates": "a temperature has no level to learn: log-odds of 0 stay at 0.5",
    "check_recovers_logistic_law": "a temperature has no level to learn: log-odds of 0 stay at 0.5",
}
POOLS_SLOTS = {"check_starved_slot": "a slot without data follows the other slots, not the cold start"}
ONE_CURVE = POOLS_SLOTS | {
    "check_recovers_rates": "one curve for all slots",
    "check_recovers_logistic_law": "one curve for all slots",
}
STEPS = {"check_recovers_logistic_law": "its 15 bins are steps, 0.02 from the law on average"}
SHARED_SLOPE = {"check_starved_slot": "the slope is shared, and a confidence of 0 is no logit of 0"}
COMMON_LEVEL = {"check_starved_slot": "a slot that is never verified moves with the common level"}
OWN_LEVEL = COMMON_LEVEL | {"check_recovers_logistic_law": "each request's level is noise where none differ"}
ONLY_PRODUCTS = {"check_recovers_rates": "survivals alone tell the rates of two neighbouring slots apart slowly"}
FEW_TREES = {"check_recovers_logistic_law": "a few small trees are steps, 0.03 from the law"}

CASES = [
    (estimators.OnlineLogistic(), {}),
    (estimators.OnlineLogistic(sums="float32"), {}),
    (estimators.OnlineLogistic(feature="log_odds_f32", refit_interval=17), {}),
    (estimators.PositionRate(), NO_FEATURES),
    (estimators.PositionRate(discount=0.9, prior=0.7), NO_FEATURES),
    (estimators.RawConfidence(), NEVER_LEARNS),
    (estimators.OracleLabel(), KNOWS),
    (estimators.Temperature(), SCALES_ONLY),
    (estimators.Temperature(feature="confidence", discount=0.8, refit_interval=37), SCALES_ONLY),
    (estimators.TemperatureOffline(), SCALES_ONLY),
    (estimators.TemperatureOffline(feature="confidence"), SCALES_ONLY),
    (estimators.Isotonic(), POOLS_SLOTS),
    (estimators.Isotonic(shared=True, discount=1.0), ONE_CURVE),
    (estimators.BetaBernoulli(), STEPS),
    (estimators.ConfidenceHead(), NEVER_LEARNS),
    (estimators.ConfidenceHead(recalibrate=True), SHARED_SLOPE),
    (estimators.BayesLogistic(), COMMON_LEVEL),
    (estimators.BayesLogistic(predictive="posterior", feature="log_odds_f32", refit_interval=17), COMMON_LEVEL),
    (estimators.BayesLogistic(explore=True, seed=3, half_life=np.inf, level_half_life=np.inf), COMMON_LEVEL),
    (estimators.MultiLogistic(), COMMON_LEVEL),
    (estimators.MultiLogistic(history=False), COMMON_LEVEL),
    (estimators.MultiLogistic(logits=False, half_life=np.inf), COMMON_LEVEL),
    (estimators.RequestAdaptive(), OWN_LEVEL),
    (estimators.RequestAdaptive(request_half_life=np.inf, predictive="posterior"), COMMON_LEVEL),
    (estimators.PrefixSurvival(), {}),
    (estimators.PrefixSurvival(conditional_share=0.0), ONLY_PRODUCTS),
    (estimators.PrefixSurvival(conditional_share=1.0), {}),
    (estimators.PrefixSurvival(entropy=False, margin=False, drawn=False), {}),
    (estimators.SlotLogit(), {}),
    (estimators.OracleAlpha(), {}),
    (estimators.OracleProb(), KNOWS),
    (estimators.OfflineGbdt(trees=20, learning_rate=0.3, refit_interval=12), FEW_TREES),
    (estimators.OfflineGbdt(trees=30, depth=2, learning_rate=0.4, draw=False, seed=1, refit_interval=12), FEW_TREES),
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
