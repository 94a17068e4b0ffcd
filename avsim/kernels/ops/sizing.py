"""The budget of a step, from survivals and costs.

    choose      three launches over n = B·K slots: survivals (4·n bytes in, 8·n out), ranks by counting (8·n bytes per
                program of 32 slots, out of L2), and the rate along the ranking (8·n of survivals, 8·n of costs); 16·n
                more to find its first fall.

Counting for each slot those ahead of it takes n² comparisons over all programs, and no sort: the ranking does not
depend on the order of anything. All of it is small against the launches; nothing comes near the memory's bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["SPECIALISATIONS", "Costs", "Scratch", "choose"]

_ROWS, _RANKED, _AGAINST, _CHUNK = 128, 32, 256, 2048


@dataclass(frozen=True, slots=True)
class Costs:
    """vLLM's two tables on the device, ms, float64: `draft[num_reqs]` and `verify[num_tokens]`."""

    draft: Any
    verify: Any


class Scratch:
    """Memory that sizing works in, for R persistent slots of K drafts: 24·R·K bytes."""

    def __init__(self, max_num_reqs: int, num_speculative_steps: int, device: Any):
        size = max_num_reqs * num_speculative_steps
        self.survivals = torch.empty(size, dtype=torch.float64, device=device)
        self.ranked = torch.empty(size, dtype=torch.float64, device=device)
        self.objective = torch.empty(size + 1, dtype=torch.float64, device=device)


