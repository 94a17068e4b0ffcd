"""What a cost model is: milliseconds for the shape of an engine step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.types import F64Array, IntArray

__all__ = ["CostCard", "CostModel", "CostTables", "StepShape", "common_terms", "skippable"]


@dataclass(frozen=True, slots=True)
class CostCard:
    """Where a cost model comes from, and for what it holds."""

    name: str
    model: str
    hardware: str
    kind: str
    """`published`, `measured`, `fitted`, `roofline` (an estimate from data sheets) or `synthetic`."""
    source: str
    context_tokens: int | None = None
    num_speculative_tokens: int | None = None
    """The drafter's K at which the draft cost was measured."""
    vocab_size: int | None = None
    notes: str = ""
    drafter_kind: str | None = None
    """The kind of drafter whose cost it holds, in the words of a trace's card; None where that is not known."""


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
        step: number of the step in its run, which keys the noise of `noisy` costs; None: the expected time.
        clock_ms: time since the run began, which `noisy` costs drift with; None: no drift.
    """

    num_reqs: IntArray
    num_tokens: IntArray
    kv_tokens: F64Array
    num_prefill_tokens: IntArray
    draft_depth: IntArray | None = None
    logits: IntArray | None = None
    step: IntArray | None = None
    clock_ms: F64Array | None = None

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
    spec: ClassVar[type[Any] | None] = None
    """A dataclass of options with `name` and `build()`, for a kind that can be written on the command line."""

    card: CostCard = field(repr=False, kw_only=True)
    overhead_ms: float = field(default=0.0, kw_only=True)
    """Added to every step, drafting or not."""
    skip_ms: float | None = field(default=None, kw_only=True)
    """What a loaded drafter costs in a step that it skips, where that is not derived; None: unknown, charged as 0."""

    def __post_init__(self) -> None:
        for term, value in (("overhead_ms", self.overhead_ms), ("skip_ms", self.skip_ms or 0.0)):
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"cost {self.card.name}: {term} must be finite and ≥ 0, not {value}")

    @property
    def uses_kv(self) -> bool:
        """Whether the KV cache's size matters."""
        return False

    @property
    def draft_depends_on_depth(self) -> bool:
        """Whether drafting fewer than the table's own K costs less."""
        return False

    @property
    def skip_is_known(self) -> bool:
        """Whether the cost of a skipped step (depth 0) is known: derived, or given as `skip_ms`."""
        return self.skip_ms is not None

    @abstractmethod
    def verify_ms(self, shape: StepShape) -> F64Array:
        """Return the target's forward time, `[S]`."""

    @abstractmethod
    def draft_ms(self, shape: StepShape) -> F64Array:
        """Return the drafter's time in a step of a drafting policy, `[S]`; see `StepShape.draft_depth`.

        A model that knows one depth only charges that at any depth above 0, and `skip_ms` at 0.
        """

    @abstractmethod
    def outside(self, num_reqs: int, num_tokens: int) -> str | None:
        """Say how a step of this size leaves the measured range, or None if it does not."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `avsim.costs.load` reads back."""

    def common_json(self) -> dict[str, Any]:
        """Return what every kind's JSON form begins with; `common_terms` reads the numbers back."""
        skip = {} if self.skip_ms is None else {"skip_ms": self.skip_ms}
        return {"kind": self.name, "overhead_ms": self.overhead_ms} | skip

    def as_profiled(self) -> CostModel:
        """Return the parts of a step that vLLM's start-up profile times: forward pass and drafter, no overhead."""
        return replace(self, overhead_ms=0.0)

    def step_ms(self, shape: StepShape, *, drafting: bool) -> F64Array:
        """Return the whole step's time, `[S]`."""
        total = self.verify_ms(shape) + self.overhead_ms
        return total + self.draft_ms(shape) if drafting else total

    def tables(
        self, max_num_reqs: int, max_num_tokens: int, *, kv_tokens_per_req: float = 0.0, depth: int | None = None
    ) -> CostTables:
        """Tabulate the model as vLLM holds it: draft by requests, verify by tokens.

        With `depth`, the draft table is that of an engine that drafts so many slots (None: the drafter's own K), and
        `by_depth` holds those of 0 to `depth` slots.

        Tables know requests and tokens only, so draft + verify is the whole step where n tokens come from
        min(n, max_num_reqs) requests with `kv_tokens_per_req` cached tokens each; at other loads too if the model has
        no term of both. draft[r] holds the drafter and the KV of r requests with one token each, verify[n] the rest:
        whatever the tokens beyond that cost, in the target or in the drafter's first pass.
        """
        reqs = np.arange(max_num_reqs + 1)
        tokens = np.arange(max_num_tokens + 1)
        by_reqs = _batch(reqs, reqs, kv_tokens_per_req)
        kv_ms = self.verify_ms(by_reqs) - self.verify_ms(_batch(reqs, reqs, 0.0))
        by_depth = None
        if depth is None:
            draft = np.maximum(self.draft_ms(by_reqs), 0.0) + kv_ms
        else:
            shapes = (replace(by_reqs, draft_depth=np.full(len(reqs), slots)) for slots in range(depth + 1))
            by_depth = np.maximum(np.stack([self.draft_ms(shape) for shape in shapes]), 0.0) + kv_ms
            draft = by_depth[depth]
        source = np.minimum(tokens, max(max_num_reqs, 1))
        whole = _batch(source, tokens, kv_tokens_per_req)
        if depth is not None:
            whole = replace(whole, draft_depth=np.full(len(tokens), depth))
        by_source = draft[np.minimum(source, max_num_reqs)]
        verify = self.verify_ms(whole) + self.overhead_ms + (np.maximum(self.draft_ms(whole), 0.0) - by_source)
        return CostTables(draft, np.maximum(verify, 1e-6), by_depth)


def _batch(reqs: IntArray, tokens: IntArray, kv_tokens_per_req: float) -> StepShape:
    return StepShape(reqs, tokens, reqs * np.float64(kv_tokens_per_req), np.zeros(len(reqs), dtype=np.int64))


def common_terms(data: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that every kind of cost model takes from its JSON form."""
    return {term: float(data[term]) for term in ("overhead_ms", "skip_ms") if term in data}


def skippable(draft_ms: F64Array, shape: StepShape, skip_ms: float | None = None) -> F64Array:
    """Return draft times, and `skip_ms` (None: 0) where the step's draft depth is 0."""
    ms = np.asarray(draft_ms, dtype=np.float64)
    return ms if shape.draft_depth is None else np.where(shape.draft_depth > 0, ms, skip_ms or 0.0)
