"""From paired throughputs to a verdict that can be defended: gain, loss, or not distinguishable."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from avsim.metrics.intervals import RatioInterval, ratio_interval
from avsim.simulate import Totals
from avsim.types import F64Array

__all__ = ["MIN_SOURCES", "PUBLISHED_OVERHEAD_MS", "Verdict", "break_even_overhead_ms", "judge", "with_overhead"]

MIN_SOURCES = 30
PUBLISHED_OVERHEAD_MS = 1.3
"""AV's own cost per step, implied by the ablation of vLLM PR #52362 (MI355X, 4 concurrent requests)."""

Word = Literal["gain", "loss", "not distinguishable", "gain withheld", "not enough requests"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One policy against one baseline at one load; ratios are of throughput at full concurrency.

    `hindsight_ratio` compares, on all requests, with the best of the baselines on all requests: a choice that nobody
    can make beforehand. It is None where nothing was chosen.
    """

    policy: str
    against: str
    word: Word
    ratio: float
    low: float
    high: float
    break_even_overhead_ms: float
    num_sources: int
    reason: str
    hindsight_ratio: float | None = None

    @property
    def change_pct(self) -> float:
        return (self.ratio - 1) * 100

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def with_overhead(totals: Totals, overhead_ms: float) -> F64Array:
    """Return throughputs, tok/s, `[runs]`, if every step took `overhead_ms` longer."""
    return totals.emitted / (totals.ms + totals.steps * overhead_ms) * 1e3


def break_even_overhead_ms(policy: Totals, baseline: Totals, run: int = 0) -> float:
    """Return the overhead per step, ms, at which the policy's throughput falls to the baseline's.

    Negative where the policy is already slower.
    """
    rate = baseline.emitted[run] / baseline.ms[run]
    return float((policy.emitted[run] / rate - policy.ms[run]) / policy.steps[run])


def judge(
    policy: str,
    against: str,
    totals: Totals,
    baseline: Totals,
    num_sources: int,
    overhead_ms: float | None,
) -> Verdict:
    """Judge a policy against a baseline from paired runs: run 0 is the sample itself, the others replicates.

    Args:
        totals, baseline: sums at full concurrency, `[1 + B]`; for a baseline that is chosen (best K), the choice of
            each replicate.
        num_sources: distinct source requests behind run 0.
        overhead_ms: AV's own overhead per step, charged to the policy; None if unknown. Then a gain that the
            published overhead would erase is withheld.
    """
    charged = overhead_ms or 0.0
    interval = _interval(totals, baseline, charged)
    margin = break_even_overhead_ms(totals, baseline)
    word: Word
    reason = ""
    if num_sources < MIN_SOURCES:
        word, reason = "not enough requests", f"{num_sources} distinct requests; at least {MIN_SOURCES} are needed"
    elif not interval.excludes_one:
        word = "not distinguishable"
    elif interval.high < 1:
        word = "loss"
    elif overhead_ms is None and _interval(totals, baseline, PUBLISHED_OVERHEAD_MS).low <= 1:
        word = "gain withheld"
        reason = f"unknown AV overhead; the published {PUBLISHED_OVERHEAD_MS} ms a step could erase the gain"
    else:
        word = "gain"
    return Verdict(policy, against, word, interval.ratio, interval.low, interval.high, margin, num_sources, reason)


def _interval(totals: Totals, baseline: Totals, overhead_ms: float) -> RatioInterval:
    ratios = with_overhead(totals, overhead_ms) / baseline.throughput_tok_s
    return ratio_interval(float(ratios[0]), np.asarray(ratios[1:]))
