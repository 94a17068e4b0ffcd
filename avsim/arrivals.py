"""When requests arrive: processes for an open loop, found by name with options: `bursty:8,cv=3`.

To add one: a frozen dataclass here, and its name in `BUILTIN`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim import registry
from avsim.errors import InputError
from avsim.types import F64Array

__all__ = ["BUILTIN", "ArrivalProcess", "Bursty", "Poisson", "Ramp", "Recorded", "available", "make"]


@dataclass(frozen=True)
class ArrivalProcess(ABC):
    """Base of every arrival process; subclasses are frozen dataclasses of options.

    The nth arrival of a run depends on its seed and n only, so every arm meets the same arrivals, and a longer
    sequence begins as a shorter one does.
    """

    name: ClassVar[str]
    positional: ClassVar[str | None] = None

    @abstractmethod
    def times_ms(self, num: int, seeds: Sequence[Sequence[int]], recorded_ms: F64Array | None = None) -> F64Array:
        """Return when the first `num` requests of each run arrive, ms, rising, float64 `[runs, num]`.

        Args:
            num: requests of a run.
            seeds: one per run.
            recorded_ms: arrival times of a trace's requests, rising; for `recorded` only.
        """

    @abstractmethod
    def rate_req_s(self, recorded_ms: F64Array | None = None) -> float:
        """Return the highest mean rate that a run comes to, requests/s."""


def _chances(num: int, seeds: Sequence[Sequence[int]]) -> F64Array:
    """Return one number in (0, 1) per run and turn, `[runs, num]`."""
    lines = [np.random.default_rng(list(seed)).random(num) for seed in seeds]
    return np.clip(np.stack(lines), 2.0**-53, 1 - 2.0**-53)


def _check_rate(name: str, rate: float, what: str = "rate") -> None:
    if not 0 < rate < float("inf"):
        raise InputError(f"{name}: {what} is in requests per second, so finite and above 0, not {rate}")


@dataclass(frozen=True)
class Poisson(ArrivalProcess):
    """Independent arrivals at a mean rate, requests/s: exponential gaps.

    >>> bool(Poisson(rate=4.0).times_ms(1000, [[0]])[0, -1] > 200_000)
    True
    """

    name: ClassVar[str] = "poisson"
    positional: ClassVar[str | None] = "rate"

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.name, self.rate)

    def times_ms(self, num: int, seeds: Sequence[Sequence[int]], recorded_ms: F64Array | None = None) -> F64Array:
        return np.cumsum(-np.log1p(-_chances(num, seeds)), axis=1) * (1e3 / self.rate)

    def rate_req_s(self, recorded_ms: F64Array | None = None) -> float:
        return self.rate


@dataclass(frozen=True)
class Bursty(ArrivalProcess):
    """Arrivals at a mean rate, requests/s, with gamma gaps of a coefficient of variation `cv`; 1 is Poisson.

    Gaps have shape 1/cv²; above 1, requests come in bunches. Source: the gamma arrivals of `vllm bench serve`
    (`--burstiness` is the shape, 1/cv²).
    """

    name: ClassVar[str] = "bursty"
    positional: ClassVar[str | None] = "rate"

    rate: float
    cv: float = 3.0

    def __post_init__(self) -> None:
        _check_rate(self.name, self.rate)
        if not 0.05 <= self.cv <= 20:
            raise InputError(f"{self.name}: cv must lie between 0.05 and 20 (1 is Poisson), not {self.cv}")

    def times_ms(self, num: int, seeds: Sequence[Sequence[int]], recorded_ms: F64Array | None = None) -> F64Array:
        from scipy.special import gammaincinv

        shape = self.cv**-2
        gaps = gammaincinv(shape, _chances(num, seeds)) / shape
        return np.cumsum(gaps, axis=1) * (1e3 / self.rate)

    def rate_req_s(self, recorded_ms: F64Array | None = None) -> float:
        return self.rate


@dataclass(frozen=True)
class Ramp(ArrivalProcess):
    """Poisson arrivals whose rate goes from `rate` to `to`, requests/s, linearly in time over the run.

    With Λ(t) = rate·t + (to − rate)·t²/2T for a run of length T = 2·num / (rate + to), arrivals are Λ⁻¹ of those of a
    Poisson process of rate 1; past T the rate stays at `to`.
    """

    name: ClassVar[str] = "ramp"
    positional: ClassVar[str | None] = "rate"

    rate: float
    to: float

    def __post_init__(self) -> None:
        _check_rate(self.name, self.rate)
        _check_rate(self.name, self.to, "to")

    def times_ms(self, num: int, seeds: Sequence[Sequence[int]], recorded_ms: F64Array | None = None) -> F64Array:
        counts = np.cumsum(-np.log1p(-_chances(num, seeds)), axis=1)
        span = 2 * num / (self.rate + self.to)
        slope = (self.to - self.rate) / span
        inside = np.minimum(counts, num)
        # The stable root of slope/2·t² + rate·t = inside, also where the slope is 0.
        times = 2 * inside / (self.rate + np.sqrt(np.maximum(self.rate**2 + 2 * slope * inside, 0.0)))
        return (times + (counts - inside) / self.to) * 1e3

    def rate_req_s(self, recorded_ms: F64Array | None = None) -> float:
        return max(self.rate, self.to)


@dataclass(frozen=True)
class Recorded(ArrivalProcess):
    """The trace's own arrivals; `scale` multiplies their rate. Runs longer than the trace repeat it.

    Each request keeps its own arrival in run 0; in the resamples of the intervals other requests arrive then.
    """

    name: ClassVar[str] = "recorded"
    positional: ClassVar[str | None] = "scale"

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise InputError(f"{self.name}: scale multiplies the rate, so finite and above 0, not {self.scale}")

    def times_ms(self, num: int, seeds: Sequence[Sequence[int]], recorded_ms: F64Array | None = None) -> F64Array:
        once = self._times(recorded_ms)
        rounds = np.arange(-(-num // len(once)))
        # The gap between two rounds is the mean gap.
        period = once[-1] - once[0] + self._gap(once)
        line = (rounds[:, None] * period + (once - once[0])).ravel()[:num]
        return np.tile(line / self.scale, (len(seeds), 1))

    def rate_req_s(self, recorded_ms: F64Array | None = None) -> float:
        return self.scale * 1e3 / self._gap(self._times(recorded_ms))

    def _times(self, recorded_ms: F64Array | None) -> F64Array:
        if recorded_ms is None or len(recorded_ms) < 2 or not np.isfinite(recorded_ms).all():
            raise InputError(
                f"{self.name}: the trace does not record when its requests arrived (arrival_s); "
                "name a rate instead, such as poisson:4"
            )
        if recorded_ms[-1] <= recorded_ms[0]:
            raise InputError(f"{self.name}: all requests of the trace arrived at once; name a rate, such as poisson:4")
        return recorded_ms

    @staticmethod
    def _gap(once: F64Array) -> float:
        return float(once[-1] - once[0]) / (len(once) - 1)


BUILTIN: dict[str, type[ArrivalProcess]] = {cls.name: cls for cls in (Poisson, Bursty, Ramp, Recorded)}


def available() -> dict[str, type[ArrivalProcess]]:
    """Return every arrival process by name, including those of installed packages."""
    return registry.installed("arrivals", BUILTIN)


def make(spec: str) -> ArrivalProcess:
    """Build an arrival process from its spec.

    >>> make("bursty:8,cv=2")
    Bursty(rate=8.0, cv=2.0)
    """
    process: ArrivalProcess = registry.from_spec(spec, "arrivals", available())
    return process
