"""Checks that every cost model must pass; the last four concern curves of measured sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from avsim.costs.base import CostModel, StepShape
from avsim.types import F64Array, IntArray

__all__ = ["COST_CHECKS", "MeasuredCurve"]


@runtime_checkable
class MeasuredCurve(Protocol):
    """A cost model made of (size, ms) medians: `verify` by tokens, `draft` by requests, and the capture limit.

    `draft` is empty where the drafter's cost is known in parts.
    """

    verify: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...]
    capture_limit: int


def check_positive(model: CostModel) -> None:
    """Every time is finite; a step takes more than 0 ms and drafting at least 0 ms."""
    for shape in _shapes():
        verify, draft = model.verify_ms(shape), model.draft_ms(shape)
        assert np.isfinite(verify).all(), "a verify time is not finite"
        assert np.isfinite(draft).all(), "a draft time is not finite"
        assert (verify > 0).all(), f"a verify time of {verify.min()} ms"
        assert (draft >= 0).all(), f"a draft time of {draft.min()} ms"


def check_elementwise(model: CostModel) -> None:
    """The time of a step does not depend on the steps asked about together with it; the result is float `[S]`."""
    reqs, tokens = np.array([1, 7, 64, 3]), np.array([1, 40, 512, 2000])
    together = _shape(reqs, tokens, 100.0 * reqs)
    for part in ("verify_ms", "draft_ms"):
        whole = getattr(model, part)(together)
        assert whole.shape == (4,), f"{part} returned shape {whole.shape}, not (4,)"
        assert np.issubdtype(whole.dtype, np.floating), f"{part} returned {whole.dtype}, not float"
        for step in range(4):
            alone = getattr(model, part)(
                _shape(reqs[step : step + 1], tokens[step : step + 1], together.kv_tokens[step])
            )
            assert alone[0] == whole[step], f"{part} is {alone[0]} ms for a step alone and {whole[step]} ms in company"


def check_monotone_tokens(model: CostModel) -> None:
    """More tokens in the same step never cost less."""
    tokens = _sizes()
    for num_reqs in (1, 64):
        shape = _shape(np.full_like(tokens, num_reqs), tokens, 1e4)
        _rises(model, shape, "tokens", tokens)


def check_monotone_requests(model: CostModel) -> None:
    """More requests, each with its own tokens and KV, never cost less."""
    reqs = np.arange(1, 1025)
    for tokens_per_req in (1, 8):
        _rises(model, _shape(reqs, reqs * tokens_per_req, reqs * 500.0), "requests", reqs)


def check_monotone_kv(model: CostModel) -> None:
    """More tokens in the KV cache never cost less."""
    kv = np.arange(0, 1_000_000, 5_000)
    same = np.ones_like(kv)
    _rises(model, _shape(same * 32, same * 256, kv), "KV tokens", kv)


def check_step_is_a_sum(model: CostModel) -> None:
    """A step takes verify + draft (if it drafts) + overhead, whatever the overhead is."""
    for overhead in (0.0, 1.5):
        changed = replace(model, overhead_ms=overhead)
        for shape in _shapes():
            plain = changed.verify_ms(shape) + overhead
            for drafting, expected in ((False, plain), (True, plain + changed.draft_ms(shape))):
                gap = np.abs(changed.step_ms(shape, drafting=drafting) - expected).max()
                assert gap <= 1e-9, f"step_ms(drafting={drafting}) is {gap:.3g} ms off the sum of its parts"


def check_json(model: CostModel) -> None:
    """The model survives JSON: an equal model, whatever its overhead is, and its kind is its name."""
    for original in (model, replace(model, overhead_ms=1.25)):
        data = json.loads(json.dumps(original.to_json()))
        assert data.get("kind") == model.name, f"kind is {data.get('kind')!r}, not {model.name!r}"
        kind: Any = type(model)
        back = kind.from_json(data, model.card)
        assert back == original, f"JSON gives back {back!r} instead of {original!r}"


def check_tables(model: CostModel) -> None:
    """draft[r] + verify[n] is the whole step of n tokens from r = min(n, max_num_reqs) requests, whatever is cached.

    draft[r] is the drafter and the cache of r requests with one token each; `by_depth` says the same for every depth.
    """
    reqs, tokens = np.arange(1, 71), np.arange(1, 601)
    source = np.minimum(tokens, 70)
    for changed in (model, replace(model, overhead_ms=0.75)):
        for kv, depth in ((0.0, None), (800.0, None), (800.0, 3)):
            tables = changed.tables(70, 600, kv_tokens_per_req=kv, depth=depth)
            sizes = (len(tables.draft), len(tables.verify))
            assert sizes == (71, 601), f"tables up to 70 requests and 600 tokens have {sizes} entries"
            cached = changed.verify_ms(_shape(reqs, reqs, reqs * kv)) - changed.verify_ms(_shape(reqs, reqs, 0.0))
            draft = changed.draft_ms(_at_depth(_shape(reqs, reqs, reqs * kv), depth)) + cached
            assert np.allclose(tables.draft[1:], draft, rtol=1e-12), "the draft table is not the model's own"
            whole = changed.step_ms(_at_depth(_shape(source, tokens, source * kv), depth), drafting=True)
            found = tables.draft[source] + tables.verify[1:]
            wrong = int(np.abs(found - whole).argmax())
            assert np.allclose(found, whole, rtol=1e-12), (
                f"draft + verify of {tokens[wrong]} tokens from {source[wrong]} requests is {found[wrong]} ms in the "
                f"tables, and the step takes {whole[wrong]} ms"
            )
            assert (tables.by_depth is None) == (depth is None), "by_depth is there exactly where a depth was asked for"
            for slots in range(depth + 1 if depth is not None else 0):
                row = changed.draft_ms(_at_depth(_shape(reqs, reqs, reqs * kv), slots)) + cached
                assert tables.by_depth is not None
                assert np.allclose(tables.by_depth[slots, 1:], row, rtol=1e-12), f"by_depth[{slots}] is not the model's"


def check_monotone_depth(model: CostModel) -> None:
    """Drafting deeper never costs less, and a skipped step (depth 0) no more than a draft of one slot."""
    reqs = np.array([1, 5, 64, 300])
    for kv in (0.0, 2000.0):
        shape = _shape(reqs, 3 * reqs, reqs * kv)
        ms = np.stack([model.draft_ms(_at_depth(shape, depth)) for depth in range(9)])
        assert (ms >= 0).all(), f"a draft time of {ms.min()} ms"
        depth, step = np.unravel_index(np.diff(ms, axis=0).argmin(), (8, len(reqs)))
        falls = ms[depth + 1, step] - ms[depth, step]
        assert falls >= -1e-9, (
            f"drafting {depth + 1} slots for {reqs[step]} requests costs {ms[depth + 1, step]} ms, and {depth} slots "
            f"{ms[depth, step]} ms"
        )
        own = model.draft_ms(shape)
        assert (own >= ms[0] - 1e-9).all(), "the drafter's own K costs less than skipping"


def check_monotone_logits(model: CostModel) -> None:
    """More rows of logits never cost less."""
    rows = np.arange(0, 1200, 7)
    same = np.ones_like(rows)
    shape = replace(_shape(same * 16, same * 1200, 1e4), logits=rows)
    _rises(model, shape, "logit rows", rows)


def check_outside_is_none_or_reason(model: CostModel) -> None:
    """`outside` gives None or a reason, and a larger step is never back inside."""
    for sizes in (((1, n) for n in _sizes().tolist()), ((n, n) for n in _sizes().tolist())):
        left: tuple[int, int] | None = None
        for size in sizes:
            reason = model.outside(*size)
            assert reason is None or (isinstance(reason, str) and reason), f"outside{size} is {reason!r}"
            assert reason or left is None, f"{left} is outside the measured range, but the larger {size} is not"
            left = size if reason else left


def check_flags_outside(model: CostModel) -> None:
    """A measured curve flags sizes beyond its last one, and none up to it."""
    curve = _curve(model)
    tokens, reqs = curve.verify[-1][0], curve.draft[-1][0] if curve.draft else 1
    assert model.outside(reqs, tokens) is None, f"the last measured sizes {(reqs, tokens)} are flagged"
    for size in ((1, tokens + 1), *([(reqs + 1, 1)] if curve.draft else []), (4 * reqs, 4 * tokens)):
        assert model.outside(*size), f"{size} lies beyond the last measured sizes {(reqs, tokens)} and is not flagged"


def check_running_maximum(model: CostModel) -> None:
    """At a measured size the time is the largest median up to it."""
    curve = _curve(model)
    for name, points, ask in _parts(model, curve):
        sizes = np.array([size for size, _ in points])
        expected = np.maximum.accumulate([ms for _, ms in points])
        wrong = np.flatnonzero(np.abs(ask(sizes) - expected) > 1e-9)
        assert not len(wrong), f"{name} at {sizes[wrong[0]]} is not the running maximum {expected[wrong[0]]} ms"


def check_flat_between_captured(model: CostModel) -> None:
    """Up to the capture limit a step costs what the next captured size costs."""
    curve = _curve(model)
    for name, points, ask in _parts(model, curve):
        captured = [size for size, _ in points if size <= (curve.capture_limit or size)]
        below = 0
        for size in captured:
            between = ask(np.arange(below + 1, size + 1))
            flat = np.all(between == between[-1])
            assert flat, f"{name} is not flat over the sizes {below + 1} … {size} that are padded to {size}"
            below = size


def check_keeps_jump(model: CostModel) -> None:
    """Past the capture limit the time jumps at once to that of the first measured size above it."""
    curve = _curve(model)
    for name, points, ask in _parts(model, curve):
        above = [size for size, _ in points if size > curve.capture_limit]
        if not curve.capture_limit or not above:
            continue
        gap = ask(np.arange(curve.capture_limit + 1, above[0] + 1))
        flat = np.all(gap == gap[-1])
        assert flat, (
            f"{name} rises from {gap[0]} to {gap[-1]} ms past the limit {curve.capture_limit}: a cliff, smoothed"
        )


def _sizes() -> IntArray:
    return np.unique(np.concatenate([np.arange(1, 2200), np.geomspace(2200, 20_000, 200).astype(np.int64)]))


def _shape(num_reqs: IntArray, num_tokens: IntArray, kv_tokens: NDArray[Any] | float) -> StepShape:
    kv = np.broadcast_to(np.asarray(kv_tokens, dtype=np.float64), num_reqs.shape)
    return StepShape(num_reqs, num_tokens, kv, np.zeros_like(num_reqs))


def _shapes() -> Iterator[StepShape]:
    tokens = _sizes()
    for reqs in (np.ones_like(tokens), np.minimum(tokens, 64), tokens):
        for kv in (0.0, 1000.0):
            yield _shape(reqs, tokens, reqs * kv)
        yield replace(_shape(reqs, tokens, 0.0), num_prefill_tokens=tokens // 2)


def _at_depth(shape: StepShape, depth: int | None) -> StepShape:
    return shape if depth is None else replace(shape, draft_depth=np.full_like(shape.num_reqs, depth))


def _rises(model: CostModel, shape: StepShape, what: str, sizes: IntArray) -> None:
    for name, ms in (("verify", model.verify_ms(shape)), ("draft", model.draft_ms(shape))):
        falls = np.flatnonzero(np.diff(ms) < -1e-9)
        assert not len(falls), (
            f"{name} falls from {ms[falls[0]]} to {ms[falls[0] + 1]} ms between {sizes[falls[0]]} and "
            f"{sizes[falls[0] + 1]} {what}"
        )


def _curve(model: CostModel) -> MeasuredCurve:
    assert isinstance(model, MeasuredCurve), "the model has no measured sizes: opt out with that reason"
    return cast(MeasuredCurve, model)


def _parts(model: CostModel, curve: MeasuredCurve) -> Iterator[tuple[str, tuple[tuple[int, float], ...], Any]]:
    def verify(sizes: IntArray) -> F64Array:
        return model.verify_ms(_shape(np.ones_like(sizes), sizes, 0.0))

    def draft(sizes: IntArray) -> F64Array:
        return model.draft_ms(_shape(sizes, sizes, 0.0))

    yield "verify", curve.verify, verify
    if curve.draft:
        yield "draft", curve.draft, draft


COST_CHECKS = (
    check_positive,
    check_elementwise,
    check_monotone_tokens,
    check_monotone_requests,
    check_monotone_kv,
    check_monotone_depth,
    check_monotone_logits,
    check_step_is_a_sum,
    check_json,
    check_tables,
    check_outside_is_none_or_reason,
    check_flags_outside,
    check_running_maximum,
    check_flat_between_captured,
    check_keeps_jump,
)
