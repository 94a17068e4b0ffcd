"""One simulated engine, step by step: who is served next, what is drafted and verified, and how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from avsim.confidence import ClosedLoopConfidence
from avsim.costs.base import CostModel, CostTables, StepShape
from avsim.costs.cliff import padding
from avsim.estimators.base import EstimatorState
from avsim.policies.base import DraftPlan, StepBatch, StepOutcome
from avsim.seats import Schedule, Seats
from avsim.sizing import Sizing
from avsim.tally import StepLog, StepSums, Tally
from avsim.types import F32Array, F64Array, IntArray
from avsim.workload import keyed_uniform

if TYPE_CHECKING:
    from avsim.simulate import Arm

__all__ = ["Limits", "Serving"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine does with prompts and how much it takes at once; see `simulate`."""

    max_total_logits: int
    own_step: bool
    token_budget: int | None
    chunked: bool
    copies: int


@dataclass(slots=True)
class _Load:
    """What a step is asked to do, `[runs]` each; `decoding` are requests that have a block verified."""

    num_reqs: IntArray
    decoding: IntArray
    first_tokens: IntArray
    prompt_tokens: IntArray
    sampling: IntArray
    target_tokens: IntArray


@dataclass(slots=True)
class _Verdict:
    """What came of it, `[runs, seats]`, and the admitted slots of each run."""

    admitted: IntArray
    accepted: IntArray
    emitted: IntArray
    verified: IntArray


