"""What to compare, and on which walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from avsim import estimators
from avsim.errors import InputError
from avsim.estimators.base import Estimator
from avsim.sources.base import Trace

__all__ = ["CompareConfig"]


@dataclass(frozen=True, slots=True)
class CompareConfig:
    """What to compare, and on which walks.

    Attributes:
        estimators: specs, the reference of the paired differences first; `all` stands for every one that fits.
        admission: what is verified: `full`, or a policy's spec.
        admission_estimator: the estimator that an adaptive admission reads.
        cost: step costs that a ranking admission reads, a preset or a file.
        what_if: allow step costs of another model than the trace's.
        concurrency: requests in a step, which fixes how many blocks lie between two refits.
        num_slots: truncate the trace's K.
        offsets: output positions at which requests begin, one walk each; None for 0 … K, at most 8 of them evenly.
        masked: whether labels that the trace's mask calls unfit are learned from.
        prior: traces to learn from beforehand; every estimator then starts from what it learned there.
        loads: concurrent requests at which to simulate `adaptive` reading each estimator; needs `cost`.
        belief: step costs that `adaptive` reads there; None for `cost`.
        explain: split the distance to the oracle at each load into what a user could mend.
        replicates: resamples of source requests in the simulations.
        warm_steps: steps on the other half of the requests before a simulation counts, the same for every estimator.
        vocab: the model's vocabulary, for the limit on logit rows; None for what the step costs or the trace say.
        then: traces (paths) or `category=NAME` to which the traffic changes.
        drift_steps: steps before and after a change.
        influence: say whose labels move whose confidences.
        bootstrap: resamples of source requests for the intervals.
        seed: of orders and resamples.
    """

    estimators: tuple[str, ...] = ("all",)
    admission: str = "full"
    admission_estimator: str = "online-logistic"
    cost: str | None = None
    what_if: bool = False
    concurrency: int = 8
    num_slots: int | None = None
    offsets: int | None = None
    masked: Literal["exclude", "include"] = "exclude"
    prior: tuple[str, ...] = ()
    loads: tuple[int, ...] = ()
    belief: str | None = None
    explain: bool = False
    replicates: int = 20
    warm_steps: int = 300
    vocab: int | None = None
    then: tuple[str, ...] = ()
    drift_steps: int = 1000
    influence: bool = False
    bootstrap: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.estimators:
            raise InputError("name at least one estimator")
        if self.loads and self.cost is None:
            raise InputError("simulated throughput needs step costs: pass --cost (see `avsim list costs`)")
        if any(load < 1 for load in self.loads):
            raise InputError(f"loads must be at least 1, not {min(self.loads)}")
        if self.explain and not self.loads:
            raise InputError("--explain splits simulated throughput: pass --loads as well")
        if self.belief is not None and not self.loads:
            raise InputError("--belief is what simulated decisions read: pass --loads as well")
        for name, least in (("concurrency", 1), ("bootstrap", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.drift_steps < 100:
            raise InputError(f"drift_steps must be at least 100, not {self.drift_steps}")
        if self.offsets is not None and self.offsets < 1:
            raise InputError(f"offsets must be at least 1, not {self.offsets}")

    def chosen(self, trace: Trace) -> list[Estimator]:
        """Return the estimators to compare on a trace.

        Raises:
            InputError: a spec is wrong.
        """
        if self.estimators != ("all",):
            return [estimators.make(spec) for spec in self.estimators]
        held = {*trace.features, "label"}
        fitting = [cls for cls in estimators.available().values() if not _required(cls)]
        found = [estimator for estimator in (cls() for cls in fitting) if set(estimator.features) <= held]
        return sorted(found, key=lambda item: item.name != "online-logistic")


def _required(cls: type[Estimator]) -> bool:
    """Say whether an estimator cannot be made without options."""
    try:
        cls()
    except TypeError:
        return True
    return False
