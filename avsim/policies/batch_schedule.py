"""vLLM's table from batch size to draft depth."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.policies.base import DraftPlan, Policy, StepBatch, StepOutcome
from avsim.types import F64Array, IntArray

__all__ = ["BatchSchedule"]

_RANGE = re.compile(r"(\d+)-(\d*):(\d+)")


@dataclass(frozen=True)
class BatchSchedule(Policy):
    """Draft as deep as a table from batch sizes says, and verify all of it: `batch-schedule:1-32:5/33-128:3/129-:0`.

    vLLM's `num_speculative_tokens_per_batch_size`, written here with a slash between ranges and read by its rules:
    ranges are inclusive, may stand in any order, must not overlap and must begin at 1; sizes between two ranges, and
    past the last, have the depth of the range before; depths are cut to the trace's K.

    The drafts of step t + 1 are made at the end of step t, with the depth for the requests scheduled in step t, all
    of them, prefills included. So the table is read with a batch size `lag` = 1 step old; 2 comes near asynchronous
    scheduling, which still counts requests whose end it has not seen. Before there is a past, it reads the batch at
    hand. Near a boundary the depth then flips with every request that comes or goes (issue #49548; that the flips cost
    throughput was claimed there and withdrawn after controlled runs, #49986). With `hysteresis` = h requests the depth
    changes only once the batch size lies more than h outside the range in force; vLLM has no such option.

    Source: vLLM 0.33 `v1/spec_decode/dynamic/utils.py`, `v1/core/sched/scheduler.py` (PR #32374).
    """

    name: ClassVar[str] = "batch-schedule"
    positional: ClassVar[str | None] = "table"

    table: str
    lag: int = 1
    hysteresis: int = 0

    def __post_init__(self) -> None:
        if self.lag < 0 or self.hysteresis < 0:
            raise InputError(f"{self.name}: lag (steps) and hysteresis (requests) must be at least 0")
        if not self._depths.any():
            raise InputError(f"{self.name}: no range of {self.table!r} drafts; plain decoding is the policy 'none'")

    @property
    def _starts(self) -> IntArray:
        return _parse(self.table)[0]

    @property
    def _depths(self) -> IntArray:
        return _parse(self.table)[1]

    @property
    def plans(self) -> bool:
        return True

    def depth(self, num_speculative_tokens: int) -> int:
        return min(num_speculative_tokens, int(self._depths.max()))

    def memory_size(self, num_speculative_tokens: int) -> int:
        """The last `lag` batch sizes, oldest first, 0 before the start; then 1 + the range in force, or 0."""
        return self.lag + (self.hysteresis > 0)

    def plan(self, plan: DraftPlan) -> IntArray:
        line = self._line(plan.memory, plan.num_reqs)
        return np.minimum(self._depths[line], len(plan.sizing))

    def admit(self, step: StepBatch) -> IntArray:
        return step.num_drafted.copy()

    def remember(self, memory: F64Array, outcome: StepOutcome) -> F64Array:
        rows = [*memory[1 : self.lag], outcome.num_reqs] if self.lag else []
        if self.hysteresis:
            rows.append(self._line(memory, outcome.num_reqs) + 1)
        return np.where(outcome.num_reqs > 0, np.stack([*rows]), memory) if rows else memory

    def _line(self, memory: F64Array | None, num_reqs: IntArray) -> IntArray:
        """Return which range of the table is in force in each step, `[S]`."""
        if memory is None:
            return self._find(num_reqs)
        size = num_reqs
        if self.lag:
            size = np.where(memory[0] > 0, memory[0], num_reqs).astype(np.int64)
        line = self._find(size)
        if not self.hysteresis:
            return line
        held = memory[-1].astype(np.int64) - 1
        low = self._starts[held] - self.hysteresis
        high = np.append(self._starts[1:] - 1, np.iinfo(np.int64).max - self.hysteresis)[held] + self.hysteresis
        return np.where((held >= 0) & (size >= low) & (size <= high), held, line)

    def _find(self, size: IntArray) -> IntArray:
        return np.maximum(np.searchsorted(self._starts, size, side="right") - 1, 0)


@functools.cache
def _parse(table: str) -> tuple[IntArray, IntArray]:
    """Return where each range begins, rising from 1, and its depth.

    >>> [part.tolist() for part in _parse("1-32:5/64-:0")]
    [[1, 64], [5, 0]]
    """
    ranges = []
    for part in table.split("/"):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise InputError(
                f"batch-schedule: cannot read {part!r}; write ranges of batch sizes and their depths as "
                "first-last:depth with a slash between them, such as 1-32:5/33-128:3/129-:0"
            )
        start, depth = int(found[1]), int(found[3])
        ranges.append((start, int(found[2]) if found[2] else None, depth))
    ranges.sort(key=lambda line: line[0])
    reached: int | None = 0
    for start, end, _ in ranges:
        if end is not None and start > end:
            raise InputError(f"batch-schedule: range {start}-{end} ends before it begins")
        if reached is None or start <= reached:
            raise InputError(f"batch-schedule: batch size {start} lies in two ranges of {table!r}")
        reached = end
    if ranges[0][0] != 1:
        raise InputError(f"batch-schedule: the first range must begin at batch size 1, not {ranges[0][0]}")
    return np.array([line[0] for line in ranges]), np.array([line[2] for line in ranges])
