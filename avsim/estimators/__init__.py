"""Acceptance estimators. To add one: a file here, and a line in the imports and in `BUILTIN`."""

from __future__ import annotations

from avsim import registry
from avsim.errors import InputError
from avsim.estimators.base import MEMORY, Arrays, Estimator, EstimatorState, advance
from avsim.estimators.bayes_logistic import BayesLogistic
from avsim.estimators.beta_bernoulli import BetaBernoulli
from avsim.estimators.confidence_head import ConfidenceHead
from avsim.estimators.isotonic import Isotonic
from avsim.estimators.multi_logistic import MultiLogistic
from avsim.estimators.offline_gbdt import OfflineGbdt
from avsim.estimators.online_logistic import OnlineLogistic
from avsim.estimators.oracle_alpha import OracleAlpha
from avsim.estimators.oracle_label import OracleLabel
from avsim.estimators.oracle_prob import OracleProb
from avsim.estimators.position_rate import PositionRate
from avsim.estimators.prefix_survival import PrefixSurvival
from avsim.estimators.raw_confidence import RawConfidence
from avsim.estimators.request_adaptive import RequestAdaptive
from avsim.estimators.slot_logit import SlotLogit
from avsim.estimators.temperature import Temperature, TemperatureOffline

__all__ = [
    "BUILTIN",
    "MEMORY",
    "Arrays",
    "BayesLogistic",
    "BetaBernoulli",
    "ConfidenceHead",
    "Estimator",
    "EstimatorState",
    "Isotonic",
    "MultiLogistic",
    "OfflineGbdt",
    "OnlineLogistic",
    "OracleAlpha",
    "OracleLabel",
    "OracleProb",
    "PositionRate",
    "PrefixSurvival",
    "RawConfidence",
    "RequestAdaptive",
    "SlotLogit",
    "Temperature",
    "TemperatureOffline",
    "advance",
    "available",
    "make",
    "make_online",
]

BUILTIN: dict[str, type[Estimator]] = {
    cls.name: cls
    for cls in (
        OnlineLogistic,
        PositionRate,
        RawConfidence,
        OracleLabel,
        BetaBernoulli,
        ConfidenceHead,
        Isotonic,
        Temperature,
        TemperatureOffline,
        BayesLogistic,
        MultiLogistic,
        RequestAdaptive,
        PrefixSurvival,
        SlotLogit,
        OracleAlpha,
        OracleProb,
        OfflineGbdt,
    )
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


def make_online(spec: str) -> Estimator:
    """Build an estimator that can start to serve as it is.

    Raises:
        InputError: it has to be fitted beforehand; unfitted it would predict its cold start for ever.
    """
    estimator = make(spec)
    if estimator.offline:
        raise InputError(
            f"{estimator.name} is fitted offline and learns nothing while serving, so it cannot be served cold; "
            "`avsim compare` fits it on one half of a trace and judges it on the other (--loads for throughput)"
        )
    return estimator
