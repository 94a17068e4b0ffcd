"""The contract of `avsim.testing`, check by check."""

import pytest
from recent_length import RecentLength

from avsim.testing import POLICY_CHECKS

OPT_OUTS = {
    "check_matches_reference": "the slow rules of avsim.testing know avsim's own policies",
    "check_plan_matches_reference": "the slow rules of avsim.testing know avsim's own policies",
    "check_logit_limit": "it verifies what it drafts, whatever the rejection sampler can take",
}


@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("policy", [RecentLength(), RecentLength(margin=2, half_life=3.0)], ids=["default", "quick"])
def test_contract(policy, check):
    if check.__name__ in OPT_OUTS:
        with pytest.raises(AssertionError):  # an opt-out that is not needed should go
            check(policy)
    else:
        check(policy)
