"""Verdicts counted per bin of log-odds, and the Beta posteriors made of the counts.

    count           per slot, over B rows: 4·B bytes each of slots, verdicts (twice) and log-odds; 32 bytes per bin.
    beta_posterior  per slot: 64 bytes per bin in and out, 4 per cell of the table.

One program owns one slot and walks the batch in blocks, comparing each row's bin with all bins: integer sums, so
nothing depends on an order, and no atomics. B = 1024 rows × 64 bins are 65,536 comparisons per slot and step.
Products are not fused with sums: they are rounded before they are added, as NumPy's are.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["SPECIALISATIONS", "beta_posterior", "count"]


@triton.jit(
    do_not_specialize=["row_stride", "num_rows"],
    do_not_specialize_on_alignment=["idx_mapping", "num_sampled", "num_rejected", "features"],
)
def _count_kernel(
    accepted_sums,
    other_sums,
    idx_mapping,
    num_sampled,
    num_rejected,
    features,
    row_stride,
    bin_of_cell,
    num_rows,
    LOWEST: tl.constexpr,
    PER_UNIT: tl.constexpr,
    CELLS: tl.constexpr,
    BINS: tl.constexpr,
    NEAREST: tl.constexpr,
    COUNT_OBSERVED: tl.constexpr,
    PADDED_BINS: tl.constexpr,
    ROWS: tl.constexpr,
):
    k = tl.program_id(0)
    each = tl.arange(0, PADDED_BINS)
    accepted = tl.zeros((PADDED_BINS,), tl.int32)
    rejected = tl.zeros((PADDED_BINS,), tl.int32)
    for start in range(0, num_rows, ROWS):
        row = start + tl.arange(0, ROWS)
        index = tl.load(idx_mapping + row, mask=row < num_rows, other=-1).to(tl.int64)
        part = index >= 0
        num_accepted = tl.maximum(tl.load(num_sampled + row, mask=part, other=0) - 1, 0)
        num_admitted = num_accepted + tl.load(num_rejected + row, mask=part, other=0)
        observed = part & (k <= num_accepted) & (k < num_admitted)
        f = tl.load(features + index * row_stride + k, mask=observed, other=0.0)
        place = (f - LOWEST) * PER_UNIT if NEAREST else tl.floor(f * PER_UNIT) - LOWEST * PER_UNIT
        place = tl.where(place > 0, place, 0.0)  # NaN too
        place = tl.where(place < CELLS - 1, place, CELLS - 1.0)
        cell = place.to(tl.int32)
        if NEAREST:
            rest = place - cell.to(tl.float32)
            cell += ((rest > 0.5) | ((rest == 0.5) & (cell % 2 == 1))).to(tl.int32)
            its_bin = cell
        else:
            its_bin = tl.load(bin_of_cell + cell)
        label = k < num_accepted
        here = its_bin[:, None] == each[None, :]
        accepted += tl.sum((here & (observed & label)[:, None]).to(tl.int32), axis=0)
        rejected += tl.sum((here & (observed & ~label)[:, None]).to(tl.int32), axis=0)
    if COUNT_OBSERVED:
        rejected += accepted
    own = each < BINS
    at = k * BINS + each
    tl.store(accepted_sums + at, tl.load(accepted_sums + at, mask=own) + accepted.to(tl.float64), mask=own)
    tl.store(other_sums + at, tl.load(other_sums + at, mask=own) + rejected.to(tl.float64), mask=own)


@triton.jit
def _beta_kernel(
    alpha,
    beta,
    alpha_sums,
    beta_sums,
    alpha_prior,
    beta_prior,
    discount,
    bin_of_cell,
    table,
    LEARN: tl.constexpr,
    CELLS: tl.constexpr,
    BINS: tl.constexpr,
    PADDED_CELLS: tl.constexpr,
    PADDED_BINS: tl.constexpr,
):
    k = tl.program_id(0)
    each = tl.arange(0, PADDED_BINS)
    own = each < BINS
    at = k * BINS + each
    a = tl.load(alpha + at, mask=own, other=1.0)
    b = tl.load(beta + at, mask=own, other=1.0)
    if LEARN:
        keep = tl.load(discount)
        a = keep * a + (1.0 - keep) * tl.load(alpha_prior + each, mask=own, other=1.0)
        b = keep * b + (1.0 - keep) * tl.load(beta_prior + each, mask=own, other=1.0)
        a += tl.load(alpha_sums + at, mask=own, other=0.0)
        b += tl.load(beta_sums + at, mask=own, other=0.0)
        tl.store(alpha + at, a, mask=own)
        tl.store(beta + at, b, mask=own)
        tl.store(alpha_sums + at, tl.zeros((PADDED_BINS,), tl.float64), mask=own)
        tl.store(beta_sums + at, tl.zeros((PADDED_BINS,), tl.float64), mask=own)
    mean = (a / (a + b)).to(tl.float32)
    cell = tl.arange(0, PADDED_CELLS)
    its_bin = tl.load(bin_of_cell + cell, mask=cell < CELLS, other=0)
    # One summand is not zero: a bin's mean is handed to its cells unrounded.
    spread = tl.sum(tl.where(its_bin[:, None] == each[None, :], mean[None, :], 0.0), axis=1)
    tl.store(table + k * CELLS + cell, spread, mask=cell < CELLS)


def count(
    sums: Any,
    idx_mapping: Any,
    num_sampled: Any,
    num_rejected: Any,
    features: Any,
    bin_of_cell: Any,
    *,
    lowest: float,
    per_unit: float,
    nearest: bool,
    count_observed: bool,
) -> None:
    """Add one step's labelled slots to the counts of their bins.

    With A = max(num_sampled − 1, 0) and M = A + num_rejected, slot k is observed where k ≤ A and k < M, and accepted
    where k < A. Its cell is (f − lowest)·per_unit to the nearest integer, halves to even (`nearest`; cells are bins
    then), or ⌊f·per_unit⌋ − lowest·per_unit; in float32, clamped to the cells; NaN counts as the lowest.

    Args:
        sums: accepted slots, and observed (`count_observed`) or rejected ones, float64 `[2, K, bins]`.
        idx_mapping, num_sampled, num_rejected: as in `DeviceEstimator.step`; rows of −1 are left out.
        features: log-odds by persistent slot, float32 `[R, K]`; the last stride is 1.
        bin_of_cell: int32 `[cells]`, rising.
    """
    if not len(idx_mapping):
        return
    _, num_slots, bins = sums.shape
    _count_kernel[(num_slots,)](
        sums[0],
        sums[1],
        idx_mapping,
        num_sampled,
        num_rejected,
        features,
        features.stride(0),
        bin_of_cell,
        len(idx_mapping),
        LOWEST=lowest,
        PER_UNIT=per_unit,
        CELLS=len(bin_of_cell),
        BINS=bins,
        NEAREST=nearest,
        COUNT_OBSERVED=count_observed,
        PADDED_BINS=triton.next_power_of_2(bins),
        ROWS=min(128, triton.next_power_of_2(len(features))),
        enable_fp_fusion=False,
    )


def beta_posterior(
    posterior: Any, sums: Any, prior: Any, discount: Any, bin_of_cell: Any, table: Any, *, learn: bool
) -> None:
    """Write the means α / (α + β) of each cell's bin into a table; before that, with `learn`, fold the counts in.

    α = γα + (1 − γ)α₀ + Σ accepted, β likewise with the rejected, in float64 and in NumPy's order; counts are cleared.

    Args:
        posterior: α and β, float64 `[2, K, bins]`.
        sums: accepted and rejected slots, float64 `[2, K, bins]`.
        prior: α₀ and β₀, float64 `[2, bins]`.
        discount: γ, float64 `[1]`.
        bin_of_cell: int32 `[cells]`.
        table: float32 `[K, cells]`.
    """
    num_slots, cells = table.shape
    bins = posterior.shape[2]
    _beta_kernel[(num_slots,)](
        posterior[0],
        posterior[1],
        sums[0],
        sums[1],
        prior[0],
        prior[1],
        discount,
        bin_of_cell,
        table,
        LEARN=learn,
        CELLS=cells,
        BINS=bins,
        PADDED_CELLS=triton.next_power_of_2(cells),
        PADDED_BINS=triton.next_power_of_2(bins),
        num_warps=1,
        enable_fp_fusion=False,
    )


_COUNT = {
    "accepted_sums": "*fp64",
    "other_sums": "*fp64",
    "idx_mapping": "*i64",
    "num_sampled": "*i32",
    "num_rejected": "*i32",
    "features": "*fp32",
    "row_stride": "i32",
    "bin_of_cell": "*i32",
    "num_rows": "i32",
}
_BETA = dict.fromkeys(
    ("alpha", "beta", "alpha_sums", "beta_sums", "alpha_prior", "beta_prior", "discount"), "*fp64"
) | {"bin_of_cell": "*i32", "table": "*fp32"}
_ISOTONIC_BINS = {"LOWEST": -5.0, "PER_UNIT": 3.0, "CELLS": 64, "BINS": 64, "PADDED_BINS": 64}
_BETA_BINS = {"LOWEST": -3.5, "PER_UNIT": 2.0, "CELLS": 26, "BINS": 15, "PADDED_BINS": 16}
_PLAIN = {"enable_fp_fusion": False}
SPECIALISATIONS = (
    (_count_kernel, _COUNT, _ISOTONIC_BINS | {"NEAREST": True, "COUNT_OBSERVED": True, "ROWS": 128}, _PLAIN),
    (_count_kernel, _COUNT, _BETA_BINS | {"NEAREST": False, "COUNT_OBSERVED": False, "ROWS": 128}, _PLAIN),
    *(
        (
            _beta_kernel,
            _BETA,
            {"LEARN": learn, "CELLS": 26, "BINS": 15, "PADDED_CELLS": 32, "PADDED_BINS": 16},
            _PLAIN | {"num_warps": 1},
        )
        for learn in (False, True)
    ),
)
