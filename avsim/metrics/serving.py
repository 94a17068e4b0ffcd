"""What requests met with: times to first and per token, queueing, and what it took, one number per run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from avsim.metrics.intervals import CONFIDENCE, ratio_interval
from avsim.simulate import RequestTimes, SimulationResult, StepLog, Totals, Work
from avsim.types import F64Array, IntArray

__all__ = ["Measures", "grows", "interval", "latency_details", "measure", "percentiles"]

_QUANTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Measures:
    """The runs of one arm at one load; run 0 is the sample itself, the others are replicates; `[runs]` each.

    Attributes:
        totals, work: over the steps at full load (see `SimulationResult`).
        tpot_ms, tpot_p50_ms: time per output token over requests: mean, median.
        ttft_p95_ms: time to first token, from arrival.
        most_running: the largest number of requests at once.
        waiting_before, waiting: mean number of waiting requests in the second and in the last quarter of the time in
            which requests arrived.
    """

    totals: Totals
    work: Work
    tpot_ms: F64Array
    tpot_p50_ms: F64Array
    ttft_p95_ms: F64Array
    most_running: IntArray
    waiting_before: F64Array
    waiting: F64Array

    def pick(self, runs: IntArray) -> Measures:
        """Return the measures of some runs."""
        arrays = {item.name: getattr(self, item.name)[runs] for item in fields(self)[2:]}
        return Measures(self.totals.pick(runs), self.work.pick(runs), **arrays)


def measure(result: SimulationResult, times: RequestTimes) -> Measures:
    """Summarise a simulation run by run; `times` as its clients see them."""
    span = np.where(np.isnan(times.arrival_ms), -np.inf, times.arrival_ms).max(axis=1)

    def waiting(low: float, high: float) -> F64Array:
        return times.mean_number("arrival_ms", "seated_ms", low * span, high * span)

    return Measures(
        result.full,
        result.work,
        _over_requests(np.nanmean, times.tpot_ms),
        _over_requests(np.nanmedian, times.tpot_ms),
        _quantile(times.ttft_ms, 95),
        np.array([_most(times, "seated_ms", "end_ms", run) for run in range(len(span))]),
        waiting(0.25, 0.5),
        waiting(0.75, 1.0),
    )


def _over_requests(function: Any, values: F64Array) -> F64Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a run without such a request gives NaN
        return np.asarray(function(values, axis=1))


def _quantile(values: F64Array, q: float) -> F64Array:
    return _over_requests(lambda array, axis: np.nanpercentile(array, q, axis=axis), values)


def grows(measures: Measures) -> bool:
    """Whether the queue grew while requests arrived, so that the engine cannot keep up.

    At least one request waits in the last quarter on average, and more than in the second one, by an interval over
    replicates that excludes 0.
    """
    growth = measures.waiting - measures.waiting_before
    if not np.isfinite(growth).all():
        return False
    return bool(measures.waiting[0] >= 1 and growth[0] > 1.96 * growth[1:].std(ddof=1))


def percentiles(values: F64Array) -> dict[str, float] | None:
    """Return p50, p95 and p99; None where there is nothing."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    return {f"p{q}": float(value) for q, value in zip(_QUANTILES, np.percentile(values, _QUANTILES), strict=True)}


def latency_details(
    times: RequestTimes, log: StepLog, measures: Measures, clock_ms: float, *, waits: bool, scheduled: bool
) -> dict[str, Any]:
    """Return what run 0 was like, as the summary holds it, with intervals of mean TPOT and throughput.

    Args:
        times: as clients see them.
        log: the steps of run 0.
        measures: of all runs.
        clock_ms: run 0's clock at the end.
        waits: whether requests can wait for a seat; where not, and prompts are free, there is no time to first token.
        scheduled: whether prompts took time.
    """
    end = np.array([clock_ms])
    first = RequestTimes(**{item.name: getattr(times, item.name)[:1] for item in fields(RequestTimes)})
    steps = np.array([a.sum() + p.sum() + m.sum() for a, p, m in _parts(log)], dtype=np.float64)
    details: dict[str, Any] = {
        "itl_ms": percentiles(np.concatenate(log.itl_ms)) if log.itl_ms else None,
        "tpot_mean_ms": interval(measures.tpot_ms),
        "throughput_interval_tok_s": interval(measures.totals.throughput_tok_s),
        "interactivity_tok_s": interval(1e3 / measures.tpot_p50_ms),
        "tokens_per_step": {"mean": float(steps.mean()), "max": int(steps.max())} if len(steps) else None,
        "running": _numbers(first, "seated_ms", "end_ms", end),
        "ttft_ms": None,
        "waiting": None,
        "waiting_ms": None,
    }
    if waits or scheduled:
        details["ttft_ms"] = percentiles(first.ttft_ms[0])
    if waits:
        details["waiting"] = _numbers(first, "arrival_ms", "seated_ms", end)
        details["waiting_ms"] = percentiles(first.waiting_ms[0])
    return details


def _parts(log: StepLog) -> Any:
    return zip(log.active, log.prompt_tokens, log.admitted, strict=True)


def interval(values: F64Array) -> dict[str, float] | None:
    """Return run 0's value and its interval over replicates, on the log scale; None where it is not defined."""
    if not (np.isfinite(values).all() and (values > 0).all()):
        return None
    found = ratio_interval(float(values[0]), np.asarray(values[1:]))
    return {"value": found.ratio, "low": found.low, "high": found.high, "confidence": CONFIDENCE}


def _numbers(times: RequestTimes, start: str, end: str, clock: F64Array) -> dict[str, float]:
    """Return the mean and the largest number of requests between two of their times."""
    mean = times.mean_number(start, end, np.zeros(1), clock)[0]
    return {"mean": float(mean), "max": _most(times, start, end, 0)}


def _most(times: RequestTimes, start: str, end: str, run: int) -> int:
    begun, over = (np.sort(getattr(times, name)[run]) for name in (start, end))
    begun, over = begun[np.isfinite(begun)], over[np.isfinite(over)]
    # At each beginning: those begun until then, less those over until then.
    return int((np.arange(1, len(begun) + 1) - np.searchsorted(over, begun, side="right")).max(initial=0))
