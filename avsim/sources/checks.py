"""Checks of a trace's values. They run whenever rows are read, so that bad data never becomes a wrong number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from avsim.errors import InputError
from avsim.sources.card import TraceCard
from avsim.sources.schema import FEATURES, REQUIRED_OF_REQUESTS, slot_column
from avsim.types import BoolArray, F32Array, IntArray

__all__ = ["RowChecker", "check_requests", "check_steps"]

Locate = Callable[[int], str]
"""Row of a chunk to `file row n`."""


def check_requests(requests: pl.DataFrame, where: str) -> None:
    """Check the values of a request table.

    Raises:
        InputError: no requests, a null or non-finite required value, a duplicate id, or a length out of range.
    """
    if requests.is_empty():
        raise InputError(f"{where}: no requests; a trace needs at least one")
    for name in REQUIRED_OF_REQUESTS:
        _refuse(requests[name].is_null().to_numpy(), requests[name], where, "must not be null")
    _refuse(requests["request"].is_duplicated().to_numpy(), requests["request"], where, "is a duplicate id")
    _refuse((requests["prompt_len"] < 0).to_numpy(), requests["prompt_len"], where, "must be ≥ 0")
    _refuse((requests["output_len"] < 1).to_numpy(), requests["output_len"], where, "must be ≥ 1; drop the request")
    for name, low, high in (("temperature", 0.0, np.inf), ("top_p", 0.0, 1.0), ("arrival_s", 0.0, np.inf)):
        values = requests[name].to_numpy()
        known = requests[name].is_not_null().to_numpy()
        inside = np.isfinite(values) & (values >= low) & (values <= high)
        limit = f" and ≤ {high:g}" if np.isfinite(high) else ""
        _refuse(known & ~inside, requests[name], where, f"must be finite, ≥ {low:g}{limit}")


def check_steps(steps: pl.DataFrame, where: str) -> None:
    """Check the values of a step table: steps rise from ≥ 0, sizes and times are finite and ≥ 0.

    Raises:
        InputError: a value breaks that.
    """
    _refuse(steps["step"].is_null().to_numpy(), steps["step"], where, "must not be null")
    step = steps["step"].to_numpy()
    _refuse(step < 0, steps["step"], where, "must be ≥ 0")
    _refuse(np.diff(step, prepend=-1) <= 0, steps["step"], where, "must rise from row to row; sort the table")
    for column in steps.get_columns():
        if column.dtype.is_numeric():
            values = column.to_numpy()
            known = column.is_not_null().to_numpy()
            _refuse(known & ~(np.isfinite(values) & (values >= 0)), column, where, "must be finite and ≥ 0")


def _refuse(bad: NDArray[np.bool_], column: pl.Series, where: str, rule: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise InputError(f"{where} row {row}, column {column.name}: {column[row]} {rule}")


@dataclass
class RowChecker:
    """Checks blocks chunk by chunk, in the order of the trace; it remembers what the next chunk must follow."""

    card: TraceCard
    output_len: IntArray
    ids: IntArray
    _rows_seen: int = 0
    _last: tuple[int, int] = (-1, -1)
    _last_position: IntArray = field(init=False)
    _block_start: IntArray = field(init=False)
    _id_order: IntArray | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        # A dense trace is determined by its request table: which block each row must be is known beforehand.
        counts = self.output_len - 1 + self.card.past_end_blocks
        self._block_start = np.concatenate([[0], np.cumsum(counts)])
        self._last_position = np.full(len(self.ids), -1, dtype=np.int64)
        if not np.array_equal(self.ids, np.arange(len(self.ids))):
            self._id_order = np.argsort(self.ids, kind="stable")

    def request_rows(self, request: IntArray, locate: Locate) -> IntArray:
        """Turn request ids into rows of the request table.

        Raises:
            InputError: an id is not in the table.
        """
        rows = request
        if self._id_order is not None:
            at = np.searchsorted(self.ids, request, sorter=self._id_order)
            rows = self._id_order[np.minimum(at, len(self.ids) - 1)]
            unknown = self.ids[rows] != request
        else:
            unknown = (request < 0) | (request >= len(self.ids))
        if unknown.any():
            row = int(unknown.argmax())
            raise InputError(
                f"{locate(row)}, column request: id {request[row]} is not in requests.parquet; add it or drop the block"
            )
        return rows

    def counts(self, drafted: IntArray, admitted: IntArray, accepted: IntArray, locate: Locate) -> None:
        """Check 0 ≤ accepted ≤ admitted ≤ drafted ≤ K, and that a dense trace admits all it drafted."""
        num_slots = self.card.num_speculative_tokens
        bad = (accepted < 0) | (accepted > admitted) | (admitted > drafted) | (drafted > num_slots)
        if bad.any():
            row = int(bad.argmax())
            raise InputError(
                f"{locate(row)}, columns num_accepted, num_admitted, num_drafted: {accepted[row]}, {admitted[row]}, "
                f"{drafted[row]}; they must satisfy 0 ≤ accepted ≤ admitted ≤ drafted ≤ K = {num_slots}"
            )
        if self.card.kind == "dense" and (admitted != drafted).any():
            row = int((admitted != drafted).argmax())
            raise InputError(
                f"{locate(row)}, column num_admitted: {admitted[row]} of {drafted[row]} drafted; a dense trace "
                f"verifies every drafted slot, so record it as on-policy"
            )

    def order(self, rows: IntArray, position: IntArray, step: IntArray | None, locate: Locate) -> None:
        """Check positions, and that blocks come in order: by (request, position), or by (step, request).

        Raises:
            InputError: a position outside its output, a duplicate, a missing or a misplaced block.
        """
        last = self.output_len[rows] - 2 + self.card.past_end_blocks
        bad = (position < 0) | (position > last)
        if bad.any():
            row = int(bad.argmax())
            raise InputError(
                f"{locate(row)}, column position: {position[row]} is outside 0 … {last[row]} for request "
                f"{self.ids[rows[row]]} of output_len {self.output_len[rows[row]]}; it is the index of the last token "
                f"already emitted"
            )
        if len(rows):
            if step is None:
                self._dense_order(rows, position, locate)
            else:
                self._step_order(rows, position, step, locate)
        self._rows_seen += len(rows)

    def finish(self, where: str) -> None:
        """Check, after the last chunk, that no block is missing at the end of a dense trace.

        Raises:
            InputError: blocks are missing.
        """
        if self.card.kind == "dense" and self._rows_seen < self._block_start[-1]:
            raise InputError(f"{where}: the blocks end before {self._expected(self._rows_seen)}{_DENSE_RULE}")
        if self._rows_seen == 0:
            raise InputError(f"{where}: the trace has no blocks")

    def _expected(self, row: int) -> str:
        request = int(np.searchsorted(self._block_start, row, side="right")) - 1
        return f"request {self.ids[request]}, position {row - self._block_start[request]}"

    def _dense_order(self, rows: IntArray, position: IntArray, locate: Locate) -> None:
        index = self._block_start[rows] + position
        wrong = index != np.arange(self._rows_seen, self._rows_seen + len(rows))
        if not wrong.any():
            self._last = (int(rows[-1]), int(position[-1]))
            return
        row = int(wrong.argmax())
        here = (int(rows[row]), int(position[row]))
        before = (int(rows[row - 1]), int(position[row - 1])) if row else self._last
        block = f"request {self.ids[here[0]]}, position {here[1]}"
        if here == before:
            raise InputError(f"{locate(row)}, columns request, position: {block} is a duplicate block; drop one")
        if here < before:
            raise InputError(
                f"{locate(row)}, columns request, position: {block} is a duplicate or out of order; sort blocks by the "
                f"order of requests.parquet, then by position"
            )
        raise InputError(
            f"{locate(row)}, column position: {self._expected(self._rows_seen + row)} is missing{_DENSE_RULE}"
        )

    def _step_order(self, rows: IntArray, position: IntArray, step: IntArray, locate: Locate) -> None:
        last_step, last_row = self._last
        falls = (step[1:] < step[:-1]) | ((step[1:] == step[:-1]) & (rows[1:] <= rows[:-1]))
        if step[0] < max(last_step, 0) or (step[0] == last_step and rows[0] <= last_row) or falls.any():
            self._refuse_step(rows, step, locate)
        # uint16 keys are radix-sorted; in one chunk the live requests nearly always span less than 65536.
        key = rows - rows.min()
        by_request = np.argsort(key.astype(np.uint16) if key.max() < 1 << 16 else key, kind="stable")
        sorted_rows, sorted_position = rows[by_request], position[by_request]
        first = np.concatenate([[True], sorted_rows[1:] != sorted_rows[:-1]])
        before = np.concatenate([[-1], sorted_position[:-1]])
        before[first] = self._last_position[sorted_rows[first]]
        if (bad := sorted_position <= before).any():
            row = int(by_request[bad].min())
            raise InputError(
                f"{locate(row)}, columns request, position: request {self.ids[rows[row]]} is at position "
                f"{position[row]} again or goes back to it; positions of a request rise from step to step"
            )
        final = np.concatenate([first[1:], [True]])
        self._last_position[sorted_rows[final]] = sorted_position[final]
        self._last = (int(step[-1]), int(rows[-1]))

    def _refuse_step(self, rows: IntArray, step: IntArray, locate: Locate) -> None:
        before_step = np.concatenate([[self._last[0]], step[:-1]])
        before_rows = np.concatenate([[self._last[1]], rows[:-1]])
        if (bad := (step < 0) | (step < before_step)).any():
            row = int(bad.argmax())
            what = f"{step[row]} is negative" if step[row] < 0 else f"{step[row]} comes after {before_step[row]}"
            raise InputError(f"{locate(row)}, column step: {what}; steps start at ≥ 0 and never fall")
        row = int(((step == before_step) & (rows <= before_rows)).argmax())
        raise InputError(
            f"{locate(row)}, column request: request {self.ids[rows[row]]} is a duplicate or out of order in step "
            f"{step[row]}; a step holds each request once, in the order of requests.parquet"
        )


_DENSE_RULE = "; a dense trace has a block at every output position (record partial ones as on-policy)"


def check_feature(values: F32Array, drafted: IntArray, feature: str, slot: int, locate: Locate) -> None:
    """Check one slot's values of a feature, and set them to NaN in place where the slot was not drafted.

    Raises:
        InputError: a drafted slot has NaN (unless the feature is one of the target), ±inf, or is out of range.
    """
    spec = FEATURES[feature]
    if not len(values):
        return
    inside: BoolArray | None = None
    if drafted.min() <= slot:
        inside = drafted > slot
        values[~inside] = np.nan
    elif values.min() >= spec.low and values.max() <= spec.high:
        return
    bad = ~((values >= spec.low) & (values <= spec.high))
    if inside is not None:
        bad &= inside
    if not spec.required:
        bad &= ~np.isnan(values)
    if bad.any():
        row = int(bad.argmax())
        rule = (
            "every drafted slot needs a finite value; drop the feature or the blocks"
            if not np.isfinite(values[row])
            else f"{feature} lies in {spec.low:g} … {spec.high:g}"
        )
        raise InputError(f"{locate(row)}, column {slot_column(feature, slot)}: {values[row]} in a drafted slot; {rule}")
