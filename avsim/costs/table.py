"""Tables to hand to vLLM: what a cost model says for an engine's own sizes, and what vLLM's profile would have said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from avsim import costs
from avsim.costs.base import CostModel, CostTables, StepShape
from avsim.costs.captured import capture_sizes, tail_sizes
from avsim.costs.curve import CurveCost, Points
from avsim.costs.roofline import RooflineCost
from avsim.errors import InputError
from avsim.manifest import json_text, sha256_json, write_file
from avsim.types import F64Array, IntArray

__all__ = ["Engine", "corrected_table", "csv_text", "profiled_table", "table_document", "write_table"]

FORMAT = "avsim-cost-table/1"
PROFILE_CONTEXT_TOKENS = 8192
"""VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN of vLLM 0.33."""

_GRID = 1.02


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The engine that a table is for.

    Attributes:
        max_num_reqs, max_num_tokens: vLLM's max_num_seqs and max_num_batched_tokens.
        capture_limit: its largest captured size.
        context_tokens: cached tokens per request.
        num_speculative_tokens: K.
        overhead_ms: added to every step, beside what the cost model holds: AV's own work, say.
    """

    max_num_reqs: int
    max_num_tokens: int
    capture_limit: int
    context_tokens: int
    num_speculative_tokens: int
    overhead_ms: float = 0.0

    def __post_init__(self) -> None:
        for term in ("max_num_reqs", "max_num_tokens", "capture_limit", "num_speculative_tokens"):
            if getattr(self, term) < 1:
                raise InputError(f"{term} must be at least 1, not {getattr(self, term)}")
        if self.context_tokens < 0 or not 0 <= self.overhead_ms < float("inf"):
            raise InputError("context must be at least 0 tokens, and the overhead finite and ≥ 0 ms")
        if self.max_num_tokens < self.max_num_reqs or self.max_num_tokens > 1 << 20:
            raise InputError(
                f"max_num_tokens must lie between max_num_reqs = {self.max_num_reqs} and {1 << 20}, not "
                f"{self.max_num_tokens}"
            )


def corrected_table(model: CostModel, engine: Engine) -> CurveCost:
    """Return a model's tables as a curve that vLLM's rule reads back: draft by requests, verify by tokens.

    The tables are those of `CostModel.tables`: n tokens come from min(n, max_num_reqs) requests with the stated
    context, so a request's KV is charged once and not once per token, and all that the model knows of a step (LM head,
    sampler, overhead) is in them. Up to the capture limit the curve equals them at every size; beyond it at its own
    points, 2 % apart, with straight lines between.
    """
    tables = _tables(model, engine)
    limit = min(engine.capture_limit, engine.max_num_tokens)
    verify = _points(tables.verify, _ends(tables.verify, limit))
    above = _grid(limit + 1, engine.max_num_tokens, engine)
    verify += _points(tables.verify, above)
    reqs = _ends(tables.draft, min(limit, engine.max_num_reqs))
    more = np.arange(limit + 1, engine.max_num_reqs + 1)
    draft = _points(np.maximum(tables.draft, 1e-6), np.concatenate([reqs, more]))
    return _curve(model, engine, verify, draft, "corrected", engine.context_tokens)


def profiled_table(model: CostModel, engine: Engine) -> CurveCost:
    """Return the curve that vLLM's start-up profile would measure if the model were the truth.

    n tokens run as min(n, max_num_reqs) decoding requests with 8192 cached tokens each, without LM head, sampler and
    overhead; the draft curve takes the sizes with full graphs only, by requests.

    Source: vLLM 0.33 `AdaptiveVerificationManager.batches_to_profile`, `set_initial_cost_curves`.
    """
    bare, limit = model.as_profiled(), min(engine.capture_limit, engine.max_num_tokens)
    captured = capture_sizes(limit)
    sizes = np.array([*captured, *tail_sizes(limit, engine.max_num_tokens)])
    reqs = np.minimum(sizes, engine.max_num_reqs)
    shape = StepShape(
        reqs,
        sizes,
        reqs * np.float64(PROFILE_CONTEXT_TOKENS),
        np.zeros_like(sizes),
        draft_depth=np.full_like(sizes, engine.num_speculative_tokens),
    )
    verify = tuple(zip(sizes.tolist(), bare.verify_ms(shape).tolist(), strict=True))
    drafting = np.maximum(bare.draft_ms(shape), 1e-6)[: len(captured)]
    counts = reqs[: len(captured)]
    draft = tuple((int(count), float(np.median(drafting[counts == count]))) for count in np.unique(counts))
    return _curve(model, replace(engine, overhead_ms=0.0), verify, draft, "as profiled", PROFILE_CONTEXT_TOKENS)


