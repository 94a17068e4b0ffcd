"""Every option of every registered class survives its spec."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from avsim import estimators, policies
from avsim.registry import format_spec, from_spec

POSITIVE = st.floats(1e-9, 1e9)
ESTIMATORS = st.one_of(
    st.builds(
        estimators.OnlineLogistic,
        slope=POSITIVE,
        intercept=st.floats(-1e6, 1e6),
        l2=POSITIVE,
        damping=POSITIVE,
        feature=st.sampled_from(["log_odds", "log_odds_f32"]),
        sums=st.sampled_from(["float64", "float32"]),
        refit_interval=st.integers(1, 10**9),
    ),
    st.builds(
        estimators.PositionRate,
        prior=st.floats(1e-6, 1 - 1e-6),
        prior_weight=POSITIVE,
        discount=st.floats(1e-6, 1),
        refit_interval=st.integers(1, 10**9),
    ),
    st.builds(estimators.RawConfidence, refit_interval=st.integers(1, 500)),
    st.builds(estimators.OracleLabel),
)
POLICIES = st.one_of(
    st.builds(policies.NoDrafting),
    st.builds(policies.FixedDepth, st.integers(1, 300)),
    st.builds(policies.Adaptive),
    st.builds(policies.PrefixScheduler, st.booleans()),
    st.builds(policies.Oracle, st.sampled_from(["budget", "exact"])),
)


@given(ESTIMATORS)
def test_estimator_specs_round_trip(estimator):
    assert from_spec(format_spec(estimator), "estimators", estimators.BUILTIN) == estimator


@given(POLICIES)
def test_policy_specs_round_trip(policy):
    assert from_spec(format_spec(policy), "policies", policies.BUILTIN) == policy


def test_every_registered_class_is_drawn():
    """A class that is missing here would make the round trips vacuous for it."""
    drawn = {"online-logistic", "position-rate", "raw-confidence", "oracle-label"}
    assert drawn == set(estimators.BUILTIN)
    assert {"none", "fixed", "adaptive", "prefix-scheduler", "oracle"} == set(policies.BUILTIN)
