"""What a trace holds at a glance: sizes, and acceptance by position with every denominator."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from avsim.sources.base import Trace
from avsim.sources.walk import walked
from avsim.types import Blocks, BoolArray, F64Array, IntArray, observe

__all__ = ["PositionCounts", "TraceSummary", "summarise", "wilson"]

DENOMINATORS = ("per_drafted", "per_verified", "conditional")


@dataclass(frozen=True)
class PositionCounts:
    """Counts of slots by position in the block, each int64 `[K]`; masked blocks are left out.

    Attributes:
        drafted: slots drafted.
        verified: slots admitted to verification.
        observed: slots with a label: every earlier slot was accepted.
        accepted: slots accepted; the numerator of every rate.
        num_blocks: blocks counted.
    """

    drafted: IntArray
    verified: IntArray
    observed: IntArray
    accepted: IntArray
    num_blocks: int

    @classmethod
    def zero(cls, num_slots: int) -> PositionCounts:
        """Return the counts of no blocks."""
        none = np.zeros(num_slots, dtype=np.int64)
        return cls(none, none, none, none, 0)

    def add(self, blocks: Blocks, chosen: BoolArray | None = None) -> PositionCounts:
        """Return the counts with blocks added: all of them, or the chosen rows."""
        keep = np.ones(len(blocks), dtype=np.bool_) if chosen is None else chosen
        if blocks.unfit is not None:
            keep = keep & ~blocks.unfit
        drafted, admitted, accepted = (
            count[keep] for count in (blocks.num_drafted, blocks.num_admitted, blocks.num_accepted)
        )
        slot = np.arange(len(self.drafted))[:, None]
        observed, label = observe(admitted, accepted, len(slot))
        return PositionCounts(
            self.drafted + (slot < drafted).sum(axis=1),
            self.verified + (slot < admitted).sum(axis=1),
            self.observed + observed.sum(axis=1),
            self.accepted + label.sum(axis=1),
            self.num_blocks + len(drafted),
        )

    @property
    def acceptance_length(self) -> float:
        """AL = 1 + Σ_k P(slot k accepted): tokens emitted per block, the bonus included; NaN without blocks."""
        return 1 + float(self.accepted.sum()) / self.num_blocks if self.num_blocks else float("nan")

    def rates(self, denominator: str) -> tuple[F64Array, F64Array, F64Array]:
        """Return acceptance by position with its 95 % Wilson interval, float64 `[K]` each: rate, low, high.

        Args:
            denominator: `per_drafted`, `per_verified` or `conditional` (per slot reached).
        """
        totals = {"per_drafted": self.drafted, "per_verified": self.verified, "conditional": self.observed}
        return wilson(self.accepted, totals[denominator])

    def to_json(self) -> dict[str, Any]:
        """Return counts and rates as JSON-ready lists; a rate of nothing is null."""
        rates = {
            name: {
                key: [None if np.isnan(value) else float(value) for value in values]
                for key, values in zip(("rate", "low", "high"), self.rates(name), strict=True)
            }
            for name in DENOMINATORS
        }
        counts = {name: getattr(self, name).tolist() for name in ("drafted", "verified", "observed", "accepted")}
        length = self.acceptance_length if self.num_blocks else None
        return {"num_blocks": self.num_blocks, "acceptance_length": length, "counts": counts} | rates


def wilson(successes: IntArray, trials: IntArray, z: float = 1.959963984540054) -> tuple[F64Array, F64Array, F64Array]:
    """Return rates with their Wilson score interval, NaN where there are no trials: rate, low, high.

    The interval counts trials as independent; blocks of one request are not quite, so it is somewhat narrow.

    >>> [float(v[0].round(4)) for v in wilson(np.array([8]), np.array([10]))]
    [0.8, 0.4902, 0.9433]
    """
    n = np.where(trials > 0, trials, np.nan).astype(np.float64)
    rate = successes / n
    centre = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    return rate, np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


@dataclass(frozen=True)
class TraceSummary:
    """A trace at a glance.

    Attributes:
        num_sources: distinct contents among the requests: the units of resampling.
        num_masked: blocks whose labels are not learned from.
        num_bytes: size on disk.
        rows: acceptance over all recorded blocks.
        path: acceptance over the blocks that a run visits from position 0; None for an on-policy trace, whose blocks
            are a run's own.
    """

    num_sources: int
    num_masked: int
    num_bytes: int
    prompt_tokens: int
    output_tokens: int
    rows: PositionCounts
    path: PositionCounts | None

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON-ready data."""
        path = None if self.path is None else self.path.to_json()
        return asdict(self) | {"rows": self.rows.to_json(), "path": path}


def summarise(trace: Trace) -> TraceSummary:
    """Count a trace's blocks; a dense one also along the path from position 0 of each request.

    Dense rows overweight easy positions: a run that accepts much visits few blocks there.
    """
    rows = PositionCounts.zero(trace.card.num_speculative_tokens)
    path = None
    masked = 0
    if trace.card.kind == "dense":
        blocks = trace.blocks()
        per_request = np.bincount(blocks.request, minlength=len(trace.requests))
        visited = walked(per_request, blocks.position, blocks.num_accepted)
        # A run has ended at the last output token, so a block recorded there is on no path.
        visited &= blocks.position < trace.requests["output_len"].to_numpy()[blocks.request] - 1
        path = rows.add(blocks, visited)
        pieces = iter([blocks])
    else:
        pieces = trace.iter_blocks()
    for piece in pieces:
        rows = rows.add(piece)
        masked += 0 if piece.unfit is None else int(piece.unfit.sum())
    return TraceSummary(
        num_sources=trace.requests["source"].n_unique(),
        num_masked=masked,
        num_bytes=sum(file.stat().st_size for file in trace.path.iterdir()),
        prompt_tokens=int(trace.requests["prompt_len"].sum()),
        output_tokens=int(trace.requests["output_len"].sum()),
        rows=rows,
        path=path,
    )
