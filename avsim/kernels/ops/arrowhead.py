"""`online-logistic` on the device: its six sums of each slot, and the arrowhead system that a refit solves.

Accumulate: one program per slot k reads f and p of the batch's rows and adds, over observed slots, W f², W f, W, r f, r
and 1 (W = p(1 − p), r = y − p). Sums are float32 or float64, as the table that takes them is. In float32 the batch is
one block, padded as vLLM's kernel pads it, so that the pairs in which it adds are the same: padding further, to the
largest batch, adds zeros only. Bytes per step: B·(12 + 8K) read and 48 K (float64: 96 K) for the table, 18 KB at 256
requests × 7 slots.

Refit, in float32, one program, λ added to a = Σa_k and to every c_k:

    Δw = (g0 − Σ b_k g1_k / c_k) / (a − Σ b_k² / c_k),  damped by N/(N + damping), 0 where NaN or where w + Δw < 0
    Δb_k = (g1_k − b_k Δw) / c_k,                       damped by n_k/(n_k + damping), 0 where NaN

and the sums start anew. 6 K numbers in, K + 1 out.

Source: vLLM PR #52228, `acceptance_estimator.py`. Divisions here are correctly rounded and nothing is fused, as in
NumPy; vLLM's compiled kernels may differ from both in the last bits.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from avsim.kernels.ops.accumulate import labels, power_of_two

__all__ = ["SPECIALISATIONS", "add_logistic_sums", "arrowhead_kernel", "logistic_sums_kernel", "solve_arrowhead"]

_BATCH = ["idx_mapping_ptr", "num_sampled_ptr", "num_rejected_ptr"]
_KERNEL_ROWS = 256  # vLLM pads every batch to at least this many rows
_MOST_ROWS = 256  # of a block of float64 sums, whose order is ours to choose


@triton.jit(do_not_specialize=["num_reqs"], do_not_specialize_on_alignment=_BATCH)
def logistic_sums_kernel(
    sums_ptr,
    features_ptr,
    predictions_ptr,
    idx_mapping_ptr,
    num_sampled_ptr,
    num_rejected_ptr,
    num_reqs,
    NUM_SLOTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    kind: tl.constexpr = sums_ptr.dtype.element_ty
    k = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, 8)
    total = tl.zeros([8, BLOCK_ROWS], kind)
    for start in range(0, num_reqs, BLOCK_ROWS):
        row = start + tl.arange(0, BLOCK_ROWS)
        slot, accepted, admitted = labels(idx_mapping_ptr, num_sampled_ptr, num_rejected_ptr, row, num_reqs)
        observed = (k <= accepted) & (k < admitted)
        # Slots without a label may hold NaN: they are not read.
        f = tl.load(features_ptr + slot * NUM_SLOTS + k, mask=observed, other=0.0)
        p = tl.load(predictions_ptr + slot * NUM_SLOTS + k, mask=observed, other=0.0)
        weight = tl.where(observed, p * (1.0 - p), 0.0)
        residual = tl.where(observed, tl.where(k < accepted, 1.0, 0.0) - p, 0.0)
        count = tl.where(observed, 1.0, 0.0)
        line = number[:, None]
        info = tl.where(
            line == 0, (weight * f * f)[None, :], tl.where(line == 1, (weight * f)[None, :], weight[None, :])
        )
        rest = tl.where(line == 3, (residual * f)[None, :], tl.where(line == 4, residual[None, :], count[None, :]))
        total += tl.where(line < 3, info, rest).to(kind)
    own = sums_ptr + number * NUM_SLOTS + k
    kept = tl.load(own, mask=number < 6, other=0.0)
    tl.store(own, kept + tl.sum(total, axis=1), mask=number < 6)


@triton.jit
def arrowhead_kernel(
    slope_ptr,
    intercepts_ptr,
    sums_ptr,
    l2,
    damping,
    NUM_SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    k = tl.arange(0, BLOCK)
    mask = k < NUM_SLOTS
    own = sums_ptr + k
    a_k = tl.load(own, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(own + NUM_SLOTS, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(own + 2 * NUM_SLOTS, mask=mask, other=0.0).to(tl.float32) + l2
    g0_k = tl.load(own + 3 * NUM_SLOTS, mask=mask, other=0.0).to(tl.float32)
    g1 = tl.load(own + 4 * NUM_SLOTS, mask=mask, other=0.0).to(tl.float32)
    n = tl.load(own + 5 * NUM_SLOTS, mask=mask, other=0.0).to(tl.float32)
    slope = tl.load(slope_ptr)
    intercepts = tl.load(intercepts_ptr + k, mask=mask, other=0.0)

    a = tl.sum(a_k, axis=0) + l2
    numerator = tl.sum(g0_k, axis=0) - tl.sum(tl.div_rn(b * g1, c), axis=0)
    step = tl.div_rn(numerator, a - tl.sum(tl.div_rn(b * b, c), axis=0))
    total = tl.sum(n, axis=0)
    # Without damping and without observations the share would be 0 / 0.
    step = step * tl.div_rn(total, tl.where(total + damping > 0.0, total + damping, 1.0))
    step = tl.where((step == step) & (slope + step >= 0.0), step, 0.0)

    share = tl.div_rn(n, tl.where(n + damping > 0.0, n + damping, 1.0))
    delta = tl.div_rn(g1 - b * step, c) * share
    delta = tl.where(delta == delta, delta, 0.0)

    tl.debug_barrier()  # every thread has read the slope before one of them writes it
    tl.store(slope_ptr, slope + step)
    tl.store(intercepts_ptr + k, intercepts + delta, mask=mask)
    zero = tl.zeros([BLOCK], sums_ptr.dtype.element_ty)
    for number in tl.static_range(6):
        tl.store(own + number * NUM_SLOTS, zero, mask=mask)


def add_logistic_sums(
    sums: Any, features: Any, predictions: Any, idx_mapping: Any, num_sampled: Any, num_rejected: Any
) -> None:
    """Add one step to a, b, c, g0, g1, n of every slot.

    Args:
        sums: float32 or float64 `[6, K]`.
        features, predictions: f and p at draft time, float32 `[R, K]`.
        idx_mapping, num_sampled, num_rejected: of the batch, `[B]`; see `DeviceEstimator.step`.
    """
    num_reqs = idx_mapping.shape[0]
    if num_reqs == 0:
        return
    max_num_reqs, num_slots = predictions.shape
    rows = max(_KERNEL_ROWS, power_of_two(max_num_reqs))
    if sums.element_size() == 8:
        rows = min(rows, _MOST_ROWS)
    logistic_sums_kernel[(num_slots,)](
        sums,
        features,
        predictions,
        idx_mapping,
        num_sampled,
        num_rejected,
        num_reqs,
        NUM_SLOTS=num_slots,
        BLOCK_ROWS=rows,
        num_warps=_warps(rows),
        enable_fp_fusion=False,
    )


def solve_arrowhead(slope: Any, intercepts: Any, sums: Any, l2: float, damping: float) -> None:
    """Move slope `[1]` and intercepts `[K]`, float32, by one damped Newton step, and clear the sums."""
    num_slots = intercepts.shape[0]
    arrowhead_kernel[(1,)](
        slope,
        intercepts,
        sums,
        l2,
        damping,
        NUM_SLOTS=num_slots,
        BLOCK=power_of_two(num_slots),
        num_warps=1,
        enable_fp_fusion=False,
    )


def _warps(rows: int) -> int:
    return min(max(rows // 128, 4), 16)


def _specialised(sums: str, rows: int, num_slots: int = 7) -> tuple[tuple[Any, ...], ...]:
    options = {"num_warps": _warps(rows), "enable_fp_fusion": False}
    batch = {"idx_mapping_ptr": "*i64", "num_sampled_ptr": "*i32", "num_rejected_ptr": "*i32", "num_reqs": "i32"}
    accumulate = {"sums_ptr": sums, "features_ptr": "*fp32", "predictions_ptr": "*fp32"} | batch
    refit = {"slope_ptr": "*fp32", "intercepts_ptr": "*fp32", "sums_ptr": sums, "l2": "fp32", "damping": "fp32"}
    return (
        (logistic_sums_kernel, accumulate, {"NUM_SLOTS": num_slots, "BLOCK_ROWS": rows}, options),
        (
            arrowhead_kernel,
            refit,
            {"NUM_SLOTS": num_slots, "BLOCK": power_of_two(num_slots)},
            options | {"num_warps": 1},
        ),
    )


SPECIALISATIONS = (
    *_specialised("*fp32", 256),
    *_specialised("*fp32", 1024),
    *_specialised("*fp32", 4096),
    *_specialised("*fp64", 256),
)
