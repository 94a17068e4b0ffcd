"""Opt-outs name a check and give a reason."""

from __future__ import annotations

import pytest

from avsim.errors import InputError
from avsim.estimators import PositionRate, RawConfidence
from avsim.testing import check_estimator, run_checks


def check_small(value):
    """Pass below 5."""
    assert value < 5, f"{value} is not small"


def check_even(value):
    """Pass on even numbers."""
    assert value % 2 == 0, f"{value} is odd"


CHECKS = (check_small, check_even)


def test_the_first_broken_check_is_named():
    run_checks(CHECKS, 4)
    with pytest.raises(AssertionError, match="check_small: 7 is not small"):
        run_checks(CHECKS, 7)
    with pytest.raises(AssertionError, match="check_even: 7 is odd"):
        run_checks(CHECKS, 7, {"check_small": "it is large on purpose"})


def test_an_opt_out_must_name_a_check_and_give_a_reason():
    with pytest.raises(InputError, match="opt-out 'check_smal' names no check; did you mean 'check_small'"):
        run_checks(CHECKS, 4, {"check_smal": "a typo"})
    with pytest.raises(InputError, match="opt-out 'check_small' gives no reason"):
        run_checks(CHECKS, 4, {"check_small": "  "})


def test_an_estimator_without_its_opt_out_fails():
    with pytest.raises(AssertionError, match="check_recovers_logistic_law: confidences are 0"):
        check_estimator(PositionRate())
    with pytest.raises(AssertionError, match="check_recovers_rates"):
        check_estimator(RawConfidence())
