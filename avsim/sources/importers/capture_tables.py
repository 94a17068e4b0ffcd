"""The tables of a trace from the log of one captured process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from avsim.capture.batch import FIGURES
from avsim.capture.log import Record
from avsim.capture.recovery import CapturedRequest, Recovered
from avsim.sources.schema import BLOCKS, FEATURES, MASK, REQUESTS, STEPS, slot_column
from avsim.types import BoolArray

__all__ = ["Table", "block_frames", "request_frame", "step_frame"]


@dataclass(slots=True)
class Table:
    """A log, where its steps and requests go in the trace, and what of it can be used.

    Attributes:
        kept: numbers of the requests that go into the trace.
        tally: requests as finished, aborted, cut, or dropped (without a block to keep them for).
        left_out: blocks that are not used, by reason.
        num_usable: blocks that are.
    """

    log: Recovered
    first_step: int
    first_request: int
    output_len: NDArray[np.int64]
    kept: list[int] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    num_usable: int = 0

    @classmethod
    def of(cls, log: Recovered, first_step: int, first_request: int) -> Table:
        """Read all blocks of a log once to see which can be used."""
        output_len = np.zeros(max(log.requests, default=-1) + 1, dtype=np.int64)
        for number, request in log.requests.items():
            output_len[number] = request.output_len if request.details else 0
        table = cls(log, first_step, first_request, output_len)
        blocks = np.zeros(len(output_len), dtype=np.int64)
        for record in log.records():
            if "request" in record.arrays:
                usable = table.usable(record, table.left_out)
                blocks += np.bincount(record.arrays["request"][usable], minlength=len(blocks))
        table.num_usable = int(blocks.sum())
        for number, request in sorted(log.requests.items()):
            kind = _kind(request, bool(blocks[number]))
            table.tally[kind] += 1
            if kind != "dropped":
                table.kept.append(number)
        return table

    def usable(self, record: Record, left_out: Counter[str] | None = None) -> BoolArray:
        """Return which blocks of a record belong into a trace, bool `[n]`; count the others."""
        arrays = record.arrays
        length = self.output_len[arrays["request"]]
        bad_feature = ~_good_features(record)
        reasons = {
            "of requests whose beginning was lost": length == 0,
            "past the end of the output": (length > 0) & (arrays["position"] > length - 2),
        }
        unusable = reasons["of requests whose beginning was lost"] | reasons["past the end of the output"]
        reasons["with NaN or impossible features"] = bad_feature & ~unusable
        for reason, found in reasons.items():
            if left_out is not None and found.any():
                left_out[reason] += int(found.sum())
        return ~(unusable | bad_feature)


def request_frame(table: Table) -> pl.DataFrame:
    """Return the request table; every request is a source of its own, as nothing is known of its text."""
    rows = []
    for number in table.kept:
        request = table.log.requests[number]
        details = request.details
        top_p, arrival = details["top_p"], details["arrival_s"]
        rows.append(
            {
                "request": table.first_request + number,
                "source": table.first_request + number,
                "prompt_len": details["prompt_len"],
                "output_len": request.output_len,
                "temperature": details["temperature"],
                "top_p": top_p if top_p is not None and 0 <= top_p <= 1 else None,
                "category": details["category"],
                "arrival_s": arrival if math.isfinite(arrival) and arrival >= 0 else None,
            }
        )
    return pl.DataFrame(rows, schema=dict(REQUESTS))


def step_frame(table: Table) -> pl.DataFrame:
    """Return the step table; unknown sizes and times are null."""
    pieces = [_steps(record, table.first_step) for record in table.log.records() if "steps.step" in record.arrays]
    return pl.concat(pieces) if pieces else pl.DataFrame(schema=dict(STEPS))


def block_frames(table: Table, features: tuple[str, ...], has_mask: bool) -> Iterator[pl.DataFrame]:
    """Yield the usable blocks, a frame per record, each with whole steps.

    Args:
        features: the columns to make, in this order.
        has_mask: whether to make a mask column.
    """
    for record in table.log.records():
        if "request" not in record.arrays:
            continue
        usable = table.usable(record)
        arrays = {name: record.arrays[name][usable] for name in BLOCKS}
        arrays["step"] = arrays["step"] + table.first_step
        arrays["request"] = arrays["request"] + table.first_request
        columns: dict[str, Any] = {name: pl.Series(arrays[name], dtype=dtype) for name, dtype in BLOCKS.items()}
        if has_mask:
            columns[MASK] = _texts(record.arrays["mask"][usable], record.meta["masks"])
        recorded = record.meta["features"]
        values = record.arrays["features"][:, usable]
        no_value = np.full(len(arrays["step"]), np.nan, dtype=np.float32)
        for name in features:
            for slot in range(values.shape[2]):
                # Blocks without any drafted slot may come before the engine has shown its features.
                rows = values[recorded.index(name), :, slot] if name in recorded else no_value
                columns[slot_column(name, slot)] = np.ascontiguousarray(rows)
        yield pl.DataFrame(columns)


def _kind(request: CapturedRequest, has_blocks: bool) -> str:
    if not request.details or request.output_len < 1:
        return "dropped"
    if request.finished and not request.aborted:
        return "finished"
    if not has_blocks:
        return "dropped"
    return "aborted" if request.finished else "cut"


def _good_features(record: Record) -> BoolArray:
    values = record.arrays["features"]
    inside = np.arange(values.shape[2]) < record.arrays["num_drafted"][:, None]
    good = np.ones(values.shape[1], dtype=np.bool_)
    for at, name in enumerate(record.meta["features"]):
        spec = FEATURES.get(name)
        if spec is not None:
            fits = (values[at] >= spec.low) & (values[at] <= spec.high)
            if not spec.required:
                fits |= np.isnan(values[at])
            good &= (fits | ~inside).all(axis=1)
    return good


def _steps(record: Record, first_step: int) -> pl.DataFrame:
    arrays = record.arrays
    columns: dict[str, pl.Series] = {"step": pl.Series(arrays["steps.step"] + first_step, dtype=pl.Int64)}
    for name in (*FIGURES, "forward_ms", "drafter_ms"):
        values = pl.Series(arrays[f"steps.{name}"], dtype=STEPS[name])
        known = np.isfinite(arrays[f"steps.{name}"]) & (arrays[f"steps.{name}"] >= 0)
        columns[name] = values.set(pl.Series(~known), None)
    columns["graph_mode"] = _texts(arrays["steps.graph_mode"], record.meta["graph_modes"])
    return pl.DataFrame(columns).select(list(STEPS))


def _texts(codes: NDArray[np.int16], texts: list[str]) -> pl.Series:
    return pl.Series([None if code < 0 else texts[code] for code in codes.tolist()], dtype=pl.String)