class Serving:
    """All runs of a simulation on their way: the seats, and what policy and estimator know so far.

    Attributes:
        seats, confidence, tally, log: who sits where, what was learned, and what the steps left behind.
        num_steps: steps taken.
        prefill_ms, prefill_reqs: time in steps of prompts only and requests that had one, `[runs]`.
    """

    def __init__(
        self,
        seats: Seats,
        arm: Arm,
        truth: CostModel,
        tables: CostTables,
        limits: Limits,
        states: Sequence[EstimatorState] | None,
        log: bool,
    ):
        self.seats, self.arm, self.truth, self.tables, self.limits = seats, arm, truth, tables, limits
        self.policy, self.num_slots = arm.policy, arm.policy.depth(seats.pool.num_slots)
        runs, num_seats = seats.active.shape
        shape = (self.num_slots, runs, num_seats)
        self.confidence: ClosedLoopConfidence | None = None
        if arm.policy.uses_confidence and arm.estimator is not None:
            start = states or [arm.estimator.start(self.num_slots)] * runs
            self.confidence = ClosedLoopConfidence(
                arm.estimator, seats.pool, start, self.num_slots, num_seats, arm.uncensored
            )
        self.uneven = seats.prefills or limits.token_budget is not None
        self.sizing = Sizing(arm.lag, shape, steady=not (self.uneven or arm.policy.plans))
        self.tally = Tally(runs, limits.copies, padding(truth))
        self.log = StepLog() if log else None
        self.num_steps = 0
        self.prefill_ms, self.prefill_reqs = np.zeros(runs), np.zeros(runs, dtype=np.int64)
        memory = arm.policy.fresh_memory(self.num_slots)
        self._memory = np.repeat(memory[:, None], runs, axis=1) if len(memory) else None
        self._last_admitted = np.full((runs, num_seats), self.num_slots)
        self._depth = np.full(runs, self.num_slots)
        self._charged = arm.overhead_ms > 0 or arm.overhead_us_per_req > 0
        self._unread = np.broadcast_to(np.float32(1), shape)
        self._nothing, self._idle = np.zeros(runs, dtype=np.int64), np.zeros(runs)
        self._everyone = np.ones(runs, dtype=bool)

    @property
    def plain(self) -> bool:
        """Whether this is a closed loop in which every request drafts in every step: what can be compiled for."""
        return self.seats.arrivals is None and not self.uneven and not self.limits.own_step

    def run(self, max_steps: int | None, all_places: bool) -> bool:
        """Serve until nobody is left; False where somebody waits for a seat though more could be had."""
        while self.seats.any_left and (max_steps is None or self.num_steps < max_steps):
            idle_ms = self.seats.wake()
            if not all_places and self.seats.somebody_waits:
                return False
            if self.seats.somebody_enters:
                self._enter()
            self._step(self._idle if idle_ms is None else idle_ms)
        return True

    def _step(self, idle_ms: F64Array) -> None:
        rows = self.seats.rows
        known = (self.seats.pool.num_accepted[rows], self.seats.remaining) if self.policy.uses_truth else (None, None)
        live = self._predict(rows)
        sizing = self.sizing.read(live, self.seats)
        schedule, load = self._plan(rows, sizing, known)
        admitted = self._size_and_allocate(rows, live, sizing, known, schedule, load)
        verdict = self._verify(rows, schedule, admitted)
        ms = self._clock(schedule, load, verdict)
        self._write_down(rows, live, schedule, load, verdict, ms, idle_ms)
        self._observe(rows, live, schedule, load, verdict, ms)
        self._advance(schedule, verdict, ms)

    def _enter(self) -> None:
        """Let requests in: what is known of a seat's last block was another's, and prompts may run by themselves."""
        seats, copies = self.seats, self.limits.copies
        self._last_admitted = np.where(seats.entering, self.num_slots, self._last_admitted)
        if not self.limits.own_step:
            return
        tokens = np.where(seats.entering, seats.prompt, 0).sum(axis=1) * copies
        reqs = seats.entering.sum(axis=1) * copies
        waiting = np.where(seats.active & ~seats.entering, seats.prompt + seats.position + 1, 0).sum(axis=1) * copies
        shape = StepShape(reqs, tokens, waiting.astype(np.float64), tokens, logits=reqs)
        ms = np.where(reqs > 0, self.truth.step_ms(shape, drafting=False), 0.0)
        self.prefill_ms, self.prefill_reqs = self.prefill_ms + ms, self.prefill_reqs + reqs
        seats.prefilled(ms)

    def _predict(self, rows: IntArray) -> F32Array:
        if self.confidence is None:
            return self._unread
        return self.confidence.predict(rows, self.seats.age == 0)

    def _plan(
        self, rows: IntArray, sizing: F32Array, known: tuple[IntArray | None, IntArray | None]
    ) -> tuple[Schedule, _Load]:
        """Choose how deep to draft, where the policy does, and who takes part."""
        seats, limits = self.seats, self.limits
        if self.policy.plans:
            # The step as it stands before drafting: every prompt in it counts with all that is left.
            ready = seats.active & (seats.prompt_left == 0)
            tokens = (ready + np.where(seats.active, seats.prompt_left, 0)).sum(axis=1)
            tokens = np.minimum(tokens, len(self.tables.verify) - 1)
            step = (sizing, ready, seats.num_active, seats.num_active, tokens, self.tables, self._memory)
            self._depth = self.policy.plan(DraftPlan(*step, *known, limits.max_total_logits))
        schedule = seats.schedule(rows, self._depth[:, None], limits.token_budget, limits.chunked)
        decoding = schedule.decoding.sum(axis=1) if self.uneven else seats.num_active
        num_reqs = schedule.scheduled.sum(axis=1) if self.uneven else decoding
        first_tokens = schedule.ends_prompt.sum(axis=1) if seats.prefills else self._nothing
        prompt_tokens = schedule.prompt_tokens.sum(axis=1) if seats.prefills else self._nothing
        load = _Load(num_reqs, decoding, first_tokens, prompt_tokens, decoding + first_tokens, decoding + prompt_tokens)
        return schedule, load

    def _size_and_allocate(
        self,
        rows: IntArray,
        live: F32Array,
        sizing: F32Array,
        known: tuple[IntArray | None, IntArray | None],
        schedule: Schedule,
        load: _Load,
    ) -> IntArray:
        """Return M of each request: one rule of the policy sets the budget and hands it out."""
        batch = StepBatch(
            live,
            sizing,
            schedule.num_drafted,
            load.num_reqs,
            load.sampling,
            load.target_tokens,
            self.tables,
            *known,
            self.limits.max_total_logits,
            keyed_uniform(rows, self.seats.turn) if self.policy.explores else None,
            self._memory,
            self._last_admitted,
        )
        return self.policy.admit(batch)

    def _verify(self, rows: IntArray, schedule: Schedule, admitted: IntArray) -> _Verdict:
        seats = self.seats
        accepted = np.minimum(seats.pool.num_accepted[rows], admitted)  # 0 in an empty seat, which admits nothing
        emitted = np.where(schedule.decoding, np.minimum(accepted + 1, seats.last - seats.position), 0)
        return _Verdict(admitted, accepted, emitted, admitted.sum(axis=1))

    def _clock(self, schedule: Schedule, load: _Load, verdict: _Verdict) -> F64Array:
        """Return how long the step takes, ms `[runs]`."""
        seats, copies = self.seats, self.limits.copies
        shape = StepShape(
            load.num_reqs * copies,
            (load.target_tokens + verdict.verified) * copies,
            seats.kv_tokens(schedule.scheduled) * copies if self.truth.uses_kv else self._idle,
            load.prompt_tokens * copies,
            self._depth,
            (load.sampling + verdict.verified) * copies,
            self._nothing + self.num_steps,
            seats.clock,
        )
        ms = self.truth.step_ms(shape, drafting=self.policy.drafts)
        if self._charged:
            ms = ms + self.arm.overhead_ms + load.num_reqs * (self.arm.overhead_us_per_req * 1e-3)
        if not load.num_reqs.all():
            ms = np.where(load.num_reqs > 0, ms, 0.0)  # a run that is over
        return ms

    def _write_down(
        self,
        rows: IntArray,
        live: F32Array,
        schedule: Schedule,
        load: _Load,
        verdict: _Verdict,
        ms: F64Array,
        idle_ms: F64Array,
    ) -> None:
        """Add the step to the tally, and to the log if one is kept."""
        seats = self.seats
        drafted = schedule.num_drafted.sum(axis=1)
        still_seating = None if seats.arrivals is None else (load.num_reqs > 0) & (seats.taken < seats.length)
        self.tally.lines.append(
            StepSums(
                seats.num_active,
                load.num_reqs,
                load.decoding,
                drafted,
                verdict.verified,
                verdict.accepted.sum(axis=1),
                verdict.emitted.sum(axis=1) + load.first_tokens,
                load.first_tokens,
                load.target_tokens + verdict.verified,
                load.target_tokens + drafted,
                load.prompt_tokens,
                self._everyone if still_seating is None else still_seating,
                ms,
                idle_ms,
            )
        )
        log = self.log
        if log is None or not load.num_reqs[0]:
            return
        log.rows.append(rows[0])
        log.request.append(seats.request[0].copy())
        log.turn.append(seats.turn[0].copy())
        log.prompt_tokens.append(schedule.prompt_tokens[0])
        log.drafted.append(schedule.num_drafted[0])
        log.admitted.append(verdict.admitted[0])
        log.accepted.append(verdict.accepted[0])
        log.active.append(schedule.decoding[0])
        log.first.append(seats.age[0] == 0)
        log.emitted.append(verdict.emitted[0])
        log.start_ms.append(float(seats.clock[0]))
        log.ms.append(float(ms[0]))
        log.depth.append(int(self._depth[0]))
        if self.confidence is not None:
            log.confidence.append(live[:, 0].copy())

    def _observe(
        self, rows: IntArray, live: F32Array, schedule: Schedule, load: _Load, verdict: _Verdict, ms: F64Array
    ) -> None:
        """Show estimator and policy what the step came to; its drafts become what later steps are sized by."""
        if self.confidence is not None:
            self.confidence.record(rows, verdict.admitted, schedule.decoding)
        if self._memory is not None:
            outcome = StepOutcome(
                live, schedule.num_drafted, verdict.admitted, verdict.accepted, verdict.emitted, self._depth,
                load.num_reqs, ms,
            )  # fmt: skip
            self._memory = self.policy.remember(self._memory, outcome)
        self.sizing.record(live, self.seats, self._depth)
        self.sizing.recording = schedule.scheduled
        if self.uneven:
            self._last_admitted = np.where(schedule.decoding, verdict.admitted, self._last_admitted)
        else:
            self._last_admitted = verdict.admitted

    def _advance(self, schedule: Schedule, verdict: _Verdict, ms: F64Array) -> None:
        """Move outputs and clocks on, and seat the next requests."""
        itl, tpot = self.seats.advance(schedule, verdict.emitted, ms, self.log is not None)
        if self.log is not None and len(itl):
            self.log.itl_ms.append(itl)
        if self.log is not None and len(tpot):
            self.log.tpot_ms.append(tpot)
        self.num_steps += 1
