"""From paired throughputs to a verdict that can be defended: gain, loss, or not distinguishable."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from avsim.metrics.intervals import RatioInterval, ratio_interval
from avsim.simulate import Totals
from avsim.types import F64Array

__all__ = [
    "LOWER_IS_BETTER",
    "MIN_SOURCES",
    "PUBLISHED_OVERHEAD_MS",
    "Metric",
    "Verdict",
    "break_even_overhead_ms",
    "judge",
    "judge_ratios",
    "with_overhead",
]

MIN_SOURCES = 30
PUBLISHED_OVERHEAD_MS = 1.3
"""AV's own cost per step, implied by the ablation of vLLM PR #52362 (MI355X, 4 concurrent requests)."""

Word = Literal["gain", "loss", "not distinguishable", "gain withheld", "not enough requests"]
Metric = Literal["throughput", "mean TPOT", "p95 TTFT"]
LOWER_IS_BETTER: tuple[Metric, ...] = ("mean TPOT", "p95 TTFT")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One policy against one baseline at one load.

    Ratios are of `metric`, policy over baseline: of throughput at full concurrency in a closed loop. A time that goes
    down is a gain. `hindsight_ratio` compares, on all requests, with the best of the baselines on all requests: a
    choice that nobody can make beforehand; None where nothing was chosen. `break_even_overhead_ms` is None where
    overhead changes more than the length of steps.
    """

    policy: str
    against: str
    word: Word
    ratio: float
    low: float
    high: float
    break_even_overhead_ms: float | None
    num_sources: int
    reason: str
    hindsight_ratio: float | None = None
    metric: Metric = "throughput"

    @property
    def change_pct(self) -> float:
        return (self.ratio - 1) * 100

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def with_overhead(totals: Totals, overhead_ms: float | F64Array) -> F64Array:
    """Return throughputs, tok/s, `[runs]`, if every step took `overhead_ms` longer."""
    return totals.emitted / (totals.ms + totals.steps * overhead_ms) * 1e3


def break_even_overhead_ms(policy: Totals, baseline: Totals, run: int = 0) -> float:
    """Return the overhead per step, ms, at which the policy's throughput falls to the baseline's.

    It is counted from what the totals hold already. Negative where the policy is already slower.
    """
    rate = baseline.emitted[run] / baseline.ms[run]
    return float((policy.emitted[run] / rate - policy.ms[run]) / policy.steps[run])


def judge(
    policy: str,
    against: str,
    totals: Totals,
    baseline: Totals,
    num_sources: int,
    overhead_ms: float | F64Array | None,
    *,
    included_ms: float = 0.0,
) -> Verdict:
    """Judge a policy's throughput against a baseline's, from paired runs: run 0 is the sample, the others replicates.

    Args:
        totals, baseline: sums at full concurrency, `[1 + B]`; for a baseline that is chosen (best K), the choice of
            each replicate.
        num_sources: distinct source requests behind run 0.
        overhead_ms: AV's own overhead per step, still to be charged to the policy; None if unknown. Then a gain that
            the published overhead would erase is withheld.
        included_ms: overhead per step that the totals hold already, which the break-even overhead begins with.
    """
    rate = baseline.throughput_tok_s
    doubtful = None if overhead_ms is not None else with_overhead(totals, PUBLISHED_OVERHEAD_MS) / rate
    ratios = with_overhead(totals, 0.0 if overhead_ms is None else overhead_ms) / rate
    margin = break_even_overhead_ms(totals, baseline) + included_ms
    return judge_ratios(policy, against, "throughput", ratios, num_sources, doubtful, break_even_overhead_ms=margin)


def judge_ratios(
    policy: str,
    against: str,
    metric: Metric,
    ratios: F64Array,
    num_sources: int,
    doubtful: F64Array | None = None,
    *,
    break_even_overhead_ms: float | None = None,
) -> Verdict:
    """Judge the ratios of a metric, policy over baseline, `[1 + B]`.

    Args:
        doubtful: the same with the published overhead, where AV's own is unknown: a gain that is none then is withheld.
    """
    lower = metric in LOWER_IS_BETTER
    interval = _interval(ratios)
    word: Word
    reason = ""
    if num_sources < MIN_SOURCES:
        word, reason = "not enough requests", f"{num_sources} distinct requests; at least {MIN_SOURCES} are needed"
    elif not _excludes_one(interval, lower=lower, better=True):
        word = "loss" if _excludes_one(interval, lower=lower, better=False) else "not distinguishable"
    elif doubtful is not None and not _excludes_one(_interval(doubtful), lower=lower, better=True):
        word = "gain withheld"
        reason = f"unknown AV overhead; the published {PUBLISHED_OVERHEAD_MS} ms a step could erase the gain"
    else:
        word = "gain"
    return Verdict(
        policy, against, word, interval.ratio, interval.low, interval.high, break_even_overhead_ms, num_sources, reason,
        metric=metric,
    )  # fmt: skip


def _interval(ratios: F64Array) -> RatioInterval:
    return ratio_interval(float(ratios[0]), np.asarray(ratios[1:]))


def _excludes_one(interval: RatioInterval, *, lower: bool, better: bool) -> bool:
    return interval.high < 1 if lower == better else interval.low > 1
