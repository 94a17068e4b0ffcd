"""Public contract suites: what every estimator, policy, cost model and trace must satisfy, callable without pytest.

    from avsim.testing import check_estimator
    check_estimator(MyEstimator(), {"check_recovers_rates": "it never learns"})

A check raises AssertionError with what is violated. `ESTIMATOR_CHECKS` and its siblings list the checks one by
one, so that a test runner can parametrise over them; an opt-out names a check and gives the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

from avsim.costs.base import CostModel
from avsim.estimators.base import Estimator
from avsim.policies.base import Policy
from avsim.sources.base import Trace
from avsim.testing.cost_checks import COST_CHECKS
from avsim.testing.estimator_interface import INTERFACE_CHECKS
from avsim.testing.estimator_learning import LEARNING_CHECKS
from avsim.testing.policy_checks import POLICY_CHECKS
from avsim.testing.runner import run_checks
from avsim.testing.source_checks import SOURCE_CHECKS
from avsim.testing.stream import Driven, Stream, drive, make_stream

__all__ = [
    "COST_CHECKS",
    "ESTIMATOR_CHECKS",
    "POLICY_CHECKS",
    "SOURCE_CHECKS",
    "Driven",
    "Stream",
    "check_cost",
    "check_estimator",
    "check_policy",
    "check_source",
    "drive",
    "make_stream",
    "run_checks",
]

ESTIMATOR_CHECKS = (*INTERFACE_CHECKS, *LEARNING_CHECKS)


def check_estimator(estimator: Estimator, opt_outs: Mapping[str, str] | None = None) -> None:
    """Run `ESTIMATOR_CHECKS` on an estimator.

    Args:
        estimator: an instance with the options to check.
        opt_outs: check name to the reason why it does not apply.

    Raises:
        AssertionError: the first broken check.

    >>> from avsim.estimators import PositionRate
    >>> check_estimator(PositionRate(), {"check_recovers_logistic_law": "it reads no features"})
    """
    run_checks(ESTIMATOR_CHECKS, estimator, opt_outs)


def check_policy(policy: Policy, opt_outs: Mapping[str, str] | None = None) -> None:
    """Run `POLICY_CHECKS` on a policy; arguments and errors as `check_estimator`.

    >>> from avsim.policies import Adaptive
    >>> check_policy(Adaptive())
    """
    run_checks(POLICY_CHECKS, policy, opt_outs)


def check_cost(model: CostModel, opt_outs: Mapping[str, str] | None = None) -> None:
    """Run `COST_CHECKS` on a cost model; arguments and errors as `check_estimator`."""
    run_checks(COST_CHECKS, model, opt_outs)


def check_source(trace: Trace, opt_outs: Mapping[str, str] | None = None) -> None:
    """Run `SOURCE_CHECKS` on an opened trace, which they read into memory; arguments and errors as `check_estimator`.

    An importer is checked through a trace that it made: `check_source(import_trace(spec, file, folder))`.
    """
    run_checks(SOURCE_CHECKS, trace, opt_outs)
