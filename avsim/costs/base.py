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
        draft_depth: slots drafted per request; 0 where a loaded drafter skips the step. None: the drafter's own K.
        logits: rows of target logits; None: one for every token that is not of a prompt.
    """

    num_reqs: IntArray
    num_tokens: IntArray
    kv_tokens: F64Array
    num_prefill_tokens: IntArray
    draft_depth: IntArray | None = None
    logits: IntArray | None = None

    @property
    def num_logit_rows(self) -> IntArray:
        """Rows of target logits: those of the LM head and of rejection sampling."""
        return self.num_tokens - self.num_prefill_tokens if self.logits is None else self.logits


@dataclass(frozen=True, slots=True)
class CostTables:
    """The two tables that vLLM's budget rule reads, in ms: `draft[num_reqs]` and `verify[num_tokens]`, float64.

    `by_depth[d, num_reqs]` is what drafting d slots costs, for policies that choose a depth; row 0 is a loaded drafter
    that skips the step. vLLM holds no such table. None where nobody asked for it.
    """

    draft: F64Array
    verify: F64Array
    by_depth: F64Array | None = None


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
        """Return the drafter's time in a step of a drafting policy, `[S]`; see `StepShape.draft_depth`.

        A model that knows one depth only charges that at any depth above 0, and nothing at 0.
        """

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

    def tables(
        self, max_num_reqs: int, max_num_tokens: int, *, kv_tokens_per_req: float = 0.0, max_depth: int | None = None
    ) -> CostTables:
        """Tabulate the model as vLLM holds it: draft by requests, verify by tokens; up to `max_depth`, by depth too.

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
        by_depth = None
        if max_depth is not None:
            depths = (np.full(len(reqs), depth) for depth in range(max_depth + 1))
            at_depth = [self.draft_ms(replace(by_reqs, draft_depth=depth)) for depth in depths]
            by_depth = np.maximum(np.stack(at_depth), 0.0) + kv_ms
        return CostTables(draft, np.maximum(self.verify_ms(by_tokens) + self.overhead_ms, 1e-6), by_depth)


def skippable(draft_ms: F64Array, shape: StepShape) -> F64Array:
    """Return draft times, and 0 where the step's draft depth is 0."""
    ms = np.asarray(draft_ms, dtype=np.float64)
    return ms if shape.draft_depth is None else np.where(shape.draft_depth > 0, ms, 0.0)
