"""A measured step-cost curve, read as vLLM reads its own profile: a staircase with a cliff at the capture limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from avsim.costs.base import CostModel, StepShape, skippable
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

    It knows no KV term: it holds at the context length of its card.
    """

    name: ClassVar[str] = "curve"

    verify: Points
    draft: Points
    capture_limit: int = 0
    _tables: dict[str, F64Array] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.capture_limit < 0:
            raise InputError(f"cost {self.card.name}: capture_limit must be at least 0, not {self.capture_limit}")
        for label, points in (("verify", self.verify), ("draft", self.draft)):
            if not points:
                raise InputError(f"cost {self.card.name}: the {label} curve has no points")
            sizes, ms = np.asarray(points, dtype=np.float64).T
            if (np.diff(sizes) <= 0).any() or sizes[0] < 1:
                raise InputError(f"cost {self.card.name}: {label} sizes must rise strictly from at least 1")
            if not (np.isfinite(ms).all() and (ms > 0).all()):
                raise InputError(f"cost {self.card.name}: every {label} time must be finite and > 0 ms")

    def verify_ms(self, shape: StepShape) -> F64Array:
        return self._look_up("verify", shape.num_tokens, 1e-6)

    def draft_ms(self, shape: StepShape) -> F64Array:
        # vLLM compares request counts with the token limit here; kept, since the engine's table is what is modelled.
        return skippable(self._look_up("draft", shape.num_reqs, 0.0), shape)

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
        if num_reqs > self.draft[-1][0]:
            return f"{num_reqs} requests, beyond the last measured count {self.draft[-1][0]}: extrapolated"
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.name,
            "capture_limit": self.capture_limit,
            "overhead_ms": self.overhead_ms,
            "verify": [list(point) for point in self.verify],
            "draft": [list(point) for point in self.draft],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], card: Any) -> CurveCost:
        """Build from the JSON form; raises KeyError, TypeError or ValueError where it is malformed."""
        return cls(
            verify=tuple((int(size), float(ms)) for size, ms in data["verify"]),
            draft=tuple((int(size), float(ms)) for size, ms in data["draft"]),
            capture_limit=int(data.get("capture_limit", 0)),
            overhead_ms=float(data.get("overhead_ms", 0.0)),
            card=card,
        )