def table_document(model: CostModel, engine: Engine, *, as_profiled: bool = False) -> dict[str, Any]:
    """Return the JSON document of a table; `avsim.costs.load` reads it as a `curve`."""
    curve = profiled_table(model, engine) if as_profiled else corrected_table(model, engine)
    data = costs.dump(curve)
    read, truth = _tables(curve, engine), _tables(model, engine)
    gap = np.abs(read.verify[1:] / truth.verify[1:] - 1)
    head = {
        "format": FORMAT,
        "engine": {
            "max_num_seqs": engine.max_num_reqs,
            "max_num_batched_tokens": engine.max_num_tokens,
            "num_speculative_tokens": engine.num_speculative_tokens,
            "capture_limit": engine.capture_limit,
        },
        "made_by": "what vLLM's start-up profile would measure" if as_profiled else "what a real step costs",
        "includes": _includes(model.as_profiled() if as_profiled else model, engine),
        "largest_gap_to_model_pct": round(float(gap.max()) * 100, 6),
        "source_sha256": sha256_json(costs.dump(model)),
    }
    content = {"verify": data["verify"], "draft": data["draft"], "capture_limit": data["capture_limit"]}
    return head | {"sha256": sha256_json(content)} | data


def csv_text(curve: CurveCost) -> str:
    """Return the points of both tables as CSV."""
    rows = ["table,size,ms"]
    for name, points in (("verify", curve.verify), ("draft", curve.draft)):
        rows += [f"{name},{size},{ms!r}" for size, ms in points]
    return "\n".join(rows) + "\n"


def write_table(document: dict[str, Any], out: Path, *, overwrite: bool = False) -> None:
    """Write a table, as CSV where the file's name says so, otherwise as JSON.

    Raises:
        InputError: the file exists (and `overwrite` is off), or cannot be written.
    """
    if out.exists() and not overwrite:
        raise InputError(f"{out} exists; choose another file or pass --overwrite")
    if out.suffix.lower() == ".csv":
        curve = costs.parse_document(document, str(out))
        assert isinstance(curve, CurveCost)
        write_file(out, csv_text(curve))
    else:
        write_file(out, json_text(document))


def _tables(model: CostModel, engine: Engine) -> CostTables:
    """Return the tables at the engine's context; a curve's own, which hold at its card's."""
    tables = model.tables(
        engine.max_num_reqs,
        engine.max_num_tokens,
        kv_tokens_per_req=float(engine.context_tokens),
        depth=engine.num_speculative_tokens,
    )
    return replace(tables, verify=tables.verify + engine.overhead_ms)


def _points(table: F64Array, sizes: IntArray) -> Points:
    return tuple((int(size), float(table[size])) for size in sizes)


def _ends(table: F64Array, limit: int) -> IntArray:
    """Return the last size of every run of equal values from 1 to the limit."""
    inside = table[1 : limit + 1]
    return np.append(np.flatnonzero(np.diff(inside)) + 1, len(inside)) if len(inside) else np.zeros(0, dtype=np.int64)


def _grid(first: int, last: int, engine: Engine) -> IntArray:
    """Return sizes from first to last, 2 % apart, with those that vLLM profiles."""
    if first > last:
        return np.zeros(0, dtype=np.int64)
    count = int(np.ceil(np.log(last / first) / np.log(_GRID))) + 2
    sizes = np.unique(np.rint(np.geomspace(first, last, count)).astype(np.int64))
    tail = [size for size in tail_sizes(engine.capture_limit, engine.max_num_tokens) if first <= size <= last]
    return np.unique(np.concatenate([sizes, np.array(tail, dtype=np.int64)]))


def _curve(model: CostModel, engine: Engine, verify: Points, draft: Points, how: str, context_tokens: int) -> CurveCost:
    card = model.card
    plus = f", {engine.overhead_ms:g} ms a step added" if engine.overhead_ms else ""
    notes = f"Table of {card.name} ({card.kind}), {how}, for {engine.max_num_reqs} requests{plus}. {card.notes}"
    return CurveCost(
        verify=verify,
        draft=draft,
        capture_limit=min(engine.capture_limit, engine.max_num_tokens),
        card=replace(
            card,
            name=f"{card.name}-table",
            context_tokens=context_tokens if model.uses_kv or card.context_tokens is None else card.context_tokens,
            num_speculative_tokens=engine.num_speculative_tokens,
            notes=notes.strip(),
        ),
    )


def _includes(model: CostModel, engine: Engine) -> list[str]:
    """Say what the times hold."""
    found = ["target forward pass", "drafter"]
    if isinstance(model, RooflineCost):
        found += ["LM head", "sampler"] if model.head else []
        found += ["CPU floor"] if model.cpu_ms else []
    if model.overhead_ms:
        found.append("the model's overhead")
    if engine.overhead_ms:
        found.append(f"{engine.overhead_ms:g} ms a step added")
    return found
