"""Acceptance estimators. To add one: a file here, and a line in the imports and in `BUILTIN`."""

from __future__ import annotations

from avsim import registry
from avsim.estimators.base import Arrays, Estimator, EstimatorState, advance
from avsim.estimators.online_logistic import OnlineLogistic
from avsim.estimators.oracle_label import OracleLabel
from avsim.estimators.position_rate import PositionRate
from avsim.estimators.raw_confidence import RawConfidence

__all__ = [
    "BUILTIN",
    "Arrays",
    "Estimator",
    "EstimatorState",
    "OnlineLogistic",
    "OracleLabel",
    "PositionRate",
    "RawConfidence",
    "advance",
    "available",
    "make",
]

BUILTIN: dict[str, type[Estimator]] = {
    cls.name: cls for cls in (OnlineLogistic, PositionRate, RawConfidence, OracleLabel)
}


def available() -> dict[str, type[Estimator]]:
    """Return every estimator class by name, including those of installed packages."""
    return registry.installed("estimators", BUILTIN)


def make(spec: str) -> Estimator:
    """Build an estimator from its spec.

    >>> make("online-logistic:l2=1e-2").l2
    0.01
    """
    estimator: Estimator = registry.from_spec(spec, "estimators", available())
    return estimator
