"""The live survivals that a budget is spent on.

    allocate    one launch, one program: B rows of K confidences (4·B·K bytes), slots and capacities (12·B bytes).

It finds the budget-th largest survival by a search on the ordered bits of float32, two bits at a time: 15 counts, no
sort. Nothing here comes near the memory's bandwidth; what it costs is a launch and 15 reductions within one program.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from avsim.errors import InputError

__all__ = ["MAX_SLOTS", "SPECIALISATIONS", "allocate", "padded"]

MAX_SLOTS = 1 << 15
"""Draft slots that one program can hold: padded requests × padded K."""
_ONE = tl.constexpr(0x3F800000)  # the bits of 1.0, the largest survival
_FIELD, _WITHIN = tl.constexpr(21), tl.constexpr((1 << 21) - 1)  # three counts of 21 bits share an int64


@triton.jit(
    do_not_specialize=["confidence_stride", "budget", "num_rows"],
    do_not_specialize_on_alignment=["confidence", "idx_mapping", "capacities", "budget"],
)
def _allocate_kernel(
    confidence,
    confidence_stride,
    idx_mapping,
    capacities,
    budget,
    num_rows,
    BUDGET_ON_DEVICE: tl.constexpr,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
):
    if BUDGET_ON_DEVICE:
        budget = tl.load(budget)
    row, slot = tl.arange(0, ROWS), tl.arange(0, SLOTS)
    index = tl.load(idx_mapping + row, mask=row < num_rows, other=-1).to(tl.int64)
    part = index >= 0
    capacity = tl.load(capacities + row, mask=part, other=0)

    # A scan would multiply in a tree; NumPy multiplies slot after slot.
    survival = tl.full((SLOTS, ROWS), 1.0, tl.float32)
    for k in tl.static_range(K):
        p = tl.load(confidence + index * confidence_stride + k, mask=part & (k < capacity), other=0.0)
        survival = tl.where(slot[:, None] >= k, survival * p[None, :], survival)

    # Bits of floats ≥ 0 are ordered as they are. Below them: 0 for no draft, 1 for NaN, 2 for zero and less.
    bits = tl.minimum(survival.to(tl.int32, bitcast=True), _ONE) + 2
    key = tl.where(survival > 0, bits, tl.where(survival == survival, 2, 1))
    key = tl.where((slot[:, None] < capacity[None, :]) & (slot[:, None] < K), key, 0)

    # The largest cut that at least `budget` keys reach.
    cut = tl.zeros((), tl.int32)
    step = tl.full((), 1 << 28, tl.int32)
    for _ in range(15):
        first, second, third = cut + step, cut + 2 * step, cut + 3 * step
        reach = (key >= first).to(tl.int64)
        reach += (key >= second).to(tl.int64) << _FIELD
        reach += (key >= third).to(tl.int64) << (2 * _FIELD)
        counts = tl.sum(tl.sum(reach, axis=1), axis=0)
        cut += step * ((counts & _WITHIN) >= budget).to(tl.int32)
        cut += step * (((counts >> _FIELD) & _WITHIN) >= budget).to(tl.int32)
        cut += step * ((counts >> (2 * _FIELD)) >= budget).to(tl.int32)
        step = step >> 2

    above = (key > cut).to(tl.int32)
    tied = ((key == cut) & (cut > 0)).to(tl.int32)
    left = budget - tl.sum(tl.sum(above, axis=1), axis=0)
    of_slot = tl.sum(tied, axis=1)
    rank = tl.cumsum(tied, axis=1) + (tl.cumsum(of_slot, axis=0) - of_slot)[:, None]
    taken = above + tl.where(rank <= left, tied, 0)
    tl.store(capacities + row, tl.sum(taken, axis=0), mask=part)


def allocate(confidence: Any, idx_mapping: Any, capacities: Any, budget: Any) -> None:
    """Give a budget to the highest live survivals, a prefix per request; capacities become admitted counts.

    The `budget` highest of S_k = ∏_{j≤k} p_j, in float32 and multiplied in the order of the slots. Ties go by slot,
    then by row, so that the count is exact and the choice the same on every rank. A NaN survival comes after every
    number. A budget of all drafts or more admits all.

    Args:
        confidence: by persistent slot, float32 `[R, K]`; the last stride is 1.
        idx_mapping: persistent slot of each row, int32 `[B]`; −1 in rows that pad a graph, which are left alone.
        capacities: scheduled drafts of each row, int32 `[B]`; M, admitted slots, on return.
        budget: a number, or an integer tensor of one element on the device.

    Source: vLLM 0.33 `_assign_draft_token_budget`, which leaves ties to chance.
    """
    if not len(idx_mapping):
        return
    max_num_reqs, num_slots = confidence.shape
    slots, rows = padded(max_num_reqs, num_slots)
    _allocate_kernel[(1,)](
        confidence,
        confidence.stride(0),
        idx_mapping,
        capacities,
        budget,
        len(idx_mapping),
        BUDGET_ON_DEVICE=isinstance(budget, torch.Tensor),
        K=num_slots,
        SLOTS=slots,
        ROWS=rows,
        num_warps=_warps(slots * rows),
        enable_fp_fusion=False,
    )


def padded(max_num_reqs: int, num_slots: int) -> tuple[int, int]:
    """Return the slots and rows of the block that allocation works on, powers of two.

    Raises:
        InputError: one program cannot hold so many.
    """
    slots, rows = triton.next_power_of_2(num_slots), triton.next_power_of_2(max_num_reqs)
    if slots * rows > MAX_SLOTS:
        raise InputError(
            f"a budget on the device covers {MAX_SLOTS} draft slots, not {max_num_reqs} requests × {num_slots} drafts "
            f"(padded to {rows} × {slots}); lower max_num_seqs to {MAX_SLOTS // slots}"
        )
    return slots, rows


def _warps(size: int) -> int:
    return min(32, max(4, size // 512))


def _specialisations() -> tuple[Any, ...]:
    table = {"confidence": "*fp32", "confidence_stride": "i32", "idx_mapping": "*i64", "capacities": "*i32"}
    made = []
    for max_num_reqs, k in ((256, 7), (1024, 3), (1024, 16), (128, 1), (2048, 16)):
        slots, rows = padded(max_num_reqs, k)
        for on_device, kind in ((False, "i32"), (True, "*i32")):
            signature = table | {"budget": kind, "num_rows": "i32"}
            constants = {"BUDGET_ON_DEVICE": on_device, "K": k, "SLOTS": slots, "ROWS": rows}
            options = {"num_warps": _warps(slots * rows), "enable_fp_fusion": False}
            made.append((_allocate_kernel, signature, constants, options))
    return tuple(made)


SPECIALISATIONS = _specialisations()
