"""Checking a whole trace: every value, and the content hash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from avsim.errors import InputError
from avsim.sources.base import Trace, open_trace
from avsim.sources.hashing import ContentHash
from avsim.sources.parquet import frames
from avsim.sources.schema import BLOCKS, MASK, slot_column

__all__ = ["content_hash", "validate_trace"]


def validate_trace(path: str | Path) -> list[str]:
    """Check every row of a trace, and its content hash; memory does not grow with the trace.

    Returns:
        findings: remarks that are no errors, each one line.

    Raises:
        InputError: the first error found, naming file, row and column.
    """
    trace = open_trace(path)
    tally = check_blocks(trace)
    found = content_hash(trace)
    if found != trace.card.content_hash:
        raise InputError(
            f"{trace.path}: the content hash is {found}, but trace.json says {trace.card.content_hash or '(none)'}; "
            f"the files were changed after the trace was written: copy it again"
        )
    return tally.findings(trace)


@dataclass
class Tally:
    """What a pass over all blocks found."""

    masked: int = 0
    jumps: int = 0
    trimmed: int = 0
    idle_requests: int = 0

    def findings(self, trace: Trace) -> list[str]:
        """Return the remarks, each one line."""
        card = trace.card
        shared = len(trace.requests) - trace.requests["source"].n_unique()
        untold = self.trimmed and not card.adaptive_verification
        remarks = {
            f"{self.masked} of {trace.num_blocks} blocks are masked: their labels are not learned from": self.masked,
            f"{self.jumps} blocks start after the end of their request's block before: some are missing": self.jumps,
            f"{self.trimmed} blocks were trimmed although trace.json says adaptive_verification is off": untold,
            f"{self.idle_requests} requests have no block": self.idle_requests,
            f"{shared} requests repeat the content of another: they are one unit when resampling": shared,
            "slots past the end of an output are absent: replay charges them as rejected": not card.complete_blocks,
            "blocks at the last output token are present: no request goes on from there": card.past_end_blocks,
            "the trace is synthetic: results hold for its law only": card.synthetic,
        }
        return [text for text, present in remarks.items() if present]


def check_blocks(trace: Trace) -> Tally:
    """Read every block with every feature through the row checks, and the step table."""
    tally = Tally()
    steps = trace.steps()
    known_steps = None if steps is None else steps["step"].to_numpy()
    ends = np.full(len(trace.requests), -1, dtype=np.int64)
    for blocks in trace.chunks(trace.features):
        tally.masked += 0 if blocks.unfit is None else int(blocks.unfit.sum())
        tally.trimmed += int((blocks.num_admitted < blocks.num_drafted).sum())
        if blocks.step is not None:
            order = np.argsort(blocks.request, kind="stable")
            request, position = blocks.request[order], blocks.position[order]
            after = position + blocks.num_accepted[order] + 1
            first = np.concatenate([[True], request[1:] != request[:-1]])
            expected = np.concatenate([[-1], after[:-1]])
            expected[first] = ends[request[first]]
            tally.jumps += int((position > expected)[expected >= 0].sum())
            ends[request] = after  # the last write wins, and rows are in order within a request
            if known_steps is not None and (unknown := ~np.isin(blocks.step, known_steps)).any():
                raise InputError(
                    f"{trace.path / 'steps.parquet'}: step {blocks.step[unknown][0]} of the blocks is missing; add it, "
                    f"or leave the table out"
                )
        else:
            ends[blocks.request] = 0
    tally.idle_requests = int(((ends < 0) & (trace.requests["output_len"].to_numpy() > 1)).sum())
    return tally


def content_hash(trace: Trace) -> str:
    """Return the hash of a trace's tables; see `ContentHash`."""
    digest = ContentHash()
    digest.update("requests", trace.requests)
    if (steps := trace.steps()) is not None:
        digest.update("steps", steps)
    columns = [name for name in BLOCKS if name != "step" or trace.card.kind == "on-policy"]
    columns += [MASK] if trace.has_mask else []
    columns += [slot_column(name, k) for name in trace.features for k in range(trace.card.num_speculative_tokens)]
    for part in trace.parts:
        for frame in frames(part, columns):
            floats = [pl.col(name).cast(pl.Float32) for name in columns if frame.schema[name] == pl.Float64]
            digest.update("blocks", frame.with_columns(floats))
    return digest.hexdigest()
