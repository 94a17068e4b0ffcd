"""Whether acceptance depends on how many requests share a step: a test clustered by request."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import t as student

from avsim.sources.base import Trace
from avsim.types import Blocks, F64Array, IntArray

__all__ = ["BatchDependence", "batch_dependence"]

MIN_REQUESTS = 10


@dataclass(frozen=True)
class BatchDependence:
    """A test of accepted tokens per block against log2 of the requests in the step.

    Attributes:
        effect: accepted tokens per block for each doubling of the batch, within requests, their linear trend over the
            steps taken out.
        relative_pct: the effect in % of the mean of accepted tokens per block.
        p_value: two-sided.
        num_requests: requests with blocks at more than one batch size: the clusters.
        low_reqs, high_reqs: the smallest and the largest batch.
    """

    effect: float
    relative_pct: float
    p_value: float
    num_requests: int
    low_reqs: int
    high_reqs: int

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return asdict(self)


class _Sums:
    """Per-request sums of x (log2 of the batch), z (step) and y (accepted), and of their products."""

    def __init__(self, num_requests: int) -> None:
        self.sums = np.zeros((9, num_requests))
        self.first = np.full(num_requests, -1, dtype=np.int64)
        self.range = (np.inf, -np.inf)

    def add(self, request: IntArray, x: F64Array, step: IntArray, y: F64Array) -> None:
        seen, at = np.unique(request, return_index=True)
        self.first[seen] = np.where(self.first[seen] < 0, step[at], self.first[seen])
        z = (step - self.first[request]).astype(np.float64)  # from the request's own start, so that squares stay small
        one = np.ones_like(x)
        for row, values in enumerate((one, x, z, y, x * x, x * z, z * z, x * y, z * y)):
            self.sums[row] += np.bincount(request, values, self.sums.shape[1])
        if len(x):
            self.range = (min(self.range[0], x.min()), max(self.range[1], x.max()))

    def test(self) -> BatchDependence | None:
        n, x, z, y, xx, xz, zz, xy, zy = self.sums[:, self.sums[0] > 0]
        c_xx, c_xz, c_zz = xx - x * x / n, xz - x * z / n, zz - z * z / n
        c_xy, c_zy = xy - x * y / n, zy - z * y / n
        slope = np.divide(c_xz, c_zz, out=np.zeros_like(c_xz), where=c_zz > 1e-9)
        left = c_xx - slope * c_xz  # variation of the batch that a trend does not explain
        score = c_xy - slope * c_zy
        varies = left > 1e-9 * np.maximum(xx, 1.0)
        left, score = left[varies], score[varies]
        if len(score) < MIN_REQUESTS or not y.sum():
            return None
        effect = float(score.sum() / left.sum())
        share = left / left.sum()  # below 1, as there are others
        spread = float(np.sqrt((((score - effect * left) / (1 - share)) ** 2).sum()))
        if spread == 0:
            return None
        freedom = 1 / float((share**2).sum()) - 1  # as many as equal clusters would give
        p_value = float(2 * student.sf(abs(score.sum()) / spread, freedom))
        mean = float(y.sum() / n.sum())
        low, high = (round(2**bound) for bound in self.range)
        return BatchDependence(effect, 100 * effect / mean, p_value, len(score), low, high)


def batch_dependence(trace: Trace) -> BatchDependence | None:
    """Test an on-policy trace with a step table that has `num_reqs`.

    Per request c, y = A of its blocks, x = log2 num_reqs of their steps, x̃ = x less its regression on (1, step)
    within the request: U_c = Σ x̃ y and V_c = Σ x̃². The effect is β = Σ U_c / Σ V_c; its standard error comes from
    leaving out one request after the other (CR3), Σ V_c · SE = √Σ ((U_c − β V_c) / (1 − V_c / Σ V))², so blocks of a
    request may hang together as they like; β / SE is referred to Student's t with (Σ V)² / Σ V² − 1 degrees of
    freedom: requests − 1 if all weigh the same.
    A request's own level of acceptance and its linear trend over the steps drop out. What else changes along an output
    while the batch shrinks does not.

    Only blocks with all K slots drafted and admitted count, so a schedule that drafts less at high load is no effect.
    None if the trace was trimmed (what is admitted then depends on load), or has no step table, or fewer than ten
    requests ran at different batch sizes.
    """
    if trace.card.kind != "on-policy" or trace.card.adaptive_verification or (steps := trace.steps()) is None:
        return None
    known = steps.select("step", "num_reqs").drop_nulls().filter(pl.col("num_reqs") > 0)
    if known.is_empty() or known["num_reqs"].n_unique() == 1:
        return None
    step, size = known["step"].to_numpy(), np.log2(known["num_reqs"].to_numpy())
    sums = _Sums(len(trace.requests))
    for blocks in trace.chunks(()):
        if (blocks.num_admitted < blocks.num_drafted).any():
            return None
        _add(sums, blocks, trace.card.num_speculative_tokens, step, size)
    return sums.test()


def _add(sums: _Sums, blocks: Blocks, num_slots: int, step: IntArray, size: F64Array) -> None:
    assert blocks.step is not None
    at = np.minimum(np.searchsorted(step, blocks.step), len(step) - 1)
    keep = (step[at] == blocks.step) & (blocks.num_admitted == num_slots)
    if blocks.unfit is not None:
        keep &= ~blocks.unfit
    # Not the position: it sums up the accepted tokens of the blocks before, so it is no fixed regressor.
    sums.add(blocks.request[keep], size[at[keep]], blocks.step[keep], blocks.num_accepted[keep].astype(np.float64))
