"""What a cost model is: milliseconds for the shape of an engine step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.types import F64Array, IntArray

__all__ = ["CostCard", "CostModel", "CostTables", "StepShape"]


@dataclass(frozen=True, slots=True)
class CostCard:
    """Where a cost model comes from, and for what it holds."""

    name: str
    model: str
    hardware: str
    kind: str
    """`published`, `measured`, `fitted` or `synthetic`."""
    source: str
    context_tokens: int | None = None
    num_speculative_tokens: int | None = None
    """The drafter's K at which the draft cost was measured."""
    vocab_size: int | None = None
    notes: str = ""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The shapes of S engine steps; every field is `[S]`.

    Attributes:
        num_reqs: requests in the step.
        num_tokens: tokens in the target's forward pass: T + B.
        kv_tokens: tokens in the KV cache, over all requests, before the step.
        num_prefill_tokens: prompt tokens among `num_tokens`.
    """

    num_reqs: IntArray
    num_tokens: IntArray
    kv_tokens: F64Array
    num_prefill_tokens: IntArray


@dataclass(frozen=True, slots=True)
class CostTables:
    """The two tables that vLLM's budget rule reads, in ms: `draft[num_reqs]` and `verify[num_tokens]`, float64."""

    draft: F64Array
    verify: F64Array


@dataclass(frozen=True)
class CostModel(ABC):
    """Base of every cost model: positive, and monotone in every size. Times are in milliseconds."""

    name: ClassVar[str]
    card: CostCard = field(repr=False, kw_only=True)
    overhead_ms: float = field(default=0.0, kw_only=True)
    """Added to every step, drafting or not."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.overhead_ms) and self.overhead_ms >= 0):
            raise InputError(f"cost {self.card.name}: overhead_ms must be finite and ≥ 0, not {self.overhead_ms}")

    @property
    def uses_kv(self) -> bool:
        """Whether the KV cache's size matters."""
        return False

    @property
    def draft_depends_on_depth(self) -> bool:
        """Whether drafting fewer than the table's own K costs less."""
        return False

    @abstractmethod
    def verify_ms(self, shape: StepShape) -> F64Array:
        """Return the target's forward time, `[S]`."""

    @abstractmethod
    def draft_ms(self, shape: StepShape) -> F64Array:
        """Return the drafter's time for a step that drafts, `[S]`."""

    @abstractmethod
    def outside(self, num_reqs: int, num_tokens: int) -> str | None:
        """Say how a step of this size leaves the measured range, or None if it does not."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `avsim.costs.load` reads back."""

    def step_ms(self, shape: StepShape, *, drafting: bool) -> F64Array:
        """Return the whole step's time, `[S]`."""
        total = self.verify_ms(shape) + self.overhead_ms
        return total + self.draft_ms(shape) if drafting else total

    def tables(self, max_num_reqs: int, max_num_tokens: int, *, kv_tokens_per_req: float = 0.0) -> CostTables:
        """Tabulate the model as vLLM holds it: draft by requests, verify by tokens.

        Tables know requests and tokens only. The KV terms of both, at `kv_tokens_per_req` for every request, go into
        the draft table, since they do not depend on the budget; so draft + verify is the whole step.
        """
        reqs = np.arange(max_num_reqs + 1)
        tokens = np.arange(max_num_tokens + 1)
        zero = np.zeros(len(tokens), dtype=np.int64)
        by_reqs = StepShape(reqs, reqs, reqs * np.float64(kv_tokens_per_req), np.zeros(len(reqs), dtype=np.int64))
        by_tokens = StepShape(np.ones(len(tokens), dtype=np.int64), tokens, zero.astype(np.float64), zero)
        without = replace(by_reqs, kv_tokens=np.zeros(len(reqs)))
        kv_ms = self.verify_ms(by_reqs) - self.verify_ms(without)
        draft = np.maximum(self.draft_ms(by_reqs), 0.0) + kv_ms
        return CostTables(draft, np.maximum(self.verify_ms(by_tokens) + self.overhead_ms, 1e-6))
