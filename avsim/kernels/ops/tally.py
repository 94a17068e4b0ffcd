"""Counting how confidences come true: sums and a histogram of p by label, for every draft slot of a step.

One program per draft slot reads the verdicts of B requests (12 B each: slot, sampled, rejected) and the predictions up
to its own slot, so a step moves B·(12 K + 4 K(K + 1)/2) bytes in and 5·8·K out, and adds one to a cell of 4 bytes per
labelled slot: 0.1 MB at 256 requests and K = 7. Cells are whole numbers, whose atomic sums do not depend on an order;
the float sums of a slot belong to its one program.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["CELLS", "SPECIALISATIONS", "SUMS", "tally"]

CELLS = 1 << 12
"""Cells of the histogram over p in [0, 1], those of `avsim.metrics.calibration`."""
SUMS = ("verified", "expected", "observed", "accepted", "confidence")
"""Columns of the sums: slots verified, Σ survival over them, slots labelled, labels 1, Σ p over labelled slots."""
_BLOCK = 256


@triton.jit(
    do_not_specialize=["pred_stride", "num_reqs"],
    do_not_specialize_on_alignment=["idx_ptr", "sampled_ptr", "rejected_ptr"],
)
def _tally_kernel(
    cells_ptr,
    sums_ptr,
    pred_ptr,
    pred_stride,
    idx_ptr,
    sampled_ptr,
    rejected_ptr,
    num_reqs,
    NUM_CELLS: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    k = tl.program_id(0)
    zero = tl.zeros([BLOCK], dtype=tl.float64)
    one = zero + 1.0
    num_verified, expected, num_observed, num_accepted, confidence = zero, zero, zero, zero, zero
    for start in range(0, num_reqs, BLOCK):
        row = start + tl.arange(0, BLOCK)
        here = row < num_reqs
        slot = tl.load(idx_ptr + row, mask=here, other=-1).to(tl.int64)
        here = here & (slot >= 0)
        accepted = tl.load(sampled_ptr + row, mask=here, other=0).to(tl.int32) - 1
        accepted = tl.maximum(accepted, 0)
        admitted = accepted + tl.load(rejected_ptr + row, mask=here, other=0).to(tl.int32)
        verified = here & (k < admitted)
        observed = verified & (k <= accepted)
        label = observed & (k < accepted)
        p = tl.zeros([BLOCK], dtype=tl.float32)
        survival = p + 1.0
        for earlier in range(0, k + 1):
            p = tl.load(pred_ptr + slot * pred_stride + earlier, mask=verified, other=0.0)
            survival = survival * p
        known = observed & (p == p)
        cell = tl.minimum(tl.maximum((tl.where(known, p, 0.0) * SCALE).to(tl.int32), 0), NUM_CELLS - 1)
        line = k * 2 + label.to(tl.int32)
        tl.atomic_add(cells_ptr + line * NUM_CELLS + cell, 1, mask=known)
        num_verified += tl.where(verified, one, zero)
        expected += tl.where(verified & (survival == survival), survival.to(tl.float64), zero)
        num_observed += tl.where(observed, one, zero)
        num_accepted += tl.where(label, one, zero)
        confidence += tl.where(known, p.to(tl.float64), zero)
    out = sums_ptr + k * 5
    tl.store(out + 0, tl.load(out + 0) + tl.sum(num_verified, axis=0))
    tl.store(out + 1, tl.load(out + 1) + tl.sum(expected, axis=0))
    tl.store(out + 2, tl.load(out + 2) + tl.sum(num_observed, axis=0))
    tl.store(out + 3, tl.load(out + 3) + tl.sum(num_accepted, axis=0))
    tl.store(out + 4, tl.load(out + 4) + tl.sum(confidence, axis=0))


def tally(
    cells: torch.Tensor,
    sums: torch.Tensor,
    predictions: torch.Tensor,
    idx_mapping: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
) -> None:
    """Add one step's verdicts to the counts; slot k is verified where k < M and labelled where also k ≤ A (DESIGN §2).

    A prediction that is NaN counts as verified and labelled, but in neither sum of probabilities and in no cell.

    Args:
        cells: int32 `[K, 2, CELLS]`, labelled slots by label (0, 1) and ⌊p·(CELLS − 0.001)⌋; wraps around at 2³².
        sums: float64 `[K, len(SUMS)]`.
        predictions: p as predicted at draft time by persistent slot, float32 `[max_num_reqs, K]`.
        idx_mapping: persistent slot of each request in the batch, `[B]`; −1 is left out.
        num_sampled: tokens it emitted, `[B]`.
        num_rejected: admitted drafts that were rejected, `[B]`.
    """
    if not len(idx_mapping):
        return
    _tally_kernel[(cells.shape[0],)](
        cells,
        sums,
        predictions,
        predictions.stride(0),
        idx_mapping,
        num_sampled,
        num_rejected,
        len(idx_mapping),
        **_constants(),
        num_warps=4,
    )


def _constants() -> dict[str, Any]:
    return {"NUM_CELLS": CELLS, "SCALE": CELLS - 1e-3, "BLOCK": _BLOCK}


_SIGNATURE = {
    "cells_ptr": "*i32",
    "sums_ptr": "*fp64",
    "pred_ptr": "*fp32",
    "pred_stride": "i32",
    "idx_ptr": "*i64",
    "sampled_ptr": "*i32",
    "rejected_ptr": "*i32",
    "num_reqs": "i32",
}

SPECIALISATIONS = ((_tally_kernel, _SIGNATURE, _constants(), {"num_warps": 4}),)