@triton.jit(
    do_not_specialize=["confidence_stride", "num_rows"],
    do_not_specialize_on_alignment=["confidence", "idx_mapping", "capacities"],
)
def _survival_kernel(
    survivals, confidence, confidence_stride, idx_mapping, capacities, num_rows, K: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < num_rows
    index = tl.load(idx_mapping + row, mask=inside, other=-1).to(tl.int64)
    part = index >= 0
    capacity = tl.load(capacities + row, mask=part, other=0)
    survival = tl.full((ROWS,), 1.0, tl.float64)
    for k in tl.static_range(K):
        drafted = part & (k < capacity)
        p = tl.load(confidence + index * confidence_stride + k, mask=drafted, other=0.0)
        survival *= p.to(tl.float64)
        # What is not a number expects nothing; undrafted slots come last.
        expected = tl.where(survival > 0, survival, 0.0)
        tl.store(survivals + k * num_rows + row, tl.where(drafted, expected, -1.0), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _rank_kernel(ranked, survivals, num_rows, K: tl.constexpr, RANKED: tl.constexpr, AGAINST: tl.constexpr):
    total = num_rows * K
    begin = tl.program_id(0) * RANKED
    if begin < total:
        mine = begin + tl.arange(0, RANKED)
        value = tl.load(survivals + mine, mask=mine < total, other=-1.0)
        rank = tl.zeros((RANKED,), tl.int32)
        for start in range(0, total, AGAINST):
            its = start + tl.arange(0, AGAINST)
            other = tl.load(survivals + its, mask=its < total, other=-2.0)
            tied_before = (other[None, :] == value[:, None]) & (its[None, :] < mine[:, None])
            rank += tl.sum(((other[None, :] > value[:, None]) | tied_before).to(tl.int32), axis=1)
        tl.store(ranked + rank, value, mask=mine < total)


@triton.jit(
    do_not_specialize=[
        "num_sampling",
        "num_reqs",
        "num_target_tokens",
        "num_rows",
        "max_total_logits",
        "last_token",
    ],
    do_not_specialize_on_alignment=["num_sampling", "num_reqs", "num_target_tokens"],
)
def _choose_kernel(
    chosen,
    objective,
    ranked,
    draft,
    verify,
    num_sampling,
    num_reqs,
    num_target_tokens,
    num_rows,
    max_total_logits,
    last_token,
    SIZES_ON_DEVICE: tl.constexpr,
    FIRST_FALL: tl.constexpr,
    K: tl.constexpr,
    CHUNK: tl.constexpr,
):
    if SIZES_ON_DEVICE:
        num_sampling = tl.load(num_sampling)
        num_reqs = tl.load(num_reqs)
        num_target_tokens = tl.load(num_target_tokens)
    cap = tl.minimum(num_rows * K, tl.maximum(max_total_logits - num_reqs, 0))
    draft_ms = tl.load(draft + num_reqs)
    sampling = num_sampling.to(tl.float64)
    gained = tl.zeros((), tl.float64)
    highest = tl.full((), float("-inf"), tl.float64)
    best = tl.zeros((), tl.int32)
    stop = cap
    for start in range(0, cap + 1, CHUNK):
        budget = start + tl.arange(0, CHUNK)
        after_first = (budget >= 1) & (budget <= cap)
        gain = tl.load(ranked + budget - 1, mask=after_first, other=0.0)
        allowed = (budget <= cap) & (gain >= 0)  # undrafted slots are −1, and last
        gain = tl.where(allowed, gain, 0.0)
        tokens = sampling + (gained + tl.cumsum(gain, axis=0))
        gained += tl.sum(gain, axis=0)
        verify_ms = tl.load(verify + tl.minimum(num_target_tokens + budget, last_token), mask=allowed, other=1.0)
        rate = tl.where(allowed, tokens / (draft_ms + verify_ms), float("-inf"))
        if FIRST_FALL:
            # The rate before must be the very number that was compared one place earlier.
            tl.store(objective + budget, rate, mask=budget <= cap)
            tl.debug_barrier()
            before = tl.load(objective + budget - 1, mask=after_first, other=float("-inf"))
            fallen = tl.where(after_first & (rate <= before), budget - 1, cap)
            stop = tl.minimum(stop, tl.min(fallen, axis=0))
        else:
            top = tl.max(rate, axis=0)
            first = tl.min(tl.where(rate == top, budget, cap), axis=0)
            best = tl.where(top > highest, first, best)
            highest = tl.maximum(top, highest)
    if FIRST_FALL:
        best = stop
    tl.store(chosen, best)


def choose(
    chosen: Any,
    confidence: Any,
    idx_mapping: Any,
    capacities: Any,
    sizes: Any,
    costs: Costs,
    max_total_logits: int,
    scratch: Scratch,
    *,
    first_fall: bool,
) -> None:
    """Choose a budget by (N_sampling + Σ_{j<B} S_sorted[j]) / (draft[num_reqs] + verify[T + B]), in float64.

    B is the first maximum over 0 ≤ B ≤ min(Σ capacities, max(0, max_total_logits − num_reqs)); with `first_fall` it is
    the first after which the rate does not rise. A NaN survival counts as 0.

    Args:
        chosen: takes B, int32 `[1]`.
        confidence, idx_mapping, capacities: as in `allocate`; capacities are only read.
        sizes: N_sampling, num_reqs and T: three numbers, or an int32 tensor `[3]` where a graph is replayed.
        costs: float64 on the device.
        max_total_logits: logit rows that the rejection sampler takes at once.
        scratch: for R and K of `confidence`.

    Source: vLLM 0.33 `AdaptiveVerificationManager.get_num_tokens`; DSpark (arXiv 2607.05147), Algorithm 1.
    """
    rows = len(idx_mapping)
    if not rows:
        chosen.zero_()
        return
    max_num_reqs, num_slots = confidence.shape
    on_device = isinstance(sizes, torch.Tensor)
    _survival_kernel[(triton.cdiv(max_num_reqs, _ROWS),)](
        scratch.survivals,
        confidence,
        confidence.stride(0),
        idx_mapping,
        capacities,
        rows,
        K=num_slots,
        ROWS=_ROWS,
        enable_fp_fusion=False,
    )
    _rank_kernel[(triton.cdiv(max_num_reqs * num_slots, _RANKED),)](
        scratch.ranked,
        scratch.survivals,
        rows,
        K=num_slots,
        RANKED=_RANKED,
        AGAINST=_AGAINST,
        enable_fp_fusion=False,
    )
    _choose_kernel[(1,)](
        chosen,
        scratch.objective,
        scratch.ranked,
        costs.draft,
        costs.verify,
        *((sizes[0:1], sizes[1:2], sizes[2:3]) if on_device else sizes),
        rows,
        max_total_logits,
        len(costs.verify) - 1,
        SIZES_ON_DEVICE=on_device,
        FIRST_FALL=first_fall,
        K=num_slots,
        CHUNK=_CHUNK,
        num_warps=8,
        enable_fp_fusion=False,
    )


def _specialisations() -> tuple[Any, ...]:
    table = {"confidence": "*fp32", "confidence_stride": "i32", "idx_mapping": "*i64", "capacities": "*i32"}
    survivals = {"survivals": "*fp64"} | table | {"num_rows": "i32"}
    ranks = {"ranked": "*fp64", "survivals": "*fp64", "num_rows": "i32"}
    plain = {"enable_fp_fusion": False}
    made: list[Any] = [
        (_survival_kernel, survivals, {"K": 7, "ROWS": _ROWS}, plain),
        (_rank_kernel, ranks, {"K": 7, "RANKED": _RANKED, "AGAINST": _AGAINST}, plain),
    ]
    for on_device, kind in ((False, "i32"), (True, "*i32")):
        signature = {"chosen": "*i32"} | dict.fromkeys(("objective", "ranked", "draft", "verify"), "*fp64")
        signature |= dict.fromkeys(("num_sampling", "num_reqs", "num_target_tokens"), kind)
        signature |= dict.fromkeys(("num_rows", "max_total_logits", "last_token"), "i32")
        for first_fall in (False, True):
            flags = {"SIZES_ON_DEVICE": on_device, "FIRST_FALL": first_fall, "K": 7, "CHUNK": _CHUNK}
            made.append((_choose_kernel, signature, flags, plain | {"num_warps": 8}))
    return tuple(made)


SPECIALISATIONS = _specialisations()
