"""oracle-alpha: the recorded α where it is known, the slot's mean of α elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.errors import InputError
from avsim.estimators import OracleAlpha
from avsim.types import Observations

NAN = float("nan")


def test_recorded_values_pass_and_unknown_ones_are_the_prior() -> None:
    estimator = OracleAlpha(prior=0.7)
    alpha = np.array([[0.25, 1.00001], [NAN, 0.5]], dtype=np.float32)
    p = estimator.predict(estimator.init(2), {"alpha": alpha}, (2, 2))
    assert p == pytest.approx(np.array([[0.25, 1.0], [0.7, 0.5]]))
    assert p.dtype == np.float32
    assert np.isnan(alpha[1, 0])


def test_unknown_values_become_the_mean_of_the_slots_observed_ones() -> None:
    estimator = OracleAlpha(prior=0.5, prior_weight=2.0)
    alpha = np.array([[0.9, 0.8, 0.1], [0.6, NAN, 0.3], [0.2, NAN, NAN]], dtype=np.float32)
    admitted, accepted = np.array([2, 2, 0]), np.array([1, 0, 0])
    p = estimator.predict(estimator.init(3), {"alpha": alpha}, (3, 3))
    seen = Observations.grade({"alpha": alpha}, p, admitted, accepted, np.array([0, 3]))
    stats = estimator.accumulate(estimator.zero_stats(3), seen)
    # Row 2 was not verified, so neither its 0.1 nor its 0.3 may count; nor row 0's third slot, not admitted.
    assert stats["count"].tolist() == [2, 1, 0]
    params, kept = estimator.refit(estimator.init(3), stats)
    assert params["rate"] == pytest.approx([(0.9 + 0.8 + 1) / 4, (0.6 + 1) / 3, 0.5])
    assert kept["count"].tolist() == [2, 1, 0]
    unknown = np.full((3, 1), NAN, dtype=np.float32)
    assert estimator.predict(params, {"alpha": unknown}, (3, 1))[:, 0] == pytest.approx(params["rate"])


def test_an_observed_slot_without_a_recorded_value_is_left_out() -> None:
    estimator = OracleAlpha()
    alpha = np.array([[NAN, 0.4]], dtype=np.float32)
    p = estimator.predict(estimator.init(1), {"alpha": alpha}, (1, 2))
    seen = Observations.grade({"alpha": alpha}, p, np.array([1, 1]), np.array([1, 0]), np.array([0, 2]))
    stats = estimator.accumulate(estimator.zero_stats(1), seen)
    assert stats["count"].tolist() == [1]
    assert stats["total"] == pytest.approx([0.4])


def test_it_knows_the_truth_but_not_the_token() -> None:
    assert OracleAlpha.uses_truth
    assert not OracleAlpha.uses_drawn_token


@pytest.mark.parametrize("options", [{"prior": 0.0}, {"prior": 1.0}, {"prior_weight": 0.0}, {"prior_weight": np.inf}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="oracle-alpha: prior must lie in"):
        OracleAlpha(**options)
