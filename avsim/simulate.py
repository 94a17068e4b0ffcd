"""The closed loop: C concurrent requests walk a dense trace under one policy, many runs in lockstep.

    observe last step → predict → size → allocate → verify → advance → clock

Runs are independent replicates (bootstrap samples, say) of the same arm and load; they share nothing but the
array operations. All arrays of a step are `[runs, reqs]`, per-slot arrays `[K, runs, reqs]`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import numpy as np

from avsim.confidence import ClosedLoopConfidence
from avsim.costs.base import CostModel, CostTables, StepShape
from avsim.errors import InputError
from avsim.estimators.base import Estimator, EstimatorState
from avsim.policies.base import NO_LOGIT_LIMIT, Policy, StepBatch
from avsim.types import BoolArray, F32Array, F64Array, IntArray
from avsim.workload import Pool, keyed_uniform

__all__ = ["Arm", "ClosedLoopResult", "StepLog", "Totals", "simulate"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of serving: a policy, the estimator that it reads, and how old its sizing confidences are.

    `lag` counts records: 1 is vLLM (a block is sized by the confidences of the request's block before it), 0 sizes
    on the live confidences. A request's first `lag` blocks are sized at 1. `uncensored`: the estimator learns from
    every slot that a verdict reaches at full admission; no engine can, it is there to price censoring.
    """

    policy: Policy
    estimator: Estimator | None = None
    lag: int = 1
    uncensored: bool = False

    def __post_init__(self) -> None:
        if self.policy.uses_confidence and self.estimator is None:
            raise InputError(f"policy {self.policy.name} needs an estimator")
        if self.lag < 0:
            raise InputError(f"lag must be at least 0, not {self.lag}")


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over steps, one value per run."""

    steps: IntArray
    blocks: IntArray
    drafted: IntArray
    admitted: IntArray
    accepted: IntArray
    emitted: IntArray
    ms: F64Array

    @property
    def throughput_tok_s(self) -> F64Array:
        """Emitted tokens per second over the whole engine, `[runs]`; NaN where no step was counted."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.emitted / self.ms * 1e3

    def pick(self, runs: IntArray) -> Totals:
        """Return the totals of some runs."""
        return Totals(**{item.name: getattr(self, item.name)[runs] for item in fields(self)})


@dataclass(slots=True)
class StepLog:
    """What happened in run 0, step by step: `[reqs]` arrays, confidences `[K, reqs]`, and finished requests."""

    rows: list[IntArray] = field(default_factory=list)
    admitted: list[IntArray] = field(default_factory=list)
    active: list[BoolArray] = field(default_factory=list)
    first: list[BoolArray] = field(default_factory=list)
    emitted: list[IntArray] = field(default_factory=list)
    confidence: list[F32Array] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    tpot_ms: list[F64Array] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ClosedLoopResult:
    """Totals over the steps at full concurrency and over the whole run, per run, and the estimators' final states."""

    full: Totals
    whole: Totals
    states: list[EstimatorState]
    log: StepLog | None


