"""Signs that a trace is not what it seems, or says less than it seems."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from avsim.sources.base import Trace
from avsim.sources.batch_dependence import BatchDependence, batch_dependence
from avsim.sources.parquet import frames
from avsim.sources.schema import MASK
from avsim.sources.summary import TraceSummary

__all__ = ["FEW_SOURCES", "Sign", "warning_signs"]

FEW_SOURCES = 30
HIGH_ENTROPY = 0.8
RANDOM_ENTROPY = 0.5
P_VALUE = 1e-3
MIN_PROMPTS = 8


@dataclass(frozen=True)
class Sign:
    """One remark: a stable name, a line for people, and the numbers behind it."""

    name: str
    text: str
    values: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the remark as JSON-ready data."""
        return {"name": self.name, "text": self.text, "values": self.values}


def warning_signs(trace: Trace, summary: TraceSummary) -> list[Sign]:
    """Return what looks wrong about a trace; the thresholds are constants of this module.

    * entropy: the drafter's mean entropy is above 0.8 ln(vocabulary), or above 0.5 ln(vocabulary) while the first slot
      is accepted no more often than two blind guesses would be (2 e^−entropy): random weights, or random tokens.
    * temperature: requests differ in it, and acceptance depends on it.
    * prompts: all of one length, as in benchmarks whose prompts are random tokens.
    * batch: acceptance depends on the number of requests in the step; see `batch_dependence`.
    * masks, censored labels, few requests with different content.
    """
    found = [
        *_entropy(trace, summary),
        _temperatures(trace),
        _prompts(trace),
        _batch(batch_dependence(trace)),
        _masks(trace, summary),
        _censored(trace, summary),
        _few(trace, summary),
    ]
    return [warning for warning in found if warning is not None]


def _entropy(trace: Trace, summary: TraceSummary) -> list[Sign]:
    if "entropy" not in trace.features or not trace.card.vocab_size or trace.card.vocab_size < 2:
        return []
    total = first = 0.0
    count = blocks = 0
    for piece in trace.chunks(("entropy",)):
        entropy = piece.features["entropy"]
        drafted = ~np.isnan(entropy)
        if piece.unfit is not None:
            drafted &= ~piece.unfit
        total += float(entropy[drafted].sum(dtype=np.float64))
        count += int(drafted.sum())
        first += float(entropy[0][drafted[0]].sum(dtype=np.float64))
        blocks += int(drafted[0].sum())
    if not count or not blocks:
        return []
    mean, first_mean, most = total / count, first / blocks, math.log(trace.card.vocab_size)
    rate = float(summary.rows.rates("conditional")[0][0])
    values = {"mean_entropy": mean, "ln_vocab": most, "share": mean / most, "first_slot_acceptance": rate}
    found = []
    if mean > HIGH_ENTROPY * most:
        text = (
            f"the drafter's mean entropy is {mean:.2f} nats, {100 * mean / most:.0f} % of ln(vocabulary): near uniform"
        )
        found.append(Sign("entropy", text, values))
    if first_mean > RANDOM_ENTROPY * most and rate <= 2 * math.exp(-first_mean):
        text = (
            f"slot 0 is accepted in {100 * rate:.2g} % of blocks, as by chance, and its mean entropy is "
            f"{first_mean:.2f} nats: random weights or random tokens?"
        )
        found.append(Sign("random-outputs", text, values))
    return found


def _temperatures(trace: Trace) -> Sign | None:
    counts = Counter(trace.requests["temperature"].to_list())
    if len(counts) < 2:
        return None
    shown = ", ".join(f"{number} at {value:g}" for value, number in sorted(counts.items())[:6])
    more = f" and {len(counts) - 6} more" if len(counts) > 6 else ""
    values = {"temperatures": sorted(counts)[:100], "requests": [counts[value] for value in sorted(counts)[:100]]}
    return Sign("temperatures", f"requests at several temperatures: {shown}{more}", values)


def _prompts(trace: Trace) -> Sign | None:
    lengths = trace.requests["prompt_len"]
    if trace.card.synthetic or len(lengths) < MIN_PROMPTS or lengths.n_unique() > 1 or not lengths[0]:
        return None
    text = f"all {len(lengths)} prompts have {lengths[0]} tokens: a benchmark of random tokens?"
    return Sign("prompt-lengths", text, {"prompt_len": lengths[0]})


def _batch(result: BatchDependence | None) -> Sign | None:
    if result is None or not result.p_value < P_VALUE:
        return None
    text = (
        f"acceptance depends on the batch: {result.effect:+.3f} accepted tokens per block "
        f"({result.relative_pct:+.1f} %) for each doubling of the requests in the step, {result.low_reqs} to "
        f"{result.high_reqs} (p = {result.p_value:.1g}, {result.num_requests} requests)"
    )
    return Sign("batch", text, result.to_json())


def _masks(trace: Trace, summary: TraceSummary) -> Sign | None:
    if not summary.num_masked:
        return None
    reasons: Counter[str] = Counter()
    for part in trace.parts:
        for frame in frames(part, [MASK]):
            counts = frame.select(pl.col(MASK).cast(pl.String).drop_nulls().value_counts()).unnest(MASK)
            reasons.update(dict(counts.iter_rows()))
    shown = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    text = f"{summary.num_masked} of {trace.num_blocks} blocks are masked, left out of every rate here: {shown}"
    return Sign("masked", text, {"blocks": summary.num_masked, "reasons": dict(reasons.most_common())})


def _censored(trace: Trace, summary: TraceSummary) -> Sign | None:
    drafted, verified = int(summary.rows.drafted.sum()), int(summary.rows.verified.sum())
    if drafted == verified and not trace.card.adaptive_verification:
        return None
    share = 100 * (1 - verified / drafted) if drafted else 0.0
    by = "adaptive verification" if trace.card.adaptive_verification else "something other than adaptive verification"
    text = (
        f"labels are censored: {share:.1f} % of the drafted slots were trimmed by {by}; rates per verified slot and "
        "conditional ones are of the slots that were let through"
    )
    return Sign("censored", text, {"drafted": drafted, "verified": verified})


def _few(trace: Trace, summary: TraceSummary) -> Sign | None:
    if summary.num_sources >= FEW_SOURCES:
        return None
    text = (
        f"only {summary.num_sources} requests with different content: below {FEW_SOURCES}, replays give no verdict on "
        "resampled requests"
    )
    return Sign("few-requests", text, {"sources": summary.num_sources})
