"""What timings of a grid say: medians with intervals and spread, outliers, drift, and what cached tokens cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import binom

from avsim.costs.fit_curve import Pools, find_outliers
from avsim.costs.profile.measure import Measured
from avsim.costs.profile.plan import Cell
from avsim.types import BoolArray, F64Array

__all__ = ["CellStats", "Drift", "KvTerm", "fit_kv", "mark_outliers", "median_interval", "summarise", "watch_drift"]

REPLICATES = 400
DRIFT_FLOOR = 0.02
"""Drift smaller than this is not called drift, however sure."""
MISFIT = 0.10
"""Two contexts share one table only if a KV term describes every step to this, or to the noise of its own median."""


@dataclass(frozen=True, slots=True)
class CellStats:
    """The timings of one step, ms.

    Attributes:
        low, high: interval of the median that covers 95 % at least, from order statistics.
        p10, p90, iqr: 10th and 90th percentile, and quartile distance: the spread of single steps.
        num_outliers: timings marked by the rule of `avsim cost fit`; the median counts them.
    """

    num_tokens: int
    num_reqs: int
    context_tokens: int
    depth: int
    spreads: tuple[str, ...]
    graph_mode: str
    median: float
    low: float
    high: float
    p10: float
    p90: float
    iqr: float
    num_samples: int
    num_outliers: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"spreads": list(self.spreads)}


@dataclass(frozen=True, slots=True)
class Drift:
    """How times changed while they were taken, in %.

    Attributes:
        trend_pct: all steps, the last third of the rounds over the first; low, high: 99 % interval, rounds resampled.
        repeat_pct: the first step, at the end over at the start; its interval likewise.
        found: an interval leaves 0 out, and the change is above 2 %.
    """

    trend_pct: float
    trend_low_pct: float
    trend_high_pct: float
    repeat_pct: float
    repeat_low_pct: float
    repeat_high_pct: float
    found: bool


@dataclass(frozen=True, eq=False)
class KvTerm:
    """median ≈ base(size) + slope · cached tokens, over cells of several sizes and contexts.

    Attributes:
        sizes: as they rise; base_ms, low_ms, high_ms: `[sizes]`, with 95 % intervals from resampled rounds.
        per_kv_token_ns: the slope, ≥ 0; low_ns, high_ns: its interval.
        worst: (relative misfit, cell) of the cell that it describes worst.
        fits: every cell is met to 10 %, or inside a 99 % interval of its own median.
    """

    sizes: tuple[int, ...]
    base_ms: F64Array
    low_ms: F64Array
    high_ms: F64Array
    per_kv_token_ns: float
    low_ns: float
    high_ns: float
    worst: tuple[float, Cell]
    fits: bool


def mark_outliers(measured: Measured) -> BoolArray:
    """Mark timings far from the median of their cell, `[cells, rounds]`; the rule is that of `avsim cost fit`."""
    cells, rounds = measured.ms.shape
    of = np.repeat(np.arange(cells), rounds)
    marked, _ = find_outliers(measured.ms.reshape(-1), Pools(of, np.arange(cells), np.full(cells, rounds)))
    return marked.reshape(cells, rounds)


def median_interval(ms: F64Array, level: float = 0.95) -> tuple[float, float]:
    """Return order statistics between which the median lies with a probability of `level` at least.

    P(x_(k) ≤ median ≤ x_(n+1−k)) = 1 − 2 · P(Bin(n, ½) ≤ k − 1), for independent samples; the whole range where even
    that covers less.

    >>> median_interval(np.arange(1.0, 21.0))
    (6.0, 15.0)
    """
    ordered = np.sort(ms)
    rank = int(binom.ppf((1 - level) / 2, len(ms), 0.5))
    while rank > 0 and 2 * binom.cdf(rank - 1, len(ms), 0.5) > 1 - level:
        rank -= 1
    rank = max(rank, 1)
    return float(ordered[rank - 1]), float(ordered[-rank])


def summarise(measured: Measured, outliers: BoolArray) -> tuple[CellStats, ...]:
    """Return the statistics of every cell."""
    found = []
    for cell, mode, ms, marked in zip(measured.cells, measured.modes, measured.ms, outliers, strict=True):
        p10, p25, p50, p75, p90 = np.percentile(ms, (10, 25, 50, 75, 90)).tolist()
        low, high = median_interval(ms)
        size = (cell.num_tokens, cell.num_reqs, cell.context, cell.depth, tuple(cell.spreads), mode)
        found.append(CellStats(*size, p50, low, high, p10, p90, p75 - p25, len(ms), int(marked.sum())))
    return tuple(found)


def watch_drift(measured: Measured, seed: int = 0) -> Drift:
    """Compare late timings with early ones: over all cells by rounds, and of the first cell at both ends.

    A round counts as one observation, the median over cells of ms ÷ the cell's median, so that slow spells of the
    machine widen the interval instead of passing for certainty.
    """
    rng = np.random.default_rng([seed, 1])
    ratio = np.median(measured.ms / np.median(measured.ms, axis=1, keepdims=True), axis=0)
    third = len(ratio) // 3
    trend = _change(ratio[:third], ratio[-third:], rng)
    repeat = _change(measured.start_ms, measured.end_ms, rng)
    found = any(abs(value) > 100 * DRIFT_FLOOR and (low > 0 or high < 0) for value, low, high in (trend, repeat))
    return Drift(*trend, *repeat, found)


def fit_kv(measured: Measured, rows: list[int], seed: int = 0) -> KvTerm:
    """Fit base(size) + slope · cached tokens to the medians of some cells, by least squares on relative errors.

    With one context only, the slope is 0 and the bases are the medians.

    Args:
        rows: indices of the cells.
    """
    cells = [measured.cells[row] for row in rows]
    ms = measured.ms[rows]
    sizes = np.unique([cell.size for cell in cells])
    of = np.searchsorted(sizes, [cell.size for cell in cells])
    kv = np.asarray([cell.kv_tokens for cell in cells], dtype=np.float64)
    medians = np.median(ms, axis=1)
    slope, base = _solve(medians, of, kv, len(sizes))
    rng = np.random.default_rng([seed, 2])
    draws = rng.integers(ms.shape[1], size=(REPLICATES, ms.shape[1]))
    again = [_solve(np.median(ms[:, draw], axis=1), of, kv, len(sizes)) for draw in draws]
    low, high = np.percentile([item[0] for item in again], (2.5, 97.5)).tolist()
    low_ms, high_ms = np.percentile([item[1] for item in again], (2.5, 97.5), axis=0)
    made = base[of] + slope * kv
    misfit = np.abs(made / medians - 1)
    sure = [median_interval(found, 0.99) for found in ms]
    inside = np.asarray([lo <= value <= hi for value, (lo, hi) in zip(made, sure, strict=True)])
    bad = (misfit > MISFIT) & ~inside
    worst = int(np.where(bad, misfit, 0).argmax()) if bad.any() else int(misfit.argmax())
    return KvTerm(
        tuple(sizes.tolist()), base, low_ms, high_ms, 1e6 * slope, 1e6 * low, 1e6 * high,
        (float(misfit[worst]), cells[worst]), bool(not bad.any() and (base > 0).all()),
    )  # fmt: skip


def _solve(medians: F64Array, of: Any, kv: F64Array, count: int) -> tuple[float, F64Array]:
    """Return the slope (ms per cached token, ≥ 0) and the base of each size that minimise Σ ((made − m) / m)²."""
    if len(medians) == count:  # one context: what would be left to divide by is rounding
        return 0.0, medians[np.argsort(of)]
    weight = 1 / medians**2
    total = np.bincount(of, weight, count)
    mean_kv = np.bincount(of, weight * kv, count) / total
    mean_ms = np.bincount(of, weight * medians, count) / total
    apart = kv - mean_kv[of]
    square = float((weight * apart**2).sum())
    slope = max(float((weight * apart * (medians - mean_ms[of])).sum()) / square, 0.0)
    return slope, mean_ms - slope * mean_kv


def _change(early: F64Array, late: F64Array, rng: np.random.Generator) -> tuple[float, float, float]:
    """Return by how much late medians exceed early ones, in %, with a 99 % interval from resampling both."""
    drawn = [
        np.median(late[rng.integers(len(late), size=len(late))])
        / np.median(early[rng.integers(len(early), size=len(early))])
        for _ in range(REPLICATES)
    ]
    low, high = np.percentile(drawn, (0.5, 99.5)).tolist()
    value = float(np.median(late) / np.median(early))
    return 100 * (value - 1), 100 * (low - 1), 100 * (high - 1)
