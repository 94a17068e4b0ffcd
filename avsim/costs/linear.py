"""A linear step cost: fixed, per token and per KV token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from avsim.costs.base import CostCard, CostModel, StepShape, skippable
from avsim.errors import InputError
from avsim.types import F64Array

__all__ = ["LinearCost", "step_counter"]

_TERMS = (
    "fixed_ms",
    "per_token_us",
    "per_kv_token_ns",
    "draft_fixed_ms",
    "draft_per_kv_token_ns",
    "draft_per_request_token_us",
)


@dataclass(frozen=True)
class LinearCost(CostModel):
    """verify = fixed + per token · (T + B) + per KV token · KV; draft = fixed + per KV token · KV + per own token.

    "Own tokens" are the mean tokens that one request brings to the step, (T + B) / requests: SpecDecode-Bench's
    model of an EAGLE drafter, which first runs over the tokens of the last verification.

    Source: SpecDecode-Bench (arXiv 2601.11580).
    """

    name: ClassVar[str] = "linear"

    fixed_ms: float
    per_token_us: float
    per_kv_token_ns: float = 0.0
    draft_fixed_ms: float = 0.0
    draft_per_kv_token_ns: float = 0.0
    draft_per_request_token_us: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for term in _TERMS:
            value = getattr(self, term)
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"cost {self.card.name}: {term} must be finite and ≥ 0, not {value}")
        if self.fixed_ms + self.per_token_us <= 0:
            raise InputError(f"cost {self.card.name}: fixed_ms and per_token_us cannot both be 0")

    @property
    def uses_kv(self) -> bool:
        return self.per_kv_token_ns > 0 or self.draft_per_kv_token_ns > 0

    @property
    def draft_depends_on_depth(self) -> bool:
        return self.draft_per_request_token_us > 0

    def verify_ms(self, shape: StepShape) -> F64Array:
        kv = shape.kv_tokens * (self.per_kv_token_ns * 1e-6)
        return np.asarray(self.fixed_ms + shape.num_tokens * (self.per_token_us * 1e-3) + kv)

    def draft_ms(self, shape: StepShape) -> F64Array:
        own = shape.num_tokens / np.maximum(shape.num_reqs, 1)
        kv = shape.kv_tokens * (self.draft_per_kv_token_ns * 1e-6)
        return skippable(self.draft_fixed_ms + kv + own * (self.draft_per_request_token_us * 1e-3), shape)

    def outside(self, num_reqs: int, num_tokens: int) -> str | None:
        return None

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.name, "overhead_ms": self.overhead_ms} | {term: getattr(self, term) for term in _TERMS}

    @classmethod
    def from_json(cls, data: dict[str, Any], card: Any) -> LinearCost:
        """Build from the JSON form; raises KeyError, TypeError or ValueError where it is malformed."""
        terms = {term: float(data[term]) for term in _TERMS if term in data}
        return cls(**terms, overhead_ms=float(data.get("overhead_ms", 0.0)), card=card)


def step_counter() -> LinearCost:
    """Return a clock of 1 ms a step, for walks in which no decision depends on a cost."""
    return LinearCost(fixed_ms=1.0, per_token_us=0.0, card=CostCard("steps", "", "", "synthetic", "counts steps"))
