"""A step-cost curve from timings: points with enough samples, medians, outliers, a hint at the capture limit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from avsim.costs.curve import staircase
from avsim.errors import InputError
from avsim.types import BoolArray, F64Array, IntArray

__all__ = ["CurvePart", "CurveRule", "Jump", "Pools", "find_jump", "find_outliers", "fit_curve", "pool_sizes", "repair"]

OUTLIER_MADS = 5.0
OUTLIER_FLOOR = 0.05
_TO_SIGMA = 1.4826
_WIDEST = 1.25
"""Sizes pooled for want of samples differ by at most this factor."""


@dataclass(frozen=True, slots=True)
class CurveRule:
    """How a curve is made from samples.

    Attributes:
        min_samples: fewest samples of a point; thinner sizes are pooled with their neighbours, or left out.
        capture_limit: largest captured size: at or below it a step is padded to the next point of the curve. 0: no
            limit is known, and the staircase goes to the last point. None: the last of the captured sizes; without
            them 1 (nothing is padded, all is interpolated) where no step ran in a graph, else 0.
        capture_sizes: captured sizes, where known: each collects the steps that are padded to it.
        monotone: `running-max` keeps raw medians, which the cost table then repairs by a running maximum as vLLM does;
            `isotonic` writes the least-squares monotone curve, weighted by samples, instead.

    Raises:
        InputError: a value outside its range.
    """

    min_samples: int = 5
    capture_limit: int | None = None
    capture_sizes: tuple[int, ...] = ()
    monotone: str = "running-max"

    def __post_init__(self) -> None:
        if self.min_samples < 1:
            raise InputError(f"--min-samples must be at least 1, not {self.min_samples}")
        if self.capture_limit is not None and self.capture_limit < 0:
            raise InputError(f"--capture-limit must be at least 0 (0: unknown), not {self.capture_limit}")
        sizes = self.capture_sizes
        if any(size < 1 for size in sizes) or any(b <= a for a, b in itertools.pairwise(sizes)):
            raise InputError("--capture-sizes must rise strictly from at least 1")
        if sizes and self.capture_limit not in (None, sizes[-1]):
            raise InputError(
                f"--capture-limit is {self.capture_limit}, but --capture-sizes end at {sizes[-1]}; they must agree"
            )
        if self.monotone not in ("running-max", "isotonic"):
            raise InputError(f"--monotone is {self.monotone!r}; it is running-max or isotonic")

    @property
    def limit(self) -> int:
        """The capture limit, 0 where none is known."""
        return self.capture_limit or (self.capture_sizes[-1] if self.capture_sizes else 0)


@dataclass(frozen=True, eq=False)
class Pools:
    """Which samples make which point: `of[i]` is sample i's pool or −1, `points[p]` the size that pool p stands for."""

    of: IntArray
    points: IntArray
    counts: IntArray


@dataclass(frozen=True, slots=True)
class Jump:
    """A step cost that rises faster than the size does: what leaving the captured graphs looks like."""

    below: int
    above: int
    ratio: float


@dataclass(frozen=True, eq=False)
class CurvePart:
    """The curve of one kind of timing.

    Attributes:
        points: (size, ms), in the form that `CurveCost` takes.
        medians: raw medians, equal to the points under `running-max`.
        counts: samples of each point.
        num_thin: samples in no point, their sizes being too thin.
        repaired: how many points the monotone repair lifts or moves, and by how much at most, as a ratio.
        differing: (size, given, found) where the source's own median is not that of its samples.
    """

    points: tuple[tuple[int, float], ...]
    medians: F64Array
    counts: IntArray
    num_thin: int
    repaired: tuple[int, float]
    jump: Jump | None
    differing: tuple[tuple[int, float, float], ...] = ()

    def predict(self, size: IntArray, capture_limit: int) -> F64Array:
        """Return the times that `CurveCost` would give."""
        return staircase(int(size.max(initial=self.points[-1][0])), self.points, capture_limit)[size]


def pool_sizes(size: IntArray, rule: CurveRule) -> Pools:
    """Assign samples to the points of a curve, `rule.min_samples` at least to each.

    A captured size takes the samples padded to it. Elsewhere a size with enough samples is a point; thinner ones are
    pooled with the sizes above them, within a factor of 1.25 and never across the capture limit. A pool stands at its
    largest size where steps are padded up to it, and at its samples' mean size beyond the capture limit, where the
    curve is interpolated.

    >>> pool_sizes(np.array([1, 1, 8, 9, 9, 40]), CurveRule(min_samples=2)).points.tolist()
    [1, 9]
    """
    captured = np.asarray(rule.capture_sizes, dtype=np.int64)
    padded = size.copy()
    if len(captured):
        inside = size <= captured[-1]
        padded[inside] = captured[np.searchsorted(captured, size[inside], side="left")]
    sizes, inverse, counts = np.unique(padded, return_inverse=True, return_counts=True)
    pool_of_size = np.full(len(sizes), -1)
    points: list[int] = []
    held: list[int] = []

    def close() -> None:
        total = int(counts[held].sum()) if held else 0
        if total >= rule.min_samples:
            last = int(sizes[held[-1]])
            free = 0 < rule.limit < last
            mean = int(np.rint(np.average(sizes[held], weights=counts[held]))) if free else last
            pool_of_size[held] = len(points)
            points.append(mean)
        held.clear()

    for index, current in enumerate(sizes.tolist()):
        if held:
            first = int(sizes[held[0]])
            apart = current > first * _WIDEST or first <= rule.limit < current
            if apart or current in rule.capture_sizes:
                close()
        held.append(index)
        if counts[held].sum() >= rule.min_samples:
            close()
    close()
    of = pool_of_size[inverse]
    return Pools(of, np.asarray(points, dtype=np.int64), np.bincount(of[of >= 0], minlength=len(points)))


