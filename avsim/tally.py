"""What a simulated run leaves behind: sums over steps, the times of each request, and the steps of its first run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from avsim.types import BoolArray, F32Array, F64Array, IntArray

__all__ = ["RequestTimes", "StepLog", "StepSums", "Tally", "Totals", "Work"]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over steps, one value per run; `emitted` holds the first tokens, which come with the prompts.

    `ms` is the time of the window, idle time included.
    """

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
    """When each request arrived, was seated, got its first token and ended, on its run's clock: ms, float `[runs, N]`.

    NaN where that never happened. In a closed loop a request arrives when its seat is free. `tokens` is the length of
    its output, int `[runs, N]`, 0 past the end of a sequence.
    """

    arrival_ms: F64Array
    seated_ms: F64Array
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

    @property
    def waiting_ms(self) -> F64Array:
        """Time between arrival and a seat, ms `[runs, N]`."""
        return self.seated_ms - self.arrival_ms

    def tpot_ms_of(self, run: int, turn: IntArray) -> F64Array:
        """Return `tpot_ms` of some requests of a run, without those of one token."""
        turn = turn[self.tokens[run, turn] > 1]
        return (self.end_ms[run, turn] - self.first_token_ms[run, turn]) / (self.tokens[run, turn] - 1)

    def behind(self, clients: int) -> RequestTimes:
        """Return the times as `clients` see them who each ask again once answered, though fewer seats serve them.

        The first `clients` requests arrive at 0, and each other one when one more has ended; the order of service is
        the same.
        """
        arrived = np.zeros_like(self.arrival_ms)
        ended = np.sort(np.where(self.tokens > 0, self.end_ms, np.inf), axis=1)
        later = max(arrived.shape[1] - clients, 0)
        arrived[:, clients:] = ended[:, :later]
        return replace(self, arrival_ms=np.where(self.tokens > 0, arrived, np.nan))

    def mean_number(self, start: str, end: str, low: F64Array, high: F64Array) -> F64Array:
        """Return the mean number of requests between two of their times over a stretch of each run's clock, `[runs]`.

        Args:
            start, end: names of times, `"arrival_ms"` and `"seated_ms"` for those who wait, say.
            low, high: the stretch, ms `[runs]`.
        """
        begun, over = getattr(self, start), getattr(self, end)
        inside = np.minimum(over, high[:, None]) - np.maximum(begun, low[:, None])
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.nansum(np.maximum(inside, 0.0), axis=1) / (high - low)


@dataclass(frozen=True, slots=True)
class Work:
    """What the engine did in a window of steps, one value per run.

    Attributes:
        reqs: requests scheduled, summed over steps.
        tokens: rows of the target's forward passes: prompt tokens, bonus tokens and verified slots.
        padded_tokens: the same after padding to captured sizes, where the cost model knows them; else equal.
        prompt_tokens: those of prompts.
        most_scheduled: tokens of the largest step as it was scheduled, before drafts were trimmed; of the whole run.
        busy_ms: time in steps; what is left of the window's time went by idle.
    """

    reqs: IntArray
    tokens: IntArray
    padded_tokens: IntArray
    prompt_tokens: IntArray
    most_scheduled: IntArray
    busy_ms: F64Array

    def pick(self, runs: IntArray) -> Work:
        """Return the work of some runs."""
        return Work(**{item.name: getattr(self, item.name)[runs] for item in fields(self)})


@dataclass(slots=True)
class StepLog:
    """What happened in run 0, step by step.

    Per step `[reqs]` arrays: the blocks (`rows`), who had one verified (`active`), whose first it was (`first`), who
    sits where (`request`, and `turn` in the sequence), prompt tokens run (`prompt_tokens`), slots drafted, admitted and
    accepted, tokens emitted; confidences `[K, reqs]`. Per step: the depth that was drafted, the clock before the step,
    and the step's time. `itl_ms`: times between the emissions of a request, one for each verified block. `tpot_ms`: of
    the requests that ended.
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
    turn: list[IntArray] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    start_ms: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    itl_ms: list[F64Array] = field(default_factory=list)
    tpot_ms: list[F64Array] = field(default_factory=list)


@dataclass(slots=True)
class StepSums:
    """One step of every run, summed over its requests, `[runs]` each; or several steps, `[steps, runs]`.

    `occupied` is the seats taken, `tokens` the rows of the target, `scheduled` the same before drafts were trimmed,
    `loaded` whether requests were still to be seated, `ms` the step's time and `idle_ms` the time without work before.
    """

    occupied: IntArray
    num_reqs: IntArray
    blocks: IntArray
    drafted: IntArray
    admitted: IntArray
    accepted: IntArray
    emitted: IntArray
    first_tokens: IntArray
    tokens: IntArray
    scheduled: IntArray
    prompt_tokens: IntArray
    loaded: BoolArray
    ms: F64Array
    idle_ms: F64Array


class Tally:
    """The steps of every run; summed over windows at the end.

    Args:
        runs: how many there are.
        copies: identical copies that each request stands for.
        pad: what the target's rows are padded to, where that is known.
    """

    def __init__(self, runs: int, copies: int = 1, pad: Callable[[IntArray], IntArray] | None = None) -> None:
        self.lines: list[StepSums] = []
        self.runs, self.copies, self.pad = runs, copies, pad
        self._columns: dict[str, Any] = {}

    def whole(self) -> tuple[Totals, Work]:
        """Sum over all steps, and over all idle time."""
        totals, work = self._sums(self._column("num_reqs") > 0)
        return replace(totals, ms=work.busy_ms + self._column("idle_ms").sum(axis=0)), work

    def at_concurrency(self, concurrency: int) -> tuple[Totals, Work]:
        """Sum over the steps with every seat taken."""
        return self._sums(self._column("occupied") == concurrency)

    def loaded(self) -> tuple[Totals, Work]:
        """Sum over the steps of an open loop in which requests were still to be seated."""
        return self._sums(self._column("loaded") > 0)

    def _column(self, name: str) -> Any:
        if name not in self._columns:
            values = [getattr(line, name) for line in self.lines]
            lines = np.concatenate(values) if values else np.zeros(0, dtype=np.int64)
            self._columns[name] = lines.reshape(-1, self.runs)
        return self._columns[name]

    def _sums(self, counted: BoolArray) -> tuple[Totals, Work]:
        def total(column: Any) -> Any:
            return np.where(counted, column, 0).sum(axis=0)

        tokens = self._column("tokens") * self.copies
        counts = {
            name: total(self._column(name)) * self.copies
            for name in ("blocks", "drafted", "admitted", "accepted", "emitted", "first_tokens")
        }
        busy = total(self._column("ms"))
        work = Work(
            reqs=total(self._column("num_reqs")) * self.copies,
            tokens=total(tokens),
            padded_tokens=total(tokens if self.pad is None else self.pad(tokens)),
            prompt_tokens=total(self._column("prompt_tokens")) * self.copies,
            most_scheduled=self._column("scheduled").max(axis=0, initial=0) * self.copies,
            busy_ms=busy,
        )
        return Totals(steps=counted.sum(axis=0), ms=busy + total(self._column("idle_ms")), **counts), work
