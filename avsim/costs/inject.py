"""Wrong on purpose: a clock with noise and drift, and a belief with the errors of a start-up profile.

vLLM #52057 reports of start-up profiles that real steps drift away from them, most at large batches; that one-time
spikes (JIT compilation) make a size look dear, which is then never chosen and never corrected; and that sequence
lengths differ from the profile's. `noisy` is meant for the truth, `distorted` for the belief; both are synthetic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from avsim.costs.base import CostModel, StepShape, common_terms
from avsim.costs.inject_spec import DistortedSpec, NoisySpec
from avsim.errors import InputError
from avsim.types import F64Array, IntArray

__all__ = ["DistortedCost", "NoisyCost"]


def _keyed_normal(key: IntArray, seed: int) -> F64Array:
    """Return standard normal numbers, the same for the same key and seed."""
    from scipy.special import ndtri  # a fifth of a second that only noise should pay

    from avsim.workload import keyed_uniform

    return np.asarray(ndtri(keyed_uniform(key + 1, np.full_like(key, seed)).astype(np.float64) + 2.0**-26))


def _dump(model: CostModel) -> dict[str, Any]:
    from avsim.costs import dump

    return dump(model)


def _parse(data: dict[str, Any]) -> CostModel:
    from avsim.costs import parse_document

    return parse_document(data, "base")


@dataclass(frozen=True)
class _Wrapper(CostModel):
    """Another model with its times changed; what it depends on and where it ends are the other's."""

    base: CostModel

    @property
    def uses_kv(self) -> bool:
        return self.base.uses_kv

    @property
    def draft_depends_on_depth(self) -> bool:
        return self.base.draft_depends_on_depth

    @property
    def skip_is_known(self) -> bool:
        return self.base.skip_is_known

    def outside(self, num_reqs: int, num_tokens: int) -> str | None:
        return self.base.outside(num_reqs, num_tokens)


@dataclass(frozen=True)
class NoisyCost(_Wrapper):
    """Another model's whole step times a factor: e^{σz − σ²/2} · (1 + drift).

    z is standard normal, keyed by (`StepShape.step`, seed): every run and arm meets the same noise at the same step.
    Drift grows linearly with `StepShape.clock_ms`. Where a step names neither, as in tables, the factor is 1.
    """

    name: ClassVar[str] = "noisy"
    spec: ClassVar[type[Any] | None] = NoisySpec

    sd: float = 0.0
    drift_pct: float = 0.0
    drift_minutes: float = 10.0
    drift_tokens: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.sd <= 2:
            raise InputError(f"noisy: sd must lie in [0, 2], not {self.sd}")
        if not 0 <= self.drift_pct <= 1000:
            raise InputError(f"noisy: drift_pct must lie in [0, 1000], not {self.drift_pct}")
        if not self.drift_minutes > 0 or self.drift_tokens < 0:
            raise InputError("noisy: drift_minutes must be > 0 and drift_tokens at least 0")

    def _factor(self, shape: StepShape) -> F64Array:
        factor = np.ones(len(shape.num_reqs))
        if self.sd and shape.step is not None:
            factor = np.exp(self.sd * _keyed_normal(shape.step, self.seed) - self.sd**2 / 2)
        if self.drift_pct and shape.clock_ms is not None:
            grown = np.minimum(shape.clock_ms / (self.drift_minutes * 60e3), 1.0)
            share = np.minimum(shape.num_tokens / self.drift_tokens, 1.0) if self.drift_tokens else 1.0
            factor = factor * (1 + self.drift_pct / 100 * grown * share)
        return factor

    def verify_ms(self, shape: StepShape) -> F64Array:
        return self._factor(shape) * (self.base.verify_ms(shape) + self.base.overhead_ms)

    def draft_ms(self, shape: StepShape) -> F64Array:
        return self._factor(shape) * self.base.draft_ms(shape)

    def to_json(self) -> dict[str, Any]:
        own = ("sd", "drift_pct", "drift_minutes", "drift_tokens", "seed")
        return self.common_json() | {"base": _dump(self.base)} | {term: getattr(self, term) for term in own}

    @classmethod
    def from_json(cls, data: dict[str, Any], card: Any) -> NoisyCost:
        """Build from the JSON form; raises KeyError, TypeError or ValueError where it is malformed."""
        own = {term: float(data[term]) for term in ("sd", "drift_pct", "drift_minutes")}
        return cls(
            base=_parse(data["base"]),
            drift_tokens=int(data["drift_tokens"]),
            seed=int(data["seed"]),
            card=card,
            **own,
            **common_terms(data),
        )


