"""What to know about a profile, in sentences."""

from __future__ import annotations

import numpy as np

from avsim.costs.profile.measure import Measured
from avsim.costs.profile.plan import ProfilePlan
from avsim.costs.profile.summary import Drift, KvTerm, summarise
from avsim.types import BoolArray

__all__ = ["context_note", "general_notes", "spread_notes"]

_WIDE = 0.10
"""A median whose interval reaches further than this is called out."""


def general_notes(measured: Measured, outliers: BoolArray, drift: Drift, plan: ProfilePlan) -> list[str]:
    """Return what the timings themselves say: rounds left out, outliers, noise, drift."""
    notes = []
    if measured.num_rounds < plan.repeats:
        notes.append(f"Stopped by --minutes after {measured.num_rounds} of {plan.repeats} rounds")
    count, total = int(outliers.sum()), outliers.size
    if count:
        share = float(measured.ms[outliers].sum() / measured.ms.sum())
        notes.append(
            f"{count} of {total} timings ({share:.1%} of the time) are outliers; medians count them and do not move"
        )
    stats = summarise(measured, outliers)
    wide = [max(item.high / item.median, item.median / item.low) - 1 for item in stats]
    if (poor := sum(width > _WIDE for width in wide)) > 0:
        notes.append(
            f"NOISE: the median of {poor} of {len(stats)} steps is not known to {_WIDE:.0%} (worst: +{max(wide):.0%}); "
            f"raise --repeats, or measure on a quieter machine"
        )
    if drift.found:
        notes.append(
            f"DRIFT: late rounds took {drift.trend_pct:+.1f} % ({drift.trend_low_pct:+.1f} … "
            f"{drift.trend_high_pct:+.1f}) against early ones, the first step at the end {drift.repeat_pct:+.1f} % "
            f"({drift.repeat_low_pct:+.1f} … {drift.repeat_high_pct:+.1f}) against the start: the machine changed "
            f"while it was measured; measure again on a quiet one"
        )
    return notes


def context_note(term: KvTerm, contexts: tuple[int, ...]) -> str:
    """Return what is known of the cost of cached tokens."""
    if len(contexts) == 1:
        return f"Measured at {contexts[0]} cached tokens a request, and no other: how times grow with them is not known"
    span = f"{min(contexts)} to {max(contexts)} cached tokens a request"
    if term.per_kv_token_ns <= 0:
        return f"No cost of cached tokens was seen from {span} (at most {term.high_ns:.2g} ns each)"
    sure = "" if term.low_ns > 0 else ", not distinguishable from 0"
    interval = f"{term.low_ns:.3g} … {term.high_ns:.3g}{sure}"
    return (
        f"A cached token costs {term.per_kv_token_ns:.3g} ns ({interval}), from {span}; "
        f"it describes every step to {term.worst[0]:.1%} or better"
    )


def spread_notes(block: KvTerm, single: KvTerm, knows_kv: bool) -> list[str]:
    """Say by how much one-token requests cost more at equal tokens, cached tokens set aside if their cost is known."""
    both = [
        (block.sizes.index(size), single.sizes.index(size)) for size in block.sizes if size > 1 and size in single.sizes
    ]
    if not both:
        return []
    of_block, of_single = np.asarray(both).T
    middle = float(np.median(single.base_ms[of_single] / block.base_ms[of_block]))
    apart = (single.low_ms[of_single] > block.high_ms[of_block]) | (single.high_ms[of_single] < block.low_ms[of_block])
    aside = ", with what cached tokens cost set aside," if knows_kv else ""
    note = (
        f"At equal tokens{aside} steps of one-token requests take {middle:.2f} times as long as blocks (median of "
        f"{len(both)} sizes, {int(apart.sum())} of them beyond noise)"
    )
    if abs(middle - 1) > 0.05 and apart.mean() > 0.5:
        note += (
            "; a curve knows no cost of a request, so neither table holds for both kinds of step"
            if knows_kv
            else "; one context cannot tell the cost of a request's cached tokens from that of the request"
        )
    return [note]
