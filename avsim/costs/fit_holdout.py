"""Errors on timings that a fit has not seen, split by whole blocks of time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from avsim.costs.fit_samples import Samples
from avsim.errors import InputError
from avsim.types import BoolArray, F64Array, IntArray

__all__ = [
    "GROUPINGS",
    "Blocking",
    "Difference",
    "Errors",
    "Figure",
    "Resamples",
    "autocorrelation_time",
    "compare_forms",
    "cross_predict",
    "groups",
    "make_blocks",
    "resample",
    "summarise",
]

GROUPINGS = ("size", "context", "graph-mode", "time")
REPLICATES = 200
MIN_BLOCKS = 8
"""Fewer blocks than this give no interval."""


@dataclass(frozen=True, eq=False)
class Blocking:
    """Which samples stay together: `of[i]` is sample i's block, `fold[i]` the part that holds it out.

    Attributes:
        unit: what a block is, in words.
        length: steps in a block; None for a profile.
        tau: integrated autocorrelation time of the timings, in timed steps; None for a profile.
    """

    of: IntArray
    fold: IntArray
    num_blocks: int
    num_folds: int
    unit: str
    length: int | None = None
    tau: float | None = None

    @property
    def too_short(self) -> bool:
        """Whether blocks are shorter than five autocorrelation times, so that intervals are too narrow."""
        return self.length is not None and self.tau is not None and self.length < 5 * self.tau


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its 95 % interval; no interval where there were too few blocks."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors e = predicted / measured − 1 on timings that were held out, in %.

    Attributes:
        median_abs: median of |e|.
        p95_abs: 95th percentile of |e|.
        bias: median of e.
        total: predicted over measured total time, less 1: what a clock made of these predictions would be off by.
            Outliers count in all four.
    """

    group: str
    num_samples: int
    median_abs: Figure
    p95_abs: Figure
    bias: Figure
    total: Figure


@dataclass(frozen=True, slots=True)
class Difference:
    """Curve's median |e| less linear's, in points of %, on the same timings; paired interval."""

    points: Figure

    @property
    def word(self) -> str:
        """Return which form is closer, or that the timings do not say."""
        low, high = self.points.low, self.points.high
        if low is None or high is None or low <= 0 <= high:
            return "not distinguishable"
        return "curve" if high < 0 else "linear"


def autocorrelation_time(values: F64Array) -> float:
    """Return 1 + 2 Σ ρ_l, summed up to the first lag ≥ 5 times the sum (Sokal's window); at least 1.

    >>> autocorrelation_time(np.random.default_rng(0).normal(size=4000)) < 1.2
    True
    """
    centred = values - values.mean()
    total = float(centred @ centred)
    if total <= 0 or len(values) < 4:
        return 1.0
    transformed = np.fft.rfft(centred, 2 * len(values))
    rho = np.fft.irfft(np.abs(transformed) ** 2)[: len(values)] / total
    sums = 2 * np.cumsum(rho) - 1
    window = np.flatnonzero(np.arange(len(sums)) >= 5 * sums)
    return max(float(sums[window[0] if len(window) else -1]), 1.0)