def simulate(
    pool: Pool,
    arm: Arm,
    sequences: IntArray,
    concurrency: int,
    truth: CostModel,
    *,
    belief: CostModel | None = None,
    states: Sequence[EstimatorState] | None = None,
    max_total_logits: int = NO_LOGIT_LIMIT,
    prompts: Literal["free", "own-step"] = "free",
    copies: int = 1,
    max_steps: int | None = None,
    first_position: int = 0,
    log: bool = False,
) -> ClosedLoopResult:
    """Serve request sequences at fixed concurrency until they are drained.

    Args:
        pool: the requests and their drafts.
        arm: policy, estimator and lag.
        sequences: request indices in order of service, int `[runs, N]`, −1 past the end.
        concurrency: C, requests served at once; a finished one is replaced by the next of the sequence.
        truth: the clock.
        belief: the cost model that the policy reads; None for the truth. Oracles always read the truth.
        states: the estimator state to start from, one per run; None for a cold start.
        max_total_logits: see `StepBatch`.
        prompts: `free` charges nothing for prefill (token 0 of an output comes with it); `own-step` runs the
            prompts that enter as one forward pass before the next step.
        copies: serve every request as this many identical copies, which count as one row here. Only for policies
            that treat each request alone.
        max_steps: stop early.
        first_position: output position at which requests begin; those that are over before are left out.
        log: keep every step of run 0.

    Raises:
        InputError: concurrency or copies below 1, or copies with a policy that ranks across requests.
    """
    if concurrency < 1 or copies < 1:
        raise InputError(f"concurrency and copies must be at least 1, not {concurrency} and {copies}")
    if copies > 1 and not arm.policy.separable:
        raise InputError(f"copies > 1 would tie every ranking of policy {arm.policy.name}")
    runs, num_slots = len(sequences), arm.policy.depth(pool.num_slots)
    reader = truth if belief is None or arm.policy.uses_truth else belief
    tables = _tables(reader, pool, concurrency, num_slots)
    seats = _Seats(pool, sequences, concurrency, first_position)
    confidence = None
    if arm.policy.uses_confidence and arm.estimator is not None:
        start = states or [arm.estimator.start(num_slots)] * runs
        confidence = ClosedLoopConfidence(arm.estimator, pool, start, num_slots, concurrency, arm.uncensored)
    history: deque[F32Array] = deque(maxlen=arm.lag)
    unread = np.broadcast_to(np.float32(1), (num_slots, runs, concurrency))
    tally, prefill = _Tally(), np.zeros((2, runs))
    kept = StepLog() if log else None
    clock, idle, nothing = np.zeros(runs), np.zeros(runs), np.zeros(runs, dtype=np.int64)
    steps = 0
    while seats.any_active and (max_steps is None or steps < max_steps):
        if prompts == "own-step" and seats.entering.any():
            prefill += (charged := _prefill(truth, seats, copies))
            clock += charged[0]
        rows, active, num_reqs, remaining = seats.rows, seats.active, seats.num_active, seats.remaining
        live = confidence.predict(rows, seats.age == 0) if confidence is not None else unread
        drafted = np.where(active, np.minimum(pool.num_drafted[rows], num_slots), 0)
        truth_accepted = pool.num_accepted[rows]
        batch = StepBatch(
            live,
            _sizing(live, history, seats.age, arm.lag),
            drafted,
            num_reqs,
            num_reqs,
            num_reqs,
            tables,
            truth_accepted if arm.policy.uses_truth else None,
            remaining if arm.policy.uses_truth else None,
            max_total_logits,
            keyed_uniform(rows, seats.turn) if arm.policy.explores else None,
        )
        admitted = arm.policy.admit(batch)
        accepted = np.minimum(truth_accepted, admitted)  # 0 in an empty seat, which admits nothing
        emitted = np.where(active, np.minimum(accepted + 1, remaining), 0)
        verified = admitted.sum(axis=1)
        shape = StepShape(
            num_reqs * copies,
            (num_reqs + verified) * copies,
            seats.kv_tokens * copies if truth.uses_kv else idle,
            nothing,
        )
        ms = np.where(num_reqs > 0, truth.step_ms(shape, drafting=arm.policy.drafts), 0.0)
        clock += ms
        tally.lines.append((num_reqs, drafted.sum(axis=1), verified, accepted.sum(axis=1), emitted.sum(axis=1), ms))
        if kept is not None:
            _keep(kept, rows, admitted, active, seats.age == 0, emitted, live if confidence is not None else None, ms)
        if confidence is not None:
            confidence.record(rows, admitted, active)
            history.append(live)
        tpot = seats.advance(emitted, clock, kept is not None)
        if kept is not None and len(tpot):
            kept.tpot_ms.append(tpot)
        steps += 1
    whole = tally.totals(copies)
    whole = replace(whole, ms=whole.ms + prefill[0], emitted=whole.emitted + prefill[1].astype(np.int64))
    full = tally.totals(copies, concurrency)
    return ClosedLoopResult(full, whole, confidence.finish() if confidence is not None else [], kept)


