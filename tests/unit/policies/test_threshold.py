"""Thresholds on numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from planning import batch_for, cost_tables

from avsim import policies
from avsim.errors import InputError
from avsim.policies import Threshold

LIVE = np.array([[0.9, 0.5, 0.8], [0.7, 0.9, 0.6], [0.9, 0.9, 0.4], [0.7, 0.9, 0.9]])
BATCH = batch_for(LIVE, cost_tables(3, draft=1, per_token=1))


def test_it_stops_at_the_first_token_below() -> None:
    assert Threshold(0.6).admit(BATCH).tolist() == [[4, 0, 2]]
    assert Threshold(0.0).admit(BATCH).tolist() == [[4, 4, 4]]
    assert Threshold(1.0).admit(BATCH).tolist() == [[0, 0, 0]]


def test_or_at_the_first_survival_below() -> None:
    # Survivals: .9 .63 .567 .397, .5 …, .8 .48 …
    assert Threshold(0.5, on="survival").admit(BATCH).tolist() == [[3, 1, 1]]


def test_a_confidence_of_exactly_p_passes() -> None:
    """0.7 in float32 is below 0.7 in float64; both are read in float32."""
    assert Threshold(0.7).admit(BATCH).tolist() == [[4, 0, 1]]


def test_it_is_exact_at_any_lag_and_takes_probabilities_only() -> None:
    assert [Threshold(0.5).lossy(lag) for lag in (0, 1)] == [None, None]
    assert policies.make("threshold:0.5,on=survival") == Threshold(0.5, on="survival")
    for spec in ("threshold:1.5", "threshold:-0.1", "threshold:nan"):
        with pytest.raises(InputError, match="between 0 and 1"):
            policies.make(spec)
