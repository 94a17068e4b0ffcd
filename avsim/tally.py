"""What a simulated run leaves behind: sums over steps, the times of each request, and the steps of its first run."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from avsim.types import BoolArray, F32Array, F64Array, IntArray

__all__ = ["RequestTimes", "StepLog", "StepSums", "Tally", "Totals"]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over steps, one value per run; `emitted` holds the first tokens, which come with the prompts."""

    steps: IntArray
    blocks: IntArray
    drafted: IntArray
    admitted: IntArray
    accepted: IntArray
    emitted: IntArray
    first_tokens: IntArray
    ms: F64Array

    @property
    def throughput_tok_s(self) -> F64Array:
        """Emitted tokens per second over the whole engine, `[runs]`; NaN where no step was counted."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.emitted / self.ms * 1e3

    def pick(self, runs: IntArray) -> Totals:
        """Return the totals of some runs."""
        return Totals(**{item.name: getattr(self, item.name)[runs] for item in fields(self)})


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When each request arrived, got its first token and ended, on its run's clock, ms, float64 `[runs, N]`.

    NaN where that never happened. In a closed loop a request arrives when its seat is free. `tokens` is the length of
    its output, int `[runs, N]`.
    """

    arrival_ms: F64Array
    first_token_ms: F64Array
    end_ms: F64Array
    tokens: IntArray

    @property
    def ttft_ms(self) -> F64Array:
        """Time to first token, queueing included, ms `[runs, N]`."""
        return self.first_token_ms - self.arrival_ms

    @property
    def tpot_ms(self) -> F64Array:
        """Time per output token after the first, ms `[runs, N]`; NaN for a request of one token."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.tokens > 1, (self.end_ms - self.first_token_ms) / (self.tokens - 1), np.nan)


@dataclass(slots=True)
class StepLog:
    """What happened in run 0, step by step.

    Per step `[reqs]` arrays: the blocks (`rows`), who had one verified (`active`), whose first it was (`first`), who
    sits where (`request`), prompt tokens run (`prompt_tokens`), slots drafted, admitted and accepted, tokens emitted;
    confidences `[K, reqs]`; the clock before the step and the step's time. `itl_ms`: times between the emissions of a
    request, one for each verified block. `tpot_ms`: of the requests that ended.
    """

    rows: list[IntArray] = field(default_factory=list)
    request: list[IntArray] = field(default_factory=list)
    prompt_tokens: list[IntArray] = field(default_factory=list)
    drafted: list[IntArray] = field(default_factory=list)
    admitted: list[IntArray] = field(default_factory=list)
    accepted: list[IntArray] = field(default_factory=list)
    active: list[BoolArray] = field(default_factory=list)
    first: list[BoolArray] = field(default_factory=list)
    emitted: list[IntArray] = field(default_factory=list)
    confidence: list[F32Array] = field(default_factory=list)
    start_ms: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    itl_ms: list[F64Array] = field(default_factory=list)
    tpot_ms: list[F64Array] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepSums:
    """One step of every run, summed over its requests, `[runs]` each; `occupied` is the seats taken."""

    occupied: IntArray
    num_reqs: IntArray
    blocks: IntArray
    drafted: IntArray
    admitted: IntArray
    accepted: IntArray
    emitted: IntArray
    first_tokens: IntArray
    loaded: BoolArray
    ms: F64Array


class Tally:
    """The steps of every run; summed over windows at the end."""

    def __init__(self) -> None:
        self.lines: list[StepSums] = []

    def whole(self, copies: int) -> Totals:
        """Sum over all steps."""
        return self._totals(copies, np.stack([line.num_reqs for line in self.lines]) > 0)

    def at_concurrency(self, copies: int, concurrency: int) -> Totals:
        """Sum over the steps with every seat taken."""
        occupied = np.stack([line.occupied for line in self.lines])
        return self._totals(copies, occupied == concurrency)

    def loaded(self, copies: int) -> Totals:
        """Sum over the steps of an open loop in which requests were still to arrive."""
        return self._totals(copies, np.stack([line.loaded for line in self.lines]))

    def _totals(self, copies: int, counted: BoolArray) -> Totals:
        sums = {
            name: np.where(counted, np.stack([getattr(line, name) for line in self.lines]), 0).sum(axis=0) * copies
            for name in ("blocks", "drafted", "admitted", "accepted", "emitted", "first_tokens")
        }
        time = np.where(counted, np.stack([line.ms for line in self.lines]), 0).sum(axis=0)
        return Totals(steps=counted.sum(axis=0), ms=time, **sums)
