"""What is kept of each request from block to block: its own level and precision, and how its last block went.

One thread per row of the batch; the K confidences of a row are added slot after slot, in float32, so that the order is
fixed. With E = Σ p and V = Σ p(1 − p) over observed slots, A accepted and M admitted:

    1/v' = m₁ + V + 1/τ²,  u' = m₀ + v'(A − E),  m₀ = ρu',  m₁ = 1/(ρ²v' + (1 − ρ²)τ²) − 1/τ²,  m₂ = 2A/M − 1

Bytes per step: B·(12 + 4K + 8D), 17 KB at 256 requests × 7 slots.

Source: `avsim.estimators.request_adaptive.track_request`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from avsim.kernels.ops.accumulate import labels

__all__ = ["SPECIALISATIONS", "track_kernel", "track_requests"]

_BATCH = ["idx_mapping_ptr", "num_sampled_ptr", "num_rejected_ptr"]
_ROWS = 32  # one warp; batches are small, and each warp is a program of its own


@triton.jit(do_not_specialize=["num_reqs"], do_not_specialize_on_alignment=_BATCH)
def track_kernel(
    memory_ptr,
    predictions_ptr,
    idx_mapping_ptr,
    num_sampled_ptr,
    num_rejected_ptr,
    num_reqs,
    prior,
    rho,
    rho_squared,
    prior_part,
    NUM_SLOTS: tl.constexpr,
    MEMORY_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    slot, accepted, admitted = labels(idx_mapping_ptr, num_sampled_ptr, num_rejected_ptr, row, num_reqs)
    expected = tl.zeros([BLOCK_ROWS], tl.float32)
    squares = tl.zeros([BLOCK_ROWS], tl.float32)
    for k in range(NUM_SLOTS):
        observed = (k <= accepted) & (k < admitted)
        p = tl.load(predictions_ptr + slot * NUM_SLOTS + k, mask=observed, other=0.0)
        expected += p
        squares += p * p

    known = slot >= 0
    own = memory_ptr + slot * MEMORY_SIZE
    information = tl.maximum(expected - squares, 0.0, propagate_nan=tl.PropagateNan.ALL)
    precision = tl.load(own + 1, mask=known, other=0.0) + information + prior
    taken = tl.minimum(accepted, NUM_SLOTS)
    level = tl.load(own, mask=known, other=0.0) + tl.div_rn(taken.to(tl.float32) - expected, precision)
    kept = tl.div_rn(1.0, tl.div_rn(rho_squared, precision) + prior_part)
    tl.store(own, rho * level, mask=known)
    tl.store(own + 1, tl.maximum(kept - prior, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=known)
    if MEMORY_SIZE > 2:
        # A step that verified nothing of a request leaves its last block the last.
        share = 2.0 * taken.to(tl.float64) / tl.maximum(admitted, 1).to(tl.float64) - 1.0
        tl.store(own + 2, share.to(tl.float32), mask=known & (admitted > 0))


def track_requests(
    memory: Any,
    predictions: Any,
    idx_mapping: Any,
    num_sampled: Any,
    num_rejected: Any,
    request_sd: float,
    half_life: float,
) -> None:
    """Take one block more of every request in a batch; one that verified nothing drifts towards the prior.

    Args:
        memory: float32 `[R, D]`: level, precision added to the prior's, and, with D = 3, 2A/M − 1 of the last block.
        predictions: p at draft time, with the level in them, float32 `[R, K]`.
        idx_mapping, num_sampled, num_rejected: of the batch, `[B]`; see `DeviceEstimator.step`.
        request_sd, half_life: τ, and the blocks in which a level goes half of its way to 0.
    """
    num_reqs = idx_mapping.shape[0]
    if num_reqs == 0:
        return
    prior, rho = np.float32(request_sd**-2), np.float32(0.5 ** (1 / half_life))
    # A float32 survives being handed over as a Python float.
    scalars = [float(value) for value in (prior, rho, rho**2, (1 - rho**2) / prior)]
    track_kernel[(triton.cdiv(num_reqs, _ROWS),)](
        memory,
        predictions,
        idx_mapping,
        num_sampled,
        num_rejected,
        num_reqs,
        *scalars,
        NUM_SLOTS=predictions.shape[1],
        MEMORY_SIZE=memory.shape[1],
        BLOCK_ROWS=_ROWS,
        num_warps=1,
        enable_fp_fusion=False,
    )


_SIGNATURE = (
    {"memory_ptr": "*fp32", "predictions_ptr": "*fp32"}
    | dict(zip(_BATCH, ("*i64", "*i32", "*i32"), strict=True))
    | {"num_reqs": "i32"}
    | dict.fromkeys(("prior", "rho", "rho_squared", "prior_part"), "fp32")
)
SPECIALISATIONS = tuple(
    (
        track_kernel,
        _SIGNATURE,
        {"NUM_SLOTS": 7, "MEMORY_SIZE": size, "BLOCK_ROWS": _ROWS},
        {"num_warps": 1, "enable_fp_fusion": False},
    )
    for size in (2, 3)
)
