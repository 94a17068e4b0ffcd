"""The refit of the estimators with a Gaussian posterior over (w, μ, d): one program, in float64.

From the tables T_k of `avsim.kernels.ops.accumulate` it builds the gradient g and the information I of the hierarchy
(F shared weights, a level, K slot offsets: D = F + 1 + K), lets the level drift and old data lose weight, and takes one
Laplace step, as `avsim.estimators.newton` has it:

    Λ ← γΛ + (1 − γ)Λ₀,  g ← g + (1 − γ)Λ₀(m₀ − m) − I(m − c),  x = (Λ + I)⁻¹g,  s = min(1, reach / max|x|)
    m ← m + s x,  Λ ← Λ + s I

c are the coefficients that predicted. The system is solved by Gauss–Jordan elimination on a tile of registers, without
pivoting: Λ + I is symmetric positive definite up to the float32 rounding of its cross terms. A row or a column of the
tile is a sum under a mask, since registers cannot be indexed. Sums that are not finite leave m and Λ as drift and
forgetting made them. The float32 law is written last: w, and b_k = float32(μ) + float32(d_k).

Bytes: 8·(2K(F + 1)(F + 2) + 2D² + 6D) and 4·D for the law, 8 KB at K = 7, F = 5. What takes the time are the D steps of
the elimination, each of which waits for the one before; how long has not been measured on a GPU.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from avsim.kernels.ops.accumulate import power_of_two

__all__ = ["LARGEST", "SPECIALISATIONS", "laplace_kernel", "laplace_step"]

LARGEST = 64
"""The largest D whose tile stays in registers."""


@triton.jit
def laplace_kernel(
    sums_ptr,
    mean_ptr,
    precision_ptr,
    coefficients_ptr,
    prior_mean_ptr,
    prior_ptr,
    constants_ptr,
    weights_ptr,
    intercepts_ptr,
    memory_weights_ptr,
    REACH: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
    NUM_SHARED: tl.constexpr,
    NUM_FEATURES: tl.constexpr,
    DRIFTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_SUMS: tl.constexpr,
):
    size: tl.constexpr = NUM_SHARED + 1 + NUM_SLOTS
    table: tl.constexpr = (NUM_SHARED + 2) * (NUM_SHARED + 1)
    i = tl.arange(0, BLOCK)
    row, column = i[:, None], i[None, :]
    known = i < size
    inside = (row < size) & (column < size)
    diagonal = row == column

    # Entry (i, j) of I is a sum over slots of one entry of T_k; slot offsets take part in their own slot only.
    at_row = tl.where(row < NUM_SHARED, row, tl.where(column < NUM_SHARED, column, NUM_SHARED))
    at_column = tl.where((row < NUM_SHARED) & (column < NUM_SHARED), column, NUM_SHARED)
    entry = at_row * (NUM_SHARED + 1) + at_column
    of_gradient = (NUM_SHARED + 1) * (NUM_SHARED + 1) + tl.minimum(i, NUM_SHARED)
    information = tl.zeros([BLOCK, BLOCK], tl.float64)
    gradient = tl.zeros([BLOCK], tl.float64)
    for k in range(NUM_SLOTS):
        own = (i <= NUM_SHARED) | (i == NUM_SHARED + 1 + k)
        own_row = (row <= NUM_SHARED) | (row == NUM_SHARED + 1 + k)
        own_column = (column <= NUM_SHARED) | (column == NUM_SHARED + 1 + k)
        information += tl.load(sums_ptr + k * table + entry, mask=own_row & own_column, other=0.0)
        gradient += tl.load(sums_ptr + k * table + of_gradient, mask=own, other=0.0)

    keep = tl.load(constants_ptr)
    mean = tl.load(mean_ptr + i, mask=known, other=0.0)
    prior_mean = tl.load(prior_mean_ptr + i, mask=known, other=0.0)
    prior = tl.load(prior_ptr + i, mask=known, other=0.0)
    precision = tl.load(precision_ptr + row * size + column, mask=inside, other=0.0)
    if DRIFTS:
        level_keep, noise = tl.load(constants_ptr + 1), tl.load(constants_ptr + 2)
        level_row = precision_ptr + NUM_SHARED * size
        by_row = tl.load(level_row + row, mask=row < size, other=0.0)
        by_column = tl.load(level_row + column, mask=column < size, other=0.0)
        corner = tl.load(level_row + NUM_SHARED)
        spread = level_keep * level_keep + noise * corner
        precision -= by_row * by_column * (noise / spread)
        crossed = tl.where(row == NUM_SHARED, by_column, by_row) * (level_keep / spread)
        precision = tl.where((row == NUM_SHARED) | (column == NUM_SHARED), crossed, precision)
        precision = tl.where((row == NUM_SHARED) & (column == NUM_SHARED), corner / spread, precision)
        mean = tl.where(i == NUM_SHARED, prior_mean + level_keep * (mean - prior_mean), mean)
        drifted = mean - tl.load(coefficients_ptr + i, mask=known, other=0.0)
        moved = tl.sum(information * drifted[None, :], axis=1)
    prior_tile = tl.where(diagonal, prior[:, None], 0.0)
    precision = keep * precision + (1.0 - keep) * prior_tile
    if DRIFTS:
        gradient += (1.0 - keep) * prior * (prior_mean - mean) - moved
    else:
        gradient += (1.0 - keep) * (prior * (prior_mean - mean))

    # Sums that are not finite count as none: the system is solved all the same, and moves nothing.
    finite: tl.constexpr = float("inf")
    bad = tl.sum(tl.where(tl.abs(gradient) < finite, 0, 1), axis=0)
    bad += tl.sum(tl.sum(tl.where(tl.abs(information) < finite, 0, 1), axis=1), axis=0)
    gradient = tl.where(bad == 0, gradient, 0.0)
    information = tl.where(bad == 0, information, 0.0)

    # Rows that pad the tile are those of the identity: they solve to 0 and are never a pivot.
    left = tl.where(inside, precision + information, tl.where(diagonal, 1.0, 0.0))
    right = gradient
    for place in range(size):
        pivot_row = tl.sum(tl.where(row == place, left, 0.0), axis=0)
        pivot_column = tl.sum(tl.where(column == place, left, 0.0), axis=1)
        pivot = tl.sum(tl.where(i == place, pivot_column, 0.0), axis=0)
        value = tl.sum(tl.where(i == place, right, 0.0), axis=0)
        factor = tl.where(i == place, 0.0, pivot_column / pivot)
        left -= factor[:, None] * pivot_row[None, :]
        right -= factor * value
    step = right / tl.sum(tl.where(diagonal, left, 0.0), axis=1)

    longest = tl.max(tl.abs(step), axis=0)
    part = tl.where(longest <= REACH, 1.0, REACH / longest)
    mean += part * step
    precision += part * information

    tl.debug_barrier()  # all that is overwritten has been read by every thread
    tl.store(mean_ptr + i, mean, mask=known)
    tl.store(coefficients_ptr + i, mean, mask=known)
    tl.store(precision_ptr + row * size + column, precision, mask=inside)
    law = mean.to(tl.float32)
    level = tl.sum(tl.where(i == NUM_SHARED, law, 0.0), axis=0)
    tl.store(weights_ptr + i, law, mask=i < NUM_FEATURES)
    tl.store(intercepts_ptr + (i - NUM_SHARED - 1), level + law, mask=(i > NUM_SHARED) & known)
    if NUM_SHARED > NUM_FEATURES:
        # The first and the third number kept of a request carry a weight of their own.
        history = (i >= NUM_FEATURES) & (i < NUM_SHARED)
        tl.store(memory_weights_ptr + (i - NUM_FEATURES) * 2, law, mask=history)
    cell = tl.arange(0, BLOCK_SUMS)
    tl.store(sums_ptr + cell, tl.zeros([BLOCK_SUMS], tl.float64), mask=cell < NUM_SLOTS * table)


def laplace_step(
    sums: Any,
    mean: Any,
    precision: Any,
    coefficients: Any,
    prior_mean: Any,
    prior: Any,
    constants: Any,
    weights: Any,
    intercepts: Any,
    memory_weights: Any | None,
    *,
    drifts: bool,
    reach: float = 1.0,
) -> None:
    """Refit in place, write the law, and clear the sums.

    Args:
        sums: T, float64 `[K, F + 2, F + 1]`.
        mean, precision, coefficients: m `[D]`, Λ `[D, D]` and c `[D]`, float64.
        prior_mean, prior: m₀ and the diagonal of Λ₀, float64 `[D]`.
        constants: γ, what the level keeps of its distance to its prior mean, and the variance that it gains as it
            drifts, float64 `[3]`; the last two are read with `drifts` only.
        weights, intercepts: the law's, float32 `[F']` and `[K]`.
        memory_weights: the law's, float32 `[3]`, where F − F' = 2 weights are those of a request's history.
        reach: the furthest that a component may move.
    """
    num_slots, _, columns = sums.shape
    size = mean.shape[0]
    block = power_of_two(size)
    laplace_kernel[(1,)](
        sums,
        mean,
        precision,
        coefficients,
        prior_mean,
        prior,
        constants,
        weights,
        intercepts,
        weights if memory_weights is None else memory_weights,
        REACH=reach,
        NUM_SLOTS=num_slots,
        NUM_SHARED=columns - 1,
        NUM_FEATURES=weights.shape[0],
        DRIFTS=drifts,
        BLOCK=block,
        BLOCK_SUMS=power_of_two(sums.numel()),
        num_warps=_warps(block),
        enable_fp_fusion=False,
    )


def _warps(block: int) -> int:
    return 16 if block > 32 else 4


def _specialised(num_features: int, num_shared: int, num_slots: int) -> tuple[Any, ...]:
    block = power_of_two(num_shared + 1 + num_slots)
    doubles = ("sums", "mean", "precision", "coefficients", "prior_mean", "prior", "constants")
    singles = ("weights", "intercepts", "memory_weights")
    signature = {f"{name}_ptr": "*fp64" for name in doubles} | {f"{name}_ptr": "*fp32" for name in singles}
    constants = {
        "REACH": 1.0,
        "NUM_SLOTS": num_slots,
        "NUM_SHARED": num_shared,
        "NUM_FEATURES": num_features,
        "DRIFTS": num_shared == 1,
        "BLOCK": block,
        "BLOCK_SUMS": power_of_two(num_slots * (num_shared + 2) * (num_shared + 1)),
    }
    return laplace_kernel, signature, constants, {"num_warps": _warps(block), "enable_fp_fusion": False}


SPECIALISATIONS = tuple(
    _specialised(features, shared, slots)
    for features, shared, slots in ((1, 1, 3), (1, 1, 7), (3, 3, 7), (3, 5, 7), (3, 5, 16), (3, 5, 32))
)
