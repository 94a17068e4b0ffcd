"""Every option of every registered class survives its spec."""

from __future__ import annotations

import dataclasses
import typing

from hypothesis import assume, given
from hypothesis import strategies as st

from avsim import estimators, policies
from avsim.errors import InputError
from avsim.registry import format_spec, from_spec


@st.composite
def near_defaults(draw, cls):
    """Draw an instance with some options moved from their defaults; what the class refuses is not drawn."""
    hints, options = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        if not draw(st.booleans()):
            continue
        if typing.get_origin(hints[field.name]) is typing.Literal:
            options[field.name] = draw(st.sampled_from(typing.get_args(hints[field.name])))
        elif hints[field.name] is bool:
            options[field.name] = draw(st.booleans())
        elif hints[field.name] is int:
            options[field.name] = field.default + draw(st.integers(0, 9))
        else:
            options[field.name] = field.default * draw(st.floats(0.1, 1))
    try:
        return cls(**options)
    except InputError:
        assume(False)


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
}
ESTIMATORS |= {name: near_defaults(cls) for name, cls in estimators.BUILTIN.items() if name not in ESTIMATORS}
POLICIES = {
    "none": st.builds(policies.NoDrafting),
    "fixed": st.builds(policies.FixedDepth, st.integers(1, 300)),
    "batch-schedule": st.builds(
        policies.BatchSchedule,
        st.sampled_from(["1-:3", "1-32:5/33-128:3/129-:0", "5-9:0/1-4:1"]),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    "goodput": st.builds(
        policies.Goodput, st.sampled_from(["one", "per-slot"]), st.integers(1, 10**6), st.integers(0, 10**6)
    ),
    "threshold": st.builds(policies.Threshold, st.floats(0, 1), st.sampled_from(["token", "survival"])),
    "adaptive": st.builds(policies.Adaptive, st.floats(0, 1), st.integers(0, 300), st.booleans()),
    "adaptive+skip": st.builds(policies.AdaptiveSkip, st.integers(0, 10**6), st.integers(1, 10**6)),
    "renewal": st.builds(policies.Renewal, st.integers(0, 10**6)),
    "slo": st.builds(policies.ServiceLevel, POSITIVE),
    "prefix-scheduler": st.builds(policies.PrefixScheduler, st.booleans()),
    "oracle": st.builds(policies.Oracle, st.sampled_from(["budget", "exact"])),
    "oracle+skip": st.builds(policies.OracleSkip),
}


@given(st.one_of(*ESTIMATORS.values()))
def test_estimator_specs_round_trip(estimator):
    assert from_spec(format_spec(estimator), "estimators", estimators.BUILTIN) == estimator


@given(st.one_of(*POLICIES.values()))
def test_policy_specs_round_trip(policy):
    assert from_spec(format_spec(policy), "policies", policies.BUILTIN) == policy


def test_every_registered_policy_is_drawn():
    assert set(POLICIES) == set(policies.BUILTIN)
