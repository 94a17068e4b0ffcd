"""A measured step-cost curve, read as vLLM reads its own profile: a staircase with a cliff at the capture limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from avsim.costs.base import CostModel, StepShape, common_terms, skippable
from avsim.costs.draft import DraftParts
from avsim.errors import InputError
from avsim.types import F64Array, IntArray

__all__ = ["CurveCost", "staircase"]

Points = tuple[tuple[int, float], ...]


def staircase(limit: int, points: Sequence[tuple[int, float]], capture_limit: int = 0) -> F64Array:
    """Tabulate a curve of (size, ms) medians at 0 … limit, as vLLM builds its cost tables.

    With the running maximum of the curve: at or below `capture_limit` a step is padded to the next measured size;
    between the limit and the first point above it, that point; between points above it, linear; past the last
    point, linear with the slope of the last two. Without a capture limit (0) the staircase goes to the last point.

    Returns:
        float64 `[limit + 1]`, ms.

    Source: vLLM 0.33 `build_cost_tables_from_curves`.

    >>> staircase(5, [(1, 1.0), (2, 3.0), (4, 2.0)]).tolist()
    [1.0, 1.0, 3.0, 3.0, 3.0, 3.0]
    """
    sizes, ms = np.asarray(points, dtype=np.float64).T
    ms = np.maximum.accumulate(ms)
    wanted = np.arange(limit + 1)
    table = ms[np.minimum(np.searchsorted(sizes, wanted, side="left"), len(sizes) - 1)]
    above = sizes > capture_limit
    if capture_limit and above.any():
        free = wanted > capture_limit
        table[free] = np.interp(wanted[free], sizes[above], ms[above])
    if len(sizes) > 1:
        slope = (ms[-1] - ms[-2]) / (sizes[-1] - sizes[-2])
        beyond = wanted > sizes[-1]
        table[beyond] = ms[-1] + slope * (wanted[beyond] - sizes[-1])
    return table


@dataclass(frozen=True)
class CurveCost(CostModel):
    """Step costs from measured medians: verify by tokens in the step, draft by requests; see `staircase`.

    Without `per_kv_token_ns` it knows no KV term: it holds at the context length of its card, whose KV reads are in the
    points. With it the points are times at an empty cache, and a step adds per KV token · KV.

    `draft_parts` stands in the place of the draft points where draft[requests] alone is not known; see `DraftParts`.
    """

    name: ClassVar[str] = "curve"

    verify: Points
    draft: Points
    capture_limit: int = 0
    per_kv_token_ns: float = 0.0
    draft_parts: DraftParts | None = None
    _tables: dict[str, F64Array] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.capture_limit < 0:
            raise InputError(f"cost {self.card.name}: capture_limit must be at least 0, not {self.capture_limit}")
        if not (np.isfinite(self.per_kv_token_ns) and self.per_kv_token_ns >= 0):
            raise InputError(
                f"cost {self.card.name}: per_kv_token_ns must be finite and ≥ 0, not {self.per_kv_token_ns}"
            )
        if self.skip_ms is not None and self.draft and self.skip_ms > self.draft[0][1]:
            raise InputError(
                f"cost {self.card.name}: skip_ms {self.skip_ms} is more than drafting costs ({self.draft[0][1]} ms)"
            )
        if self.draft_parts is not None and (self.draft or self.skip_ms is not None):
            given = "draft points" if self.draft else "skip_ms"
            raise InputError(f"cost {self.card.name}: draft_parts stand in the place of {given}; give one of the two")
        for label, points in (("verify", self.verify), ("draft", self.draft)):
            if not points and label == "draft" and self.draft_parts is not None:
                continue
            if not points:
                raise InputError(f"cost {self.card.name}: the {label} curve has no points")
            sizes, ms = np.asarray(points, dtype=np.float64).T
            if (np.diff(sizes) <= 0).any() or sizes[0] < 1:
                raise InputError(f"cost {self.card.name}: {label} sizes must rise strictly from at least 1")
            if not (np.isfinite(ms).all() and (ms > 0).all()):
                raise InputError(f"cost {self.card.name}: every {label} time must be finite and > 0 ms")

    @property
    def uses_kv(self) -> bool:
        return self.per_kv_token_ns > 0 or (self.draft_parts is not None and self.draft_parts.uses_kv)

    @property
    def draft_depends_on_depth(self) -> bool:
        return self.draft_parts is not None

    @property
    def skip_is_known(self) -> bool:
        return self.draft_parts is not None or super().skip_is_known

    def verify_ms(self, shape: StepShape) -> F64Array:
        ms = self._look_up("verify", shape.num_tokens, 1e-6)
        return ms + shape.kv_tokens * (self.per_kv_token_ns * 1e-6) if self.per_kv_token_ns else ms

    def draft_ms(self, shape: StepShape) -> F64Array:
        if self.draft_parts is not None:
            return self.draft_parts.ms(shape)
        # vLLM compares request counts with the token limit here; kept, since the engine's table is what is modelled.
        return skippable(self._look_up("draft", shape.num_reqs, 0.0), shape, self.skip_ms)

    def _look_up(self, label: str, sizes: IntArray, floor: float) -> F64Array:
        largest = int(sizes.max(initial=0))
        table = self._tables.get(label)
        if table is None or len(table) <= largest:
            limit = max(largest, self.verify[-1][0])
            points = self.verify if label == "verify" else self.draft
            table = self._tables[label] = np.maximum(staircase(limit, points, self.capture_limit), floor)
        return table[sizes]

    def outside(self, num_reqs: int, num_tokens: int) -> str | None:
        if num_tokens > self.verify[-1][0]:
            return f"{num_tokens} tokens, beyond the last measured size {self.verify[-1][0]}: extrapolated"
        if self.draft and num_reqs > self.draft[-1][0]:
            return f"{num_reqs} requests, beyond the last measured count {self.draft[-1][0]}: extrapolated"
        return None

    def to_json(self) -> dict[str, Any]:
        optional: dict[str, Any] = {"per_kv_token_ns": self.per_kv_token_ns} if self.per_kv_token_ns else {}
        if self.draft_parts is not None:
            optional["draft_parts"] = self.draft_parts.to_json()
        points = {"verify": [list(point) for point in self.verify]}
        if self.draft:
            points["draft"] = [list(point) for point in self.draft]
        return self.common_json() | {"capture_limit": self.capture_limit} | optional | points

    @classmethod
    def from_json(cls, data: dict[str, Any], card: Any) -> CurveCost:
        """Build from the JSON form; raises KeyError, TypeError or ValueError where it is malformed."""
        parts = data.get("draft_parts")
        return cls(
            verify=tuple((int(size), float(ms)) for size, ms in data["verify"]),
            draft=tuple(
                (int(size), float(ms)) for size, ms in ([] if parts and "draft" not in data else data["draft"])
            ),
            capture_limit=int(data.get("capture_limit", 0)),
            per_kv_token_ns=float(data.get("per_kv_token_ns", 0.0)),
            draft_parts=DraftParts.from_json(parts) if parts else None,
            card=card,
            **common_terms(data),
        )
