"""Isotonic regression on the device: per slot, the rising curve nearest to the acceptance counted in 64 bins.

    y_b = max_{i ≤ b} min_{j ≥ b} mean(i … j),   mean(i … j) = Σ_{i..j} (s + m t) / Σ_{i..j} (n + m)

The min–max form of the weighted least-squares fit (Barlow et al. 1972, theorem 1.4) needs no loop that depends on
data, as pooling adjacent violators does. A tile holds the means of all runs i … j as running sums from each i, so
that no difference of prefix sums cancels; the minimum over j is taken by doubling. One program per slot; it reads
2·64 counts and 64 means (1.5 KB) and writes 64 floats, every refit only. What it costs is six gathers along the rows of
a 64 × 64 tile.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["SPECIALISATIONS", "fit_all_slots", "fit_each_slot"]


@triton.jit
def _fit_kernel(
    accepted,
    observed,
    towards,
    weight,
    fitted,
    curve,
    K: tl.constexpr,
    POOL: tl.constexpr,
    SHARED: tl.constexpr,
    BINS: tl.constexpr,
    DOUBLINGS: tl.constexpr,
):
    k = tl.program_id(0)
    each = tl.arange(0, BINS)
    if POOL:
        hits, seen = tl.zeros((BINS,), tl.float64), tl.zeros((BINS,), tl.float64)
        for slot in tl.static_range(K):
            hits += tl.load(accepted + slot * BINS + each)
            seen += tl.load(observed + slot * BINS + each)
    else:
        hits, seen = tl.load(accepted + k * BINS + each), tl.load(observed + k * BINS + each)
    extra = tl.load(weight)
    hits += extra * tl.load(towards + each)
    seen += extra
    # [i, j]: over the bins i … j.
    run = each[None, :] >= each[:, None]
    hits = tl.cumsum(tl.where(run, hits[None, :], 0.0), axis=1)
    seen = tl.cumsum(tl.where(run, seen[None, :], 0.0), axis=1)
    mean = tl.where(run, hits / tl.where(run, seen, 1.0), float("inf"))
    for doubling in tl.static_range(DOUBLINGS):
        later = tl.minimum(each + (1 << doubling), BINS - 1)
        mean = tl.minimum(mean, tl.gather(mean, tl.broadcast_to(later[None, :], (BINS, BINS)), axis=1))
    value = tl.max(tl.where(each[:, None] <= each[None, :], mean, float("-inf")), axis=0)
    if POOL:
        tl.store(fitted + each, value)
    if SHARED:
        for slot in tl.static_range(K):
            tl.store(curve + slot * BINS + each, value.to(tl.float32))
    elif not POOL:
        tl.store(curve + k * BINS + each, value.to(tl.float32))


def fit_all_slots(sums: Any, prior: Any, weight: Any, fitted: Any, curve: Any, *, shared: bool) -> None:
    """Fit the curve of all slots together; with `shared`, it is every slot's.

    Args:
        sums: accepted and observed slots, float64 `[2, K, 64]`.
        prior: what bins are shrunk towards, float64 `[64]`.
        weight: how many observations that counts as in every bin, float64 `[1]`.
        fitted: takes the curve, float64 `[64]`.
        curve: takes it with `shared`, float32 `[K, 64]`.
    """
    _launch(sums, prior, weight, fitted, curve, pool=True, shared=shared)


def fit_each_slot(sums: Any, towards: Any, weight: Any, curve: Any) -> None:
    """Fit each slot's curve, shrunk towards that of all slots; arguments as for `fit_all_slots`."""
    _launch(sums, towards, weight, towards, curve, pool=False, shared=False)


def _launch(sums: Any, towards: Any, weight: Any, fitted: Any, curve: Any, *, pool: bool, shared: bool) -> None:
    num_slots, bins = curve.shape
    _fit_kernel[(1 if pool else num_slots,)](
        sums[0],
        sums[1],
        towards,
        weight,
        fitted,
        curve,
        K=num_slots,
        POOL=pool,
        SHARED=shared,
        BINS=bins,
        DOUBLINGS=bins.bit_length() - 1,
        num_warps=8,
        enable_fp_fusion=False,
    )


_SIGNATURE = dict.fromkeys(("accepted", "observed", "towards", "weight", "fitted"), "*fp64") | {"curve": "*fp32"}
SPECIALISATIONS = tuple(
    (
        _fit_kernel,
        _SIGNATURE,
        {"K": 7, "POOL": pool, "SHARED": shared, "BINS": 64, "DOUBLINGS": 6},
        {"num_warps": 8, "enable_fp_fusion": False},
    )
    for pool, shared in ((True, False), (True, True), (False, False))
)
