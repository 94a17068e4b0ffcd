"""A linear step cost: fixed, per token and per KV token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from avsim.costs.base import CostCard, CostModel, StepShape, common_terms, skippable
from avsim.costs.draft import DraftParts
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
    "draft_per_request_us",
)


@dataclass(frozen=True)
class LinearCost(CostModel):
    """verify = fixed + per token · (T + B) + per KV token · KV; draft = fixed + per request · R + the two terms below.

    draft's other terms: per KV token · KV, and per own token.

    "Own tokens" are the mean tokens that one request brings to the step, (T + B) / requests: SpecDecode-Bench's
    model of an EAGLE drafter, which first runs over the tokens of the last verification. `draft_parts` stands in the
    place of the draft terms where both passes are known; see `DraftParts`.

    At depth 0 the draft terms do not say how much of `draft_fixed_ms` is the first pass, which an EAGLE drafter still
    runs in a step that it skips: `skip_ms` is charged, and 0 where that is unknown, so what skipping gains is an upper
    bound there (the whole draft cost is the bound on the other side).

    Source: SpecDecode-Bench (arXiv 2601.11580).
    """

    name: ClassVar[str] = "linear"

    fixed_ms: float
    per_token_us: float
    per_kv_token_ns: float = 0.0
    draft_fixed_ms: float = 0.0
    draft_per_kv_token_ns: float = 0.0
    draft_per_request_token_us: float = 0.0
    draft_per_request_us: float = 0.0
    draft_parts: DraftParts | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for term in _TERMS:
            value = getattr(self, term)
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"cost {self.card.name}: {term} must be finite and ≥ 0, not {value}")
        if self.fixed_ms + self.per_token_us <= 0:
            raise InputError(f"cost {self.card.name}: fixed_ms and per_token_us cannot both be 0")
        if self.draft_parts is None and (self.skip_ms or 0.0) > self.draft_fixed_ms:
            raise InputError(
                f"cost {self.card.name}: skip_ms {self.skip_ms} is more than draft_fixed_ms {self.draft_fixed_ms}"
            )
        given = [term for term in _TERMS if term.startswith("draft_") and getattr(self, term)]
        given += [] if self.skip_ms is None else ["skip_ms"]
        if self.draft_parts is not None and given:
            raise InputError(
                f"cost {self.card.name}: draft_parts stand in the place of {given[0]}; give one of the two"
            )

    @property
    def uses_kv(self) -> bool:
        parts = self.draft_parts is not None and self.draft_parts.uses_kv
        return self.per_kv_token_ns > 0 or self.draft_per_kv_token_ns > 0 or parts

    @property
    def draft_depends_on_depth(self) -> bool:
        return self.draft_parts is not None or self.draft_per_request_token_us > 0

    @property
    def skip_is_known(self) -> bool:
        return self.draft_parts is not None or super().skip_is_known

    def verify_ms(self, shape: StepShape) -> F64Array:
        kv = shape.kv_tokens * (self.per_kv_token_ns * 1e-6)
        return np.asarray(self.fixed_ms + shape.num_tokens * (self.per_token_us * 1e-3) + kv)

    def draft_ms(self, shape: StepShape) -> F64Array:
        if self.draft_parts is not None:
            return self.draft_parts.ms(shape)
        own = shape.num_tokens / np.maximum(shape.num_reqs, 1)
        kv = shape.kv_tokens * (self.draft_per_kv_token_ns * 1e-6)
        whole = self.draft_fixed_ms + kv + own * (self.draft_per_request_token_us * 1e-3)
        whole = whole + shape.num_reqs * (self.draft_per_request_us * 1e-3)
        return skippable(whole, shape, self.skip_ms)

    def outside(self, num_reqs: int, num_tokens: int) -> str | None:
        return None

    def to_json(self) -> dict[str, Any]:
        parts = {} if self.draft_parts is None else {"draft_parts": self.draft_parts.to_json()}
        return self.common_json() | {term: getattr(self, term) for term in _TERMS} | parts

    @classmethod
    def from_json(cls, data: dict[str, Any], card: Any) -> LinearCost:
        """Build from the JSON form; raises KeyError, TypeError or ValueError where it is malformed."""
        terms = {term: float(data[term]) for term in _TERMS if term in data}
        parts = DraftParts.from_json(data["draft_parts"]) if data.get("draft_parts") else None
        return cls(**terms, draft_parts=parts, card=card, **common_terms(data))


def step_counter() -> LinearCost:
    """Return a clock of 1 ms a step, for walks in which no decision depends on a cost."""
    return LinearCost(fixed_ms=1.0, per_token_us=0.0, card=CostCard("steps", "", "", "synthetic", "counts steps"))
