"""What drafting costs: a pass over the rows of the target, and passes that grow with the depth."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, cast, get_args

import numpy as np

from avsim.costs.base import StepShape
from avsim.errors import InputError
from avsim.registry import suggest
from avsim.types import F64Array, IntArray

__all__ = ["DraftForm", "DraftParts", "depth_of", "num_passes", "pass_tokens"]

DraftForm = Literal["autoregressive", "block", "ngram"]
"""`autoregressive`: EAGLE, MTP, draft models. `block`: DFlash, DSpark: all slots in one pass. `ngram`: a look-up."""

_TERMS = (
    "first_ms",
    "first_per_token_us",
    "first_per_kv_token_ns",
    "next_ms",
    "next_per_token_us",
    "next_per_kv_token_ns",
)


def depth_of(shape: StepShape, num_slots: int) -> IntArray:
    """Return the slots drafted per request, `[S]`; the drafter's own K where the step does not say."""
    return np.full(len(shape.num_reqs), num_slots) if shape.draft_depth is None else shape.draft_depth


def num_passes(form: DraftForm, depth: IntArray) -> IntArray:
    """Return how many passes follow the first: K − 1 of an autoregressive drafter, otherwise 1; none at depth 0."""
    return np.maximum(depth - 1, 0) if form == "autoregressive" else (depth > 0).astype(np.int64)


def pass_tokens(form: DraftForm, num_reqs: IntArray, depth: IntArray) -> IntArray:
    """Return the tokens of each pass after the first: a block drafter sees all its slots at once."""
    return num_reqs * depth if form == "block" else num_reqs


@dataclass(frozen=True)
class DraftParts:
    """A draft cost in two parts, each fixed + per token + per cached token.

        autoregressive   first(T + B) + (depth − 1) · next(R)
        block            first(T + B) + next(R · depth), no `next` at depth 0
        ngram            first(T + B) + next(R), no `next` at depth 0

    `first` is what runs over the target's rows whether drafts are wanted or not, so that the drafter's KV stays in
    step: an EAGLE or MTP drafter's first pass, a block drafter's context. Trimming saves a part of it, never the rest.

    Attributes:
        form: see above.
        num_slots: the drafter's own K, for steps that do not name a depth.
        first_ms, next_ms: fixed parts.
        first_per_token_us, next_per_token_us: per token of the pass, µs.
        first_per_kv_token_ns, next_per_kv_token_ns: per token in the KV cache, ns.

    Source: DESIGN §3 "Drafting"; vLLM 0.33 `TargetDependentARSpeculator.propose`, `DFlashSpeculator.propose`.
    """

    form: DraftForm
    num_slots: int
    first_ms: float = 0.0
    first_per_token_us: float = 0.0
    first_per_kv_token_ns: float = 0.0
    next_ms: float = 0.0
    next_per_token_us: float = 0.0
    next_per_kv_token_ns: float = 0.0

    def __post_init__(self) -> None:
        if self.form not in get_args(DraftForm):
            raise InputError(f"draft_parts: form is {self.form!r}{suggest(str(self.form), get_args(DraftForm))}")
        if self.num_slots < 1:
            raise InputError(f"draft_parts: num_slots must be at least 1, not {self.num_slots}")
        for term in _TERMS:
            value = getattr(self, term)
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"draft_parts: {term} must be finite and ≥ 0, not {value}")

    @property
    def uses_kv(self) -> bool:
        return self.first_per_kv_token_ns > 0 or self.next_per_kv_token_ns > 0

    def ms(self, shape: StepShape) -> F64Array:
        """Return the drafter's time, `[S]`."""
        depth = depth_of(shape, self.num_slots)
        first = self._pass("first", shape.num_tokens, shape.kv_tokens)
        following = self._pass("next", pass_tokens(self.form, shape.num_reqs, depth), shape.kv_tokens)
        return first + num_passes(self.form, depth) * following

    def _pass(self, which: str, tokens: IntArray, kv_tokens: F64Array) -> F64Array:
        fixed, per_token, per_kv = (
            getattr(self, f"{which}{term}") for term in ("_ms", "_per_token_us", "_per_kv_token_ns")
        )
        return np.asarray(fixed + tokens * (per_token * 1e-3) + kv_tokens * (per_kv * 1e-6))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DraftParts:
        """Build from the JSON form; raises KeyError, TypeError or ValueError where it is malformed."""
        unknown = sorted(set(data) - {"form", "num_slots", *_TERMS})
        if unknown:
            raise InputError(
                f"draft_parts: unknown key {unknown[0]!r}{suggest(unknown[0], ['form', 'num_slots', *_TERMS])}"
            )
        terms = {term: float(data[term]) for term in _TERMS if term in data}
        return cls(form=cast(DraftForm, data["form"]), num_slots=int(data["num_slots"]), **terms)