def find_outliers(ms: F64Array, pools: Pools) -> tuple[BoolArray, F64Array]:
    """Mark timings that lie far from their own point's median; no cost model is involved.

    |r − 1| > max(5 · 1.4826 · MAD, 5 %), r = ms / median and MAD the median of |r − 1|: the larger of the point's own
    and that of all. Samples in no point are never marked.

    Returns:
        the marks, and r (1 for samples in no point), `[n]` each.
    """
    inside = pools.of >= 0
    found, ratio = np.zeros(len(ms), dtype=bool), np.ones(len(ms))
    if not inside.any():
        return found, ratio
    of = pools.of[inside]
    ratio[inside] = ms[inside] / _medians(ms[inside], of, len(pools.points))[of]
    apart = np.abs(ratio[inside] - 1)
    scale = np.maximum(_medians(apart, of, len(pools.points)), np.median(apart))
    found[inside] = apart > np.maximum(OUTLIER_MADS * _TO_SIGMA * scale[of], OUTLIER_FLOOR)
    return found, ratio


def repair(ms: F64Array, counts: IntArray, how: str) -> F64Array:
    """Make a curve monotone: the running maximum that vLLM takes, or isotonic regression weighted by samples.

    The running maximum of noisy points lies above the truth; isotonic regression does not, but is not what vLLM reads.
    """
    if how == "running-max":
        return np.maximum.accumulate(ms)
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression().fit_transform(np.arange(len(ms), dtype=np.float64), ms, sample_weight=counts)
    return np.asarray(fitted, dtype=np.float64)


def find_jump(points: IntArray, ms: F64Array, counts: IntArray, spread: float) -> Jump | None:
    """Return the largest rise between neighbouring points that tokens cannot explain, or None.

    A rise counts if it is more than 1.25 times the ratio of the sizes (costs have a fixed part, so they grow less than
    in proportion) and more than five standard errors of the two medians; `spread` is the σ of a ratio to its median.
    """
    if len(points) < 2:
        return None
    top = np.maximum.accumulate(ms)
    log_rise = np.log(top[1:] / top[:-1])
    error = 1.2533 * spread * np.sqrt(1 / counts[1:] + 1 / counts[:-1])
    sharp = (log_rise > np.log(_WIDEST * points[1:] / points[:-1])) & (log_rise > 5 * error)
    if not sharp.any():
        return None
    at = int(np.where(sharp, log_rise, -np.inf).argmax())
    return Jump(int(points[at]), int(points[at + 1]), float(np.exp(log_rise[at])))


def fit_curve(
    size: IntArray, ms: F64Array, rule: CurveRule, given: Sequence[tuple[int, float]] = ()
) -> CurvePart | None:
    """Fit a curve to samples: the median of all samples of each point, outliers included, as vLLM takes it.

    A median does not move with the size of an outlier, so none is taken out. Medians that the source gives replace
    those of the samples. None where no size has enough samples.
    """
    pools = pool_sizes(size, rule)
    if not len(pools.points) and not given:
        return None
    inside = pools.of >= 0
    found = _medians(ms[inside], pools.of[inside], len(pools.points))
    points, medians, counts = pools.points, found, pools.counts
    differing: tuple[tuple[int, float, float], ...] = ()
    if given:
        points, medians = np.asarray([s for s, _ in given], dtype=np.int64), np.asarray([m for _, m in given])
        by_size = dict(zip(pools.points.tolist(), zip(found.tolist(), pools.counts.tolist(), strict=True), strict=True))
        counts = np.asarray([by_size.get(s, (0.0, 1))[1] for s in points.tolist()], dtype=np.int64)
        pairs = [(s, m, by_size[s][0]) for s, m in given if s in by_size]
        differing = tuple(pair for pair in pairs if abs(pair[1] - pair[2]) > 1e-9 * pair[1])
    final = medians if rule.monotone == "running-max" else repair(medians, counts, rule.monotone)
    read = repair(medians, counts, rule.monotone)
    apart = np.abs(ms[inside] / found[pools.of[inside]] - 1) if inside.any() else np.zeros(1)
    jump = find_jump(points, medians, counts, _TO_SIGMA * float(np.median(apart)))
    moved = np.abs(read / medians - 1)
    return CurvePart(
        tuple(zip(points.tolist(), final.tolist(), strict=True)), medians, counts, int((~inside).sum()),
        (int((moved > 1e-12).sum()), float(moved.max())), jump, differing,
    )  # fmt: skip


def _medians(values: F64Array, of: IntArray, num_pools: int) -> F64Array:
    order = np.argsort(of, kind="stable")
    bounds = np.searchsorted(of[order], np.arange(1, num_pools))
    return np.asarray([np.median(part) for part in np.split(values[order], bounds)][:num_pools], dtype=np.float64)
