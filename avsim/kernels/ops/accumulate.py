"""Sums over one step's labelled slots, as the estimators with a Gaussian posterior keep them.

With x the F features of a slot, W = p(1 − p) and r = y − p, slot k owns a table of F + 2 lines and F + 1 columns,

    T_k += Σ [W x; W; r] [x, 1]ᵀ

which holds all that a refit needs: ΣWxxᵀ, ΣWx, ΣW, Σr x and Σr. One program per slot adds up the batch in blocks of
rows, always in the same order, in float64; nobody else touches its table, so there is nothing to synchronise.

Bytes per step: B·(12 + K·(4 + 4F)) read and 16·K·(F + 1)(F + 2) for the tables: 51 KB at 256 requests × 7 slots with
five features. Latency decides, not bandwidth.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["SPECIALISATIONS", "add_products", "gaussian_sums_kernel", "labels", "power_of_two"]

_BATCH = ["idx_mapping_ptr", "num_sampled_ptr", "num_rejected_ptr"]
_MOST_ROWS = 128  # of a block; a larger batch takes several


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()


@triton.jit
def labels(idx_mapping_ptr, num_sampled_ptr, num_rejected_ptr, row, num_reqs):
    """Return slot (−1: pads the batch), A and M of rows; M is 0 where nothing was sampled."""
    inside = row < num_reqs
    slot = tl.load(idx_mapping_ptr + row, mask=inside, other=-1).to(tl.int64)
    sampled = tl.load(num_sampled_ptr + row, mask=inside, other=0).to(tl.int64)
    rejected = tl.load(num_rejected_ptr + row, mask=inside, other=0).to(tl.int64)
    accepted = tl.maximum(sampled - 1, 0)
    admitted = tl.where((sampled > 0) & (slot >= 0), accepted + rejected, 0)
    return slot, accepted, admitted


@triton.jit(do_not_specialize=["num_reqs"], do_not_specialize_on_alignment=_BATCH)
def gaussian_sums_kernel(
    sums_ptr,
    features_ptr,
    predictions_ptr,
    memory_ptr,
    idx_mapping_ptr,
    num_sampled_ptr,
    num_rejected_ptr,
    num_reqs,
    MAX_NUM_REQS: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
    NUM_FEATURES: tl.constexpr,
    NUM_SHARED: tl.constexpr,
    MEMORY_SIZE: tl.constexpr,
    ROUNDED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    k = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    total = tl.zeros([BLOCK_ROWS, BLOCK, BLOCK], tl.float64)
    for start in range(0, num_reqs, BLOCK_ROWS):
        row = start + tl.arange(0, BLOCK_ROWS)
        slot, accepted, admitted = labels(idx_mapping_ptr, num_sampled_ptr, num_rejected_ptr, row, num_reqs)
        observed = (k <= accepted) & (k < admitted)
        # Slots without a label may hold NaN: they are not read.
        cell = slot * NUM_SLOTS + k
        p = tl.load(predictions_ptr + cell, mask=observed, other=0.0)
        weight = tl.where(observed, p * (1.0 - p), 0.0)
        residual = tl.where(observed, tl.where(k < accepted, 1.0, 0.0) - p, 0.0)

        seen = observed[:, None]
        place = column * (MAX_NUM_REQS * NUM_SLOTS) + cell[:, None]
        x = tl.load(features_ptr + place, mask=seen & (column < NUM_FEATURES), other=0.0)
        if NUM_FEATURES > 1:
            floored = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
            root = tl.sqrt_rn(tl.minimum(floored, 40.0, propagate_nan=tl.PropagateNan.ALL))
            x = tl.where(column == 0, x, tl.where(column == 2, root * 0.5, root) - 1.0)
        if MEMORY_SIZE > 0:
            # The first and the third number kept of a request; the second is the precision of the first.
            kept = memory_ptr + slot[:, None] * MEMORY_SIZE + (column - NUM_FEATURES) * 2
            history = (column >= NUM_FEATURES) & (column < NUM_SHARED)
            x = tl.where(history, tl.load(kept, mask=seen & history, other=0.0), x)
        x = tl.where(column == NUM_SHARED, 1.0, x)

        left = tl.where(column > NUM_SHARED, residual[:, None], weight[:, None] * x)
        if ROUNDED:
            total += (left[:, :, None] * x[:, None, :]).to(tl.float64)
        else:
            total += left[:, :, None].to(tl.float64) * x[:, None, :].to(tl.float64)

    line = tl.arange(0, BLOCK)[:, None]
    target = sums_ptr + (k * (NUM_SHARED + 2) + line) * (NUM_SHARED + 1) + column
    mask = (line < NUM_SHARED + 2) & (column < NUM_SHARED + 1)
    tl.store(target, tl.load(target, mask=mask, other=0.0) + tl.sum(total, axis=0), mask=mask)


def add_products(
    sums: Any,
    features: Any,
    predictions: Any,
    history: Any | None,
    idx_mapping: Any,
    num_sampled: Any,
    num_rejected: Any,
    *,
    rounded: bool,
) -> None:
    """Add one step to the tables of all slots.

    Args:
        sums: T, float64 `[K, F + 2, F + 1]`.
        features: `[F', R, K]` float32; the first enters as it is, `entropy` and `margin` as `LinearLaw` has them.
        predictions: p at draft time, `[R, K]` float32.
        history: memory `[R, 3]` whose first and third number are two more features; None without.
        idx_mapping, num_sampled, num_rejected: of the batch, `[B]`; see `DeviceEstimator.step`.
        rounded: whether products are rounded to float32 before they are added, as `bayes-logistic` does.
    """
    num_reqs = idx_mapping.shape[0]
    if num_reqs == 0:
        return
    num_features, max_num_reqs, num_slots = features.shape
    num_shared = num_features + (0 if history is None else 2)
    gaussian_sums_kernel[(num_slots,)](
        sums,
        features,
        predictions,
        predictions if history is None else history,
        idx_mapping,
        num_sampled,
        num_rejected,
        num_reqs,
        MAX_NUM_REQS=max_num_reqs,
        NUM_SLOTS=num_slots,
        NUM_FEATURES=num_features,
        NUM_SHARED=num_shared,
        MEMORY_SIZE=0 if history is None else history.shape[1],
        ROUNDED=rounded,
        BLOCK_ROWS=min(_MOST_ROWS, max(32, power_of_two(max_num_reqs))),
        BLOCK=power_of_two(num_shared + 2),
        num_warps=_warps(num_shared),
        enable_fp_fusion=False,  # NumPy rounds each product before it adds it
    )


def _warps(num_shared: int) -> int:
    return 4 if num_shared == 1 else 8


_SIGNATURE = {
    "sums_ptr": "*fp64",
    "features_ptr": "*fp32",
    "predictions_ptr": "*fp32",
    "memory_ptr": "*fp32",
    "idx_mapping_ptr": "*i64",
    "num_sampled_ptr": "*i32",
    "num_rejected_ptr": "*i32",
    "num_reqs": "i32",
}


def _specialised(num_features: int, memory_size: int, num_slots: int = 7, max_num_reqs: int = 1024) -> tuple[Any, ...]:
    num_shared = num_features + (2 if memory_size else 0)
    constants = {
        "MAX_NUM_REQS": max_num_reqs,
        "NUM_SLOTS": num_slots,
        "NUM_FEATURES": num_features,
        "NUM_SHARED": num_shared,
        "MEMORY_SIZE": memory_size,
        "ROUNDED": num_shared == 1,
        "BLOCK_ROWS": _MOST_ROWS,
        "BLOCK": power_of_two(num_shared + 2),
    }
    return gaussian_sums_kernel, _SIGNATURE, constants, {"num_warps": _warps(num_shared), "enable_fp_fusion": False}


SPECIALISATIONS = (_specialised(1, 0), _specialised(3, 0), _specialised(3, 3))