class _Seats:
    """Which request sits in which of the C places of each run, and how far it has come."""

    def __init__(self, pool: Pool, sequences: IntArray, concurrency: int, first_position: int = 0):
        self.pool = pool
        self.sequences = sequences
        self.first_position = first_position
        self.length = (sequences >= 0).sum(axis=1)
        runs = len(sequences)
        shape = (runs, concurrency)
        self.taken = np.zeros(runs, dtype=np.int64)
        self.request = np.zeros(shape, dtype=np.int64)
        self.position = np.zeros(shape, dtype=np.int64)
        self.last = np.zeros(shape, dtype=np.int64)
        self.age = np.zeros(shape, dtype=np.int64)
        self.turn = np.zeros(shape, dtype=np.int64)
        self.since = np.zeros(shape)
        self.base = np.zeros(shape, dtype=np.int64)
        self.prompt = np.zeros(shape, dtype=np.int64)
        self.active = np.zeros(shape, dtype=bool)
        self.entering = np.zeros(shape, dtype=bool)
        self._fill(np.ones(shape, dtype=bool), np.zeros(runs))

    @property
    def rows(self) -> IntArray:
        return np.where(self.active, self.base + self.position, 0)

    @property
    def remaining(self) -> IntArray:
        """Output tokens still to come, at least 1; 1 in an empty seat."""
        return np.where(self.active, self.last - self.position, 1)

    @property
    def kv_tokens(self) -> F64Array:
        held = np.where(self.active, self.prompt + self.position + 1, 0)
        return held.sum(axis=1).astype(np.float64)

    def advance(self, emitted: IntArray, clock: F64Array, timed: bool) -> F64Array:
        """Move every request by what it emitted and seat the next ones; return the TPOT of run 0's that finish."""
        self.position += emitted
        self.age += 1
        self.entering[:] = False
        finished = self.active & (self.position >= self.last)
        if not finished.any():
            return np.zeros(0)
        seat = np.flatnonzero(finished[0]) if timed else np.zeros(0, dtype=np.int64)
        tpot = (clock[0] - self.since[0, seat]) / self.last[0, seat]
        self._fill(finished, clock)
        return tpot

    def _fill(self, empty: BoolArray, clock: F64Array) -> None:
        """Seat the next requests in the empty places, in seat order; a request of one token never needs a seat."""
        self.active = self.active & ~empty  # a new array: what was handed out stays as it was
        pending = empty
        while pending.any():
            turn = self.taken[:, None] + np.cumsum(pending, axis=1) - 1
            seated = pending & (turn < self.length[:, None])
            run, seat = np.nonzero(seated)
            self.taken += seated.sum(axis=1)
            self.turn[run, seat] = turn[run, seat]
            request = self.sequences[run, turn[run, seat]]
            self.request[run, seat] = request
            self.base[run, seat] = self.pool.start[request]
            self.prompt[run, seat] = self.pool.prompt_len[request]
            self.last[run, seat] = self.pool.output_len[request] - 1
            self.position[run, seat] = self.first_position
            self.age[run, seat] = 0
            self.since[run, seat] = clock[run]
            long = self.pool.output_len[request] > 1 + self.first_position
            self.active[run[long], seat[long]] = True
            self.entering[run[long], seat[long]] = True
            pending = np.zeros_like(pending)
            pending[run[~long], seat[~long]] = True
        self.num_active = self.active.sum(axis=1)
        self.any_active = bool(self.num_active.any())


def _sizing(live: F32Array, history: deque[F32Array], age: IntArray, lag: int) -> F32Array:
    if lag == 0:
        return live
    if len(history) < lag:
        return np.ones_like(live)
    return np.where(age >= lag, history[0], np.float32(1))


def _tables(model: CostModel, pool: Pool, concurrency: int, num_slots: int) -> CostTables:
    kv = float((pool.prompt_len + pool.output_len / 2).mean())
    return model.tables(concurrency, concurrency * (num_slots + 1), kv_tokens_per_req=kv)


def _prefill(truth: CostModel, seats: _Seats, copies: int) -> F64Array:
    """Return `[2, runs]`: the time of running the prompts that enter, and the first tokens that come with it."""
    tokens = np.where(seats.entering, seats.prompt, 0).sum(axis=1) * copies
    reqs = seats.entering.sum(axis=1) * copies
    waiting = np.where(seats.active & ~seats.entering, seats.prompt + seats.position + 1, 0).sum(axis=1) * copies
    shape = StepShape(reqs, tokens, waiting.astype(np.float64), tokens)
    return np.stack([np.where(reqs > 0, truth.step_ms(shape, drafting=False), 0.0), reqs.astype(np.float64)])


class _Tally:
    """What each step did in sum, `[runs]` each; summed over windows at the end."""

    def __init__(self) -> None:
        self.lines: list[tuple[IntArray, IntArray, IntArray, IntArray, IntArray, F64Array]] = []

    def totals(self, copies: int, at_concurrency: int | None = None) -> Totals:
        """Sum over all steps with requests, or over those with `at_concurrency` requests only."""
        num_reqs, drafted, admitted, accepted, emitted, ms = (
            np.stack(column) for column in zip(*self.lines, strict=True)
        )
        counted = num_reqs > 0 if at_concurrency is None else num_reqs == at_concurrency
        blocks = np.where(counted, num_reqs, 0).sum(axis=0) * copies
        drafted, admitted, accepted, emitted = (
            np.where(counted, column, 0).sum(axis=0) * copies for column in (drafted, admitted, accepted, emitted)
        )
        steps = counted.sum(axis=0)
        time = np.where(counted, ms, 0).sum(axis=0)
        return Totals(steps, blocks, drafted, admitted, accepted, emitted, time)


def _keep(
    log: StepLog,
    rows: IntArray,
    admitted: IntArray,
    active: BoolArray,
    first: BoolArray,
    emitted: IntArray,
    live: F32Array | None,
    ms: F64Array,
) -> None:
    if not active[0].any():
        return
    log.rows.append(rows[0])
    log.admitted.append(admitted[0])
    log.active.append(active[0])
    log.first.append(first[0])
    log.emitted.append(emitted[0])
    log.ms.append(float(ms[0]))
    if live is not None:
        log.confidence.append(live[:, 0].copy())
