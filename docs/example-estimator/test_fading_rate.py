"""The contract of `avsim.testing`, check by check."""

import pytest
from fading_rate import FadingRate

from avsim.testing import ESTIMATOR_CHECKS

OPT_OUTS = {"check_recovers_logistic_law": "two rates per slot are steps, and the law is a curve"}


@pytest.mark.parametrize("check", ESTIMATOR_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("estimator", [FadingRate(), FadingRate(split=-1.0, half_life=3.0)], ids=["default", "quick"])
def test_contract(estimator, check):
    if check.__name__ in OPT_OUTS:
        with pytest.raises(AssertionError):  # an opt-out that is not needed should go
            check(estimator)
    else:
        check(estimator)
