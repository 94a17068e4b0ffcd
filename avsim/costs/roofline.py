"""Step times from data sheets: bytes against bandwidth, FLOPs against peak, and what neither explains."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from avsim.costs.base import CostModel, StepShape, common_terms
from avsim.costs.captured import pad
from avsim.costs.draft import depth_of, num_passes
from avsim.costs.drafters import DrafterShape
from avsim.costs.model_shape import BYTES, ModelShape
from avsim.costs.roofline_spec import RooflineSpec
from avsim.costs.shapes import Gpu
from avsim.errors import InputError
from avsim.types import F64Array, IntArray

__all__ = ["RooflineCost", "distinct_experts"]

_POSITIVE = ("bandwidth_efficiency", "compute_efficiency")
_AT_LEAST_ZERO = ("kernel_us", "collective_us", "cpu_ms", "eager_us_per_layer", "sampler_passes")
_OPTIONS = (
    "tp", "num_slots", "dtype", "expert_dtype", "kv_dtype", "context_tokens", "capture_limit", "head", "overlap",
    "expert_correlation", *_POSITIVE, *_AT_LEAST_ZERO,
)  # fmt: skip


def distinct_experts(experts: int, per_token: int, reqs: IntArray, tokens: IntArray, correlation: float) -> F64Array:
    """Return the expected distinct experts that a layer reads, `[S]`.

        E · (1 − (1 − k/E)^m),  m = R + (1 − ρ)(n − R)

    m independent tokens would touch as many: a request's first token counts whole, its further ones 1 − ρ each.
    ρ = 0: all tokens are independent; ρ = 1: a request's tokens all go to the experts of its first.

    >>> distinct_experts(8, 2, np.array([1, 1]), np.array([1, 4]), 0.0).round(2).tolist()
    [2.0, 5.47]
    """
    independent = reqs + (1.0 - correlation) * np.maximum(tokens - reqs, 0)
    return experts * -np.expm1(independent * np.log1p(-min(per_token / experts, 1 - 1e-12)))


@dataclass(frozen=True)
class RooflineCost(CostModel):
    """An estimate of a decoder's step on `tp` GPUs; see docs/cost-models.md for every term and what it leaves out.

        GPU     = kernels · kernel_us + Σ max(bytes / bandwidth, FLOPs / peak) + activations + collectives + head
        verify  = max(GPU, launches where no full graph runs), at least cpu_ms
        draft   = what the drafter's passes add to max(GPU, cpu_ms)

    The sum runs over dense weights, distinct experts, and the KV cache, which a request reads once for all its tokens.
    Tokens are padded to captured sizes up to `capture_limit`. Nothing here is measured.

    Attributes:
        target, gpu, tp, drafter, num_slots: what runs on what; `num_slots` is the drafter's K where a step names none.
        dtype, expert_dtype, kv_dtype: of weights and cache.
        context_tokens: cached tokens of every request; None: as the step says.
        capture_limit: largest captured size.
        head: charge LM head and rejection sampling; `cpu_ms`: CPU work of a step, hidden behind the GPU if `overlap`.
        bandwidth_efficiency, compute_efficiency: shares of the data sheet's peaks that kernels reach.
        kernel_us: latency of a kernel that neither explains. collective_us: latency of an all-reduce.
        eager_us_per_layer: launching a layer's kernels one by one.
        sampler_passes: times that the sampler reads or writes a row of float32 logits.
        expert_correlation: ρ of `distinct_experts`.
    """

    name: ClassVar[str] = "roofline"
    spec: ClassVar[type[Any] | None] = RooflineSpec

    target: ModelShape
    gpu: Gpu
    tp: int = 1
    drafter: DrafterShape | None = None
    num_slots: int = 7
    dtype: str = "bf16"
    expert_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    context_tokens: int | None = None
    capture_limit: int = 512
    head: bool = True
    overlap: bool = True
    expert_correlation: float = 0.2
    bandwidth_efficiency: float = 0.8
    compute_efficiency: float = 0.6
    kernel_us: float = 3.0
    collective_us: float = 5.0
    cpu_ms: float = 1.2
    eager_us_per_layer: float = 100.0
    sampler_passes: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for term in _POSITIVE:
            if not 0 < getattr(self, term) <= 1.5:
                raise InputError(f"roofline: {term} must lie in (0, 1.5], not {getattr(self, term)}")
        for term in _AT_LEAST_ZERO:
            if not (np.isfinite(getattr(self, term)) and getattr(self, term) >= 0):
                raise InputError(f"roofline: {term} must be finite and ≥ 0, not {getattr(self, term)}")
        for term in ("dtype", "expert_dtype", "kv_dtype"):
            if getattr(self, term) not in BYTES:
                raise InputError(f"roofline: {term} must be one of {', '.join(BYTES)}, not {getattr(self, term)!r}")
        if not 0 <= self.expert_correlation <= 1:
            raise InputError(f"roofline: expert_correlation must lie in [0, 1], not {self.expert_correlation}")
        if self.tp < 1 or self.num_slots < 1 or self.capture_limit < 0 or (self.context_tokens or 0) < 0:
            raise InputError("roofline: tp and k must be at least 1, capture_limit and context at least 0")
        if self.weights_gb > self.gpu.hbm_gb * self.tp:
            raise InputError(
                f"roofline: {self.target.name} takes {self.weights_gb:,.0f} GB of weights, and tp={self.tp} × "
                f"{self.gpu.name} hold {self.gpu.hbm_gb * self.tp:,.0f} GB; raise tp or lower dtype"
            )

    @property
    def weights_gb(self) -> float:
        """Memory that the target's and the drafter's weights take, GB."""
        total = 0.0
        for stack, dense, experts in self._stacks():
            routed = stack.moe_layers * stack.experts * stack.expert_params
            whole = stack.layers * (stack.whole_params * BYTES[dense] + stack.bf16_params * BYTES["bf16"])
            split = stack.total_params - 2 * stack.head_params - routed
            split -= stack.layers * (stack.whole_params + stack.bf16_params)
            total += routed * BYTES[experts] + split * BYTES[dense] + self.tp * whole
        return (total + 2 * self.target.head_params * BYTES["bf16"]) / 1e9

    def _stacks(self) -> list[tuple[ModelShape, str, str]]:
        stacks = [(self.target, self.dtype, self.expert_dtype)]
        if self.drafter is not None and self.drafter.stack is not None:
            stacks.append((self.drafter.stack, self.drafter.stack.dtype, self.drafter.stack.expert_dtype))
        return stacks

    @property
    def uses_kv(self) -> bool:
        return self.context_tokens is None

    @property
    def draft_depends_on_depth(self) -> bool:
        return self.drafter is not None and self.drafter.form != "ngram"

    @property
    def skip_is_known(self) -> bool:
        return True

    def outside(self, num_reqs: int, num_tokens: int) -> str | None:
        return None

    def as_profiled(self) -> RooflineCost:
        return replace(self, head=False, cpu_ms=0.0, overhead_ms=0.0)

    def verify_ms(self, shape: StepShape) -> F64Array:
        gpu = self._target_ms(shape)
        return np.maximum(gpu, self.cpu_ms) if self.overlap else gpu + self.cpu_ms

    def draft_ms(self, shape: StepShape) -> F64Array:
        drafting = self._drafter_ms(shape)
        if not self.overlap:
            return drafting
        gpu = self._target_ms(shape)
        return np.maximum(gpu + drafting, self.cpu_ms) - np.maximum(gpu, self.cpu_ms)

    def step_ms(self, shape: StepShape, *, drafting: bool) -> F64Array:
        gpu = self._target_ms(shape) + (self._drafter_ms(shape) if drafting else 0.0)
        whole = np.maximum(gpu, self.cpu_ms) if self.overlap else gpu + self.cpu_ms
        return whole + self.overhead_ms

    def _target_ms(self, shape: StepShape) -> F64Array:
        mixed = (shape.num_tokens > self.capture_limit) | (shape.num_prefill_tokens > 0)
        tokens = pad(shape.num_tokens, self.capture_limit)
        ms = self._stack_ms(self.target, shape.num_reqs, tokens, self._cached(shape), self.dtype, self.expert_dtype)
        ms = self._launched(ms, mixed, self.target.layers)
        if self.head:
            ms = ms + self._head_ms(self.target.head_params, self.target.vocab, shape.num_logit_rows)
        return ms

    def _drafter_ms(self, shape: StepShape) -> F64Array:
        if self.drafter is None or self.drafter.stack is None:
            return np.zeros(len(shape.num_reqs))
        drafter, stack, reqs = self.drafter, self.drafter.stack, shape.num_reqs
        depth, cached, limit = depth_of(shape, self.num_slots), self._cached(shape), self.capture_limit
        dtypes = (stack.dtype, stack.expert_dtype)
        rows = pad(shape.num_tokens, limit)
        ms = self._gemm_ms(drafter.fusion_params, rows, "bf16")
        if drafter.form == "block":
            keys = 2.0 * stack.kv_heads * stack.head_dim * stack.hidden * stack.layers
            ms = ms + self._gemm_ms(keys, rows, stack.dtype)
            queries = pad(reqs, limit) * (depth + drafter.queries_per_slot_extra)
        else:
            first = self._stack_ms(stack, reqs, rows, cached, *dtypes)
            ms = ms + self._launched(first, shape.num_tokens > limit, stack.layers)
            queries = pad(reqs, limit)
        following = self._stack_ms(stack, reqs, queries, cached, *dtypes)
        ms = ms + num_passes(drafter.form, depth) * self._launched(following, reqs > limit, stack.layers)
        heads = self._head_ms(stack.head_params, stack.vocab, reqs)
        if drafter.form == "block":
            slots = self._gemm_ms(drafter.slot_params, reqs, "bf16") if drafter.slot_params else 0.0
            return ms + self._head_ms(stack.head_params, stack.vocab, reqs * depth) + depth * slots
        return ms + depth * heads

    def _cached(self, shape: StepShape) -> F64Array:
        if self.context_tokens is None:
            return np.asarray(shape.kv_tokens, dtype=np.float64)
        return shape.num_reqs * np.float64(self.context_tokens)

    def _launched(self, gpu_ms: F64Array, eager: Any, layers: int) -> F64Array:
        return np.where(eager, np.maximum(gpu_ms, layers * self.eager_us_per_layer * 1e-3), gpu_ms)

    def _gemm_ms(self, params: float, rows: IntArray, dtype: str) -> F64Array:
        """Return max(weights read, FLOPs) of `rows` tokens through a matrix split over all GPUs; 0 for no rows.

        One that every GPU holds whole takes `tp` times as long.
        """
        read = params * BYTES[dtype] / self._bytes_per_ms
        work = 2.0 * params * rows / self._flops_per_ms(dtype)
        return np.where(rows > 0, np.maximum(read, work), 0.0)

    def _stack_ms(
        self, stack: ModelShape, reqs: IntArray, tokens: IntArray, cached: F64Array, dtype: str, expert_dtype: str
    ) -> F64Array:
        whole = stack.layers * stack.whole_params
        dense = stack.layers * stack.attention_params - whole + stack.dense_layers * stack.dense_params
        ms = self._gemm_ms(dense + stack.moe_layers * stack.shared_params, tokens, dtype)
        ms = ms + self.tp * self._gemm_ms(whole, tokens, dtype)
        ms = ms + self.tp * self._gemm_ms(stack.layers * stack.bf16_params, tokens, "bf16")
        if stack.moe_layers:
            touched = distinct_experts(stack.experts, stack.experts_per_token, reqs, tokens, self.expert_correlation)
            per_expert = stack.moe_layers * stack.expert_params
            read = touched * per_expert * BYTES[expert_dtype] / self._bytes_per_ms
            work = 2.0 * stack.experts_per_token * per_expert * tokens / self._flops_per_ms(expert_dtype)
            ms = ms + np.maximum(read, work)
        per_req = tokens / np.maximum(reqs, 1)
        for group in stack.kv:
            entries = cached / group.ratio
            entries = entries if group.most is None else np.minimum(entries, reqs * np.float64(group.most))
            split = min(self.tp, group.heads)
            read = group.layers * group.values * entries * BYTES[self.kv_dtype] * self.tp / split / self._bytes_per_ms
            work = group.layers * group.flops * entries * per_req / self._flops_per_ms("bf16")
            ms = ms + np.maximum(read, work)
        activations = stack.layers * (stack.activations + self.tp * stack.residual) * BYTES["bf16"]
        latency = stack.layers * stack.kernels * self.kernel_us * 1e-3
        ms = ms + tokens * (activations / self._bytes_per_ms) + np.where(tokens > 0, latency, 0.0)
        if self.tp > 1:
            moved = 2.0 * (self.tp - 1) / self.tp * tokens * stack.hidden * BYTES["bf16"] / (self.gpu.link_gb_s * 1e6)
            ms = ms + 2 * stack.layers * (np.where(tokens > 0, self.collective_us * 1e-3, 0.0) + moved)
        return ms

    def _head_ms(self, params: float, vocab: int, rows: IntArray) -> F64Array:
        """Return LM head, gathering of its parts, and sampling of `rows` rows of logits, on every GPU."""
        sampling = rows * (vocab * 4.0 * self.sampler_passes / (self._bytes_per_ms / self.tp))
        ms = self._gemm_ms(params, rows, "bf16") + sampling
        if self.tp > 1:
            gathered = (self.tp - 1) / self.tp * vocab * BYTES["bf16"] / (self.gpu.link_gb_s * 1e6)
            ms = ms + rows * gathered + np.where(rows > 0, self.collective_us * 1e-3, 0.0)
        return ms

    @property
    def _bytes_per_ms(self) -> float:
        return self.gpu.hbm_gb_s * 1e6 * self.bandwidth_efficiency * self.tp

    def _flops_per_ms(self, dtype: str) -> float:
        return self.gpu.peak(dtype) * 1e-3 * self.compute_efficiency * self.tp

    def to_json(self) -> dict[str, Any]:
        options = {term: getattr(self, term) for term in _OPTIONS}
        drafter = None if self.drafter is None else self.drafter.to_json()
        shapes = {"target": asdict(self.target), "gpu": asdict(self.gpu), "drafter": drafter}
        return self.common_json() | options | shapes

    @classmethod
    def from_json(cls, data: dict[str, Any], card: Any) -> RooflineCost:
        """Build from the JSON form; raises KeyError, TypeError or ValueError where it is malformed."""
        drafter = data.get("drafter")
        return cls(
            target=ModelShape.from_json(data["target"]),
            gpu=Gpu(**data["gpu"]),
            drafter=DrafterShape.from_json(drafter) if drafter else None,
            card=card,
            **{term: data[term] for term in _OPTIONS if term in data},
            **common_terms(data),
        )
