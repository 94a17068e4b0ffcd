"""Every option of every registered class survives its spec."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from avsim import estimators, policies
from avsim.registry import format_spec, from_spec

POSITIVE = st.floats(1e-9, 1e9)
ESTIMATORS = {
    "online-logistic": st.builds(
        estimators.OnlineLogistic,
        slope=POSITIVE,
        intercept=st.floats(-1e6, 1e6),
        l2=POSITIVE,
        damping=POSITIVE,
        feature=st.sampled_from(["log_odds", "log_odds_f32"]),
        sums=st.sampled_from(["float64", "float32"]),
        refit_interval=st.integers(1, 10**9),
    ),
    "position-rate": st.builds(
        estimators.PositionRate,
        prior=st.floats(1e-6, 1 - 1e-6),
        prior_weight=POSITIVE,
        discount=st.floats(1e-6, 1),
        refit_interval=st.integers(1, 10**9),
    ),
    "raw-confidence": st.builds(estimators.RawConfidence, refit_interval=st.integers(1, 500)),
    "oracle-label": st.builds(estimators.OracleLabel),
}
POLICIES = {
    "none": st.builds(policies.NoDrafting),
    "fixed": st.builds(policies.FixedDepth, st.integers(1, 300)),
    "adaptive": st.builds(policies.Adaptive),
    "prefix-scheduler": st.builds(policies.PrefixScheduler, st.booleans()),
    "oracle": st.builds(policies.Oracle, st.sampled_from(["budget", "exact"])),
}


@given(st.one_of(*ESTIMATORS.values()))
def test_estimator_specs_round_trip(estimator):
    assert from_spec(format_spec(estimator), "estimators", estimators.BUILTIN) == estimator


@given(st.one_of(*POLICIES.values()))
def test_policy_specs_round_trip(policy):
    assert from_spec(format_spec(policy), "policies", policies.BUILTIN) == policy


def test_every_registered_class_is_drawn():
    assert set(ESTIMATORS) == set(estimators.BUILTIN)
    assert set(POLICIES) == set(policies.BUILTIN)
