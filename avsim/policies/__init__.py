"""Budget policies. To add one: a file here, and a line in the imports and in `BUILTIN`."""

from __future__ import annotations

from avsim import registry
from avsim.policies.adaptive import Adaptive
from avsim.policies.adaptive_skip import AdaptiveSkip
from avsim.policies.base import NO_LOGIT_LIMIT, DraftPlan, Policy, StepBatch, StepOutcome
from avsim.policies.batch_schedule import BatchSchedule
from avsim.policies.fixed import FixedDepth
from avsim.policies.goodput import Goodput
from avsim.policies.none import NoDrafting
from avsim.policies.oracle import Oracle, OracleSkip
from avsim.policies.prefix_scheduler import PrefixScheduler
from avsim.policies.renewal import Renewal
from avsim.policies.slo import ServiceLevel
from avsim.policies.threshold import Threshold

__all__ = [
    "BUILTIN",
    "NO_LOGIT_LIMIT",
    "Adaptive",
    "AdaptiveSkip",
    "BatchSchedule",
    "DraftPlan",
    "FixedDepth",
    "Goodput",
    "NoDrafting",
    "Oracle",
    "OracleSkip",
    "Policy",
    "PrefixScheduler",
    "Renewal",
    "ServiceLevel",
    "StepBatch",
    "StepOutcome",
    "Threshold",
    "available",
    "make",
]

BUILTIN: dict[str, type[Policy]] = {
    cls.name: cls
    for cls in (
        NoDrafting,
        FixedDepth,
        BatchSchedule,
        Goodput,
        Threshold,
        Adaptive,
        AdaptiveSkip,
        Renewal,
        ServiceLevel,
        PrefixScheduler,
        Oracle,
        OracleSkip,
    )
}


def available() -> dict[str, type[Policy]]:
    """Return every policy class by name, including those of installed packages."""
    return registry.installed("policies", BUILTIN)


def make(spec: str) -> Policy:
    """Build a policy from its spec.

    >>> make("fixed:3").k
    3
    """
    policy: Policy = registry.from_spec(spec, "policies", available())
    return policy