def make_blocks(samples: Samples, ratio: F64Array, holdout: float, seed: int) -> Blocking:
    """Cut samples into blocks that are held out whole.

    Steps: blocks of consecutive steps of one source, at least 10 steps and five autocorrelation times of
    log(ratio) long, but never so long that a fold has fewer than two; every n-th block is held out in turn.
    A profile with several samples a size: one sample of each size in turn, in an order drawn by `seed`; blocks for
    intervals are sizes. One with one sample a size: every n-th size in turn.

    Args:
        ratio: each time over the typical one of its size.
        holdout: share to hold out each time; 1 / holdout is rounded to the number of folds.
    """
    folds = max(round(1 / holdout), 2)
    if samples.ordered:
        tau = autocorrelation_time(np.log(ratio))
        series, row = samples.steps.series, samples.steps.row
        num_rows = sum(int(np.ptp(row[series == index])) + 1 for index in np.unique(series))
        stretch = num_rows / max(len(samples), 1)
        wanted = max(10, int(np.ceil(5 * tau * stretch)))
        length = max(1, min(wanted, num_rows // (2 * folds)))
        _, of = np.unique(np.column_stack([series, row // length]), axis=0, return_inverse=True)
        of = of.reshape(-1)
        unit = f"blocks of {length} consecutive steps"
        return Blocking(of, of % folds, int(of.max(initial=-1)) + 1, folds, unit, length, tau * stretch)
    sizes, of, counts = np.unique(samples.size, return_inverse=True, return_counts=True)
    if counts.min() < 2:
        return Blocking(of, of % folds, len(sizes), folds, "whole sizes")
    fold = np.empty(len(samples), dtype=np.int64)
    for index, size in enumerate(sizes.tolist()):
        rows = np.flatnonzero(of == index)
        fold[np.random.default_rng([seed, size]).permutation(rows)] = np.arange(len(rows)) % folds
    return Blocking(of, fold, len(sizes), folds, "samples of each size")


def cross_predict(blocking: Blocking, judged: BoolArray, predict: Callable[[BoolArray], F64Array | None]) -> F64Array:
    """Return for each judged sample what a fit without its fold predicts, `[n]`; NaN where none could be made.

    Args:
        predict: from the mask of the samples to fit on, predictions for all samples, or None.
    """
    result = np.full(len(judged), np.nan)
    for fold in range(blocking.num_folds):
        away = blocking.fold == fold
        if (away & judged).any() and (~away).any():
            made = predict(~away)
            if made is not None:
                result[away & judged] = made[away & judged]
    return result


@dataclass(frozen=True, eq=False)
class Resamples:
    """Bootstrap replicates of whole blocks; iterating gives how often each sample is drawn, `[n]`, one at a time."""

    of: IntArray
    draws: tuple[IntArray, ...]

    def __len__(self) -> int:
        return len(self.draws)

    def __iter__(self) -> Iterator[IntArray]:
        return (draw[self.of] for draw in self.draws)


def resample(blocking: Blocking, seed: int, replicates: int = REPLICATES) -> Resamples:
    """Draw blocks with replacement; no replicates where blocks are too few to say anything."""
    num = blocking.num_blocks
    drawn = (np.random.default_rng([seed, replicate]).integers(num, size=num) for replicate in range(replicates))
    enough = num >= MIN_BLOCKS
    return Resamples(blocking.of, tuple(np.bincount(draw, minlength=num) for draw in drawn) if enough else ())


def summarise(group: str, predicted: F64Array, ms: F64Array, rows: BoolArray, draws: Resamples) -> Errors | None:
    """Return the errors on those of some rows that have a prediction, with intervals from resampled blocks."""
    kept = np.flatnonzero(rows & np.isfinite(predicted))
    if not len(kept):
        return None
    ratio, took = predicted[kept] / ms[kept] - 1, ms[kept]
    values = _statistics(ratio, took)
    again = (np.repeat(np.arange(len(kept)), count[kept]) for count in draws)
    replicates = [_statistics(ratio[rows], took[rows]) for rows in again if len(rows)]
    figures = []
    for index, value in enumerate(values):
        spread = [replicate[index] for replicate in replicates]
        low, high = np.percentile(spread, (2.5, 97.5)).tolist() if len(spread) > 20 else (None, None)
        figures.append(Figure(value, low, high))
    return Errors(group, len(kept), *figures)


def compare_forms(curve: F64Array, linear: F64Array, ms: F64Array, draws: Resamples) -> Difference | None:
    """Return how much closer one form is than the other, on the samples that both predict."""
    both = np.flatnonzero(np.isfinite(curve) & np.isfinite(linear))
    if not len(both):
        return None
    apart = [100 * np.abs(made[both] / ms[both] - 1) for made in (curve, linear)]
    value = float(np.median(apart[0]) - np.median(apart[1]))
    again = (np.repeat(np.arange(len(both)), count[both]) for count in draws)
    spread = [float(np.median(apart[0][rows]) - np.median(apart[1][rows])) for rows in again if len(rows)]
    low, high = np.percentile(spread, (2.5, 97.5)).tolist() if len(spread) > 20 else (None, None)
    return Difference(Figure(value, low, high))


def groups(samples: Samples, by: str) -> list[tuple[str, BoolArray]]:
    """Split samples for a table of errors: by size (powers of four), context, graph mode or time (quarters).

    Raises:
        InputError: the samples do not say what is asked for.
    """
    if by == "size":
        what = "tokens" if samples.label == "verify" else "requests"
        edges = [0]
        while edges[-1] < samples.size.max():
            edges.append(max(4 * edges[-1], 4))
        pairs = list(itertools.pairwise(edges))
        found = [(f"{low + 1}–{high} {what}", (samples.size > low) & (samples.size <= high)) for low, high in pairs]
    elif by == "context":
        context = samples.steps.kv / samples.steps.reqs
        if not np.isfinite(context).any():
            raise InputError("--by context needs kv_tokens and num_reqs of each step, which are not recorded")
        cuts = np.unique(np.nanquantile(context, (0, 1 / 3, 2 / 3, 1)))
        cuts = cuts if len(cuts) > 1 else np.repeat(cuts, 2)
        found = [
            (f"{low:.0f}–{high:.0f} KV tokens a request", (context >= low) & ((context < high) | (high == cuts[-1])))
            for low, high in itertools.pairwise(cuts)
        ]
    elif by == "graph-mode":
        modes = np.unique(samples.steps.graph)
        if modes.tolist() == [""]:
            raise InputError("--by graph-mode needs graph_mode of each step, which is not recorded")
        found = [(f"graph mode {mode or 'not recorded'}", samples.steps.graph == mode) for mode in modes.tolist()]
    else:
        if not samples.ordered:
            raise InputError("--by time needs timed steps; a start-up profile has no order in time")
        found = []
        place: Any = np.empty(len(samples))
        for index in np.unique(samples.steps.series):
            rows = np.flatnonzero(samples.steps.series == index)
            place[rows] = np.arange(len(rows)) * 4 // len(rows)
        found = [(f"quarter {quarter + 1} of the time", place == quarter) for quarter in range(4)]
    return [(name, rows) for name, rows in found if rows.any()]


def _statistics(ratio: F64Array, took: F64Array) -> tuple[float, float, float, float]:
    apart = np.abs(ratio)
    total = float(((1 + ratio) * took).sum() / took.sum() - 1)
    return (
        100 * float(np.median(apart)), 100 * float(np.percentile(apart, 95)), 100 * float(np.median(ratio)),
        100 * total,
    )  # fmt: skip