_DISTORTIONS = ("scale", "draft_scale", "tilt_pct", "jitter", "spike_factor")


@dataclass(frozen=True)
class DistortedCost(_Wrapper):
    """Another model whose verify time at an empty cache is replaced by what a bad profile of it would say.

        profile(n) = running maximum over m ≤ n of base(m) · scale · (1 + tilt · log₂ m / 10) · e^{jitter · z}

    for m tokens of one request, z keyed by (the first of a run of sizes that cost the same, seed), so that what is flat
    stays flat. What requests and KV add is the base's own.
    """

    name: ClassVar[str] = "distorted"
    spec: ClassVar[type[Any] | None] = DistortedSpec

    scale: float = 1.0
    draft_scale: float = 1.0
    tilt_pct: float = 0.0
    jitter: float = 0.0
    spike_tokens: int = 0
    spike_factor: float = 3.0
    no_cliff: bool = False
    seed: int = 0
    _tables: dict[str, F64Array] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.scale <= 100 and 0 < self.draft_scale <= 100):
            raise InputError("distorted: scale and draft_scale must lie in (0, 100]")
        if not -90 <= self.tilt_pct <= 1000:
            raise InputError(f"distorted: tilt_pct must lie in [-90, 1000], not {self.tilt_pct}")
        if not 0 <= self.jitter <= 2 or not 1 <= self.spike_factor <= 1000 or self.spike_tokens < 0:
            raise InputError("distorted: jitter must lie in [0, 2], spike_factor in [1, 1000], spike_tokens be ≥ 0")
        if self.no_cliff and not getattr(self.base, "capture_limit", 0):
            raise InputError(
                f"distorted: no_cliff needs a base with a capture limit, and {self.base.card.name} has none"
            )

    def verify_ms(self, shape: StepShape) -> F64Array:
        error = self._error(int(shape.num_tokens.max(initial=0)))[shape.num_tokens]
        return np.maximum(self.base.verify_ms(shape) + self.base.overhead_ms + error, 1e-6)

    def draft_ms(self, shape: StepShape) -> F64Array:
        return self.base.draft_ms(shape) * self.draft_scale

    def _error(self, largest: int) -> F64Array:
        """Return profile(n) − base(n) for n = 0 … at least `largest`."""
        known = self._tables.get("error")
        if known is not None and len(known) > largest:
            return known
        sizes = np.arange(max(2 * largest, 1024) + 1)
        nothing = np.zeros(len(sizes), dtype=np.int64)
        alone = StepShape(np.minimum(sizes, 1), sizes, nothing.astype(np.float64), nothing)
        base, profiled = self.base.verify_ms(alone), self.base.as_profiled().verify_ms(alone)
        starts = np.append(0, np.flatnonzero(np.diff(profiled)) + 1)
        run = starts[np.searchsorted(starts, sizes, side="right") - 1]
        wrong = self._without_cliff(base) if self.no_cliff else base
        wrong = wrong * self.scale * np.maximum(1 + self.tilt_pct / 100 * np.log2(np.maximum(sizes, 1)) / 10, 0.05)
        if self.jitter:
            wrong = wrong * np.exp(self.jitter * _keyed_normal(run, self.seed))
        if self.spike_tokens:
            spiked = (self.spike_tokens < len(run)) & (run == run[min(self.spike_tokens, len(run) - 1)])
            wrong = np.where(spiked, wrong * self.spike_factor, wrong)
        self._tables["error"] = np.maximum(np.maximum.accumulate(wrong), 1e-6) - base
        return self._tables["error"]

    def _without_cliff(self, base: F64Array) -> F64Array:
        limit = int(getattr(self.base, "capture_limit", 0))
        if len(base) <= limit + 1:
            return base
        slope = (base[limit] - base[limit // 2]) / (limit - limit // 2)
        beyond = np.arange(len(base)) - limit
        return np.where(beyond > 0, np.minimum(base, base[limit] + slope * beyond), base)

    def to_json(self) -> dict[str, Any]:
        own = (*_DISTORTIONS, "spike_tokens", "no_cliff", "seed")
        return self.common_json() | {"base": _dump(self.base)} | {term: getattr(self, term) for term in own}

    @classmethod
    def from_json(cls, data: dict[str, Any], card: Any) -> DistortedCost:
        """Build from the JSON form; raises KeyError, TypeError or ValueError where it is malformed."""
        return cls(
            base=_parse(data["base"]),
            spike_tokens=int(data["spike_tokens"]),
            no_cliff=bool(data["no_cliff"]),
            seed=int(data["seed"]),
            card=card,
            **{term: float(data[term]) for term in _DISTORTIONS},
            **common_terms(data),
        )
