"""Folding steps into a state, and its JSON form."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from avsim.errors import InputError
from avsim.estimators import EstimatorState, OnlineLogistic, OracleLabel, PositionRate, RawConfidence, advance
from avsim.testing import drive, make_stream


def test_refits_happen_at_the_interval_and_nowhere_else() -> None:
    estimator = PositionRate(refit_interval=5)
    state = estimator.start(2)
    state = advance(estimator, state, None, 4)
    assert (state.steps_since_refit, state.refits) == (4, 0)
    state = advance(estimator, state, None, 1)
    assert (state.steps_since_refit, state.refits) == (0, 1)
    state = advance(estimator, state, None, 5)
    assert (state.steps_since_refit, state.refits) == (0, 2)


def test_steps_that_cross_a_refit_are_a_defect_of_the_caller() -> None:
    estimator = PositionRate(refit_interval=5)
    state = advance(estimator, estimator.start(2), None, 3)
    with pytest.raises(ValueError, match="3 steps cross a refit boundary after 3"):
        advance(estimator, state, None, 3)


def test_steps_without_drafts_count_towards_the_refit() -> None:
    stream = make_stream(num_steps=30)
    estimator = OnlineLogistic(refit_interval=40)
    state = drive(estimator, stream).state
    assert state.refits == 0
    state = advance(estimator, state, None, 10)
    assert state.refits == 1
    assert state.params["slope"][0] != np.float32(0.5)


def test_estimators_that_never_learn_keep_nothing() -> None:
    for estimator in (RawConfidence(), OracleLabel()):
        state = drive(estimator, make_stream(estimator.features, num_steps=120)).state
        assert not state.params
        assert not state.stats
        assert state.refits == 1


def good_state() -> dict[str, Any]:
    state = drive(OnlineLogistic(), make_stream(num_steps=130)).state
    loaded: dict[str, Any] = json.loads(json.dumps(state.to_json()))
    return loaded


@pytest.mark.parametrize("key", ["params", "stats", "steps_since_refit", "refits"])
def test_a_missing_key_is_refused(key: str) -> None:
    data = good_state()
    del data[key]
    with pytest.raises(InputError, match="estimator state"):
        EstimatorState.from_json(data)


@pytest.mark.parametrize(
    "array",
    [{"dtype": "float32", "shape": [2], "values": [1.0]}, {"dtype": "floaty", "shape": [1], "values": [1.0]}, 3, {}],
)
def test_a_malformed_array_is_refused(array: object) -> None:
    data = good_state()
    data["params"]["slope"] = array
    with pytest.raises(InputError, match="estimator state"):
        EstimatorState.from_json(data)
