"""Who sits where: requests wait, are prefilled in chunks, decode and leave, in every run of a simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from avsim.tally import RequestTimes
from avsim.types import BoolArray, F64Array, IntArray
from avsim.workload import Pool, keyed_uniform

__all__ = ["Schedule", "Seats"]


@dataclass(slots=True)
class Schedule:
    """What one step runs, `[runs, seats]` each.

    Attributes:
        decoding: a block is verified here.
        num_drafted: its draft slots.
        prompt_tokens: prompt tokens run here; a request is prefilled or decodes, never both in one step.
        ends_prompt: the last prompt token is among them, so the first output token comes with the step.
    """

    decoding: BoolArray
    num_drafted: IntArray
    prompt_tokens: IntArray
    ends_prompt: BoolArray

    @property
    def scheduled(self) -> BoolArray:
        return self.decoding | (self.prompt_tokens > 0)


class Seats:
    """The C places of each run, the requests in them, and how far each has come.

    Requests take the first free places in the order of their sequence, once they have arrived. Without `arrivals`
    (a closed loop) each arrives when a place is free. Where prompts are not scheduled, a request comes with its first
    token emitted.

    Attributes, `[runs, seats]` where not said otherwise:
        request, turn: who sits there, and the place of that request in the sequence.
        base, prompt, last: its first block in the pool, its prompt tokens, and the index of its last output token.
        position, age: output index of its newest token, and blocks verified so far.
        prompt_left: prompt tokens still to run.
        active, entering: whether somebody sits there, and came since the last step.
        clock, idle_ms: each run's clock, and how much of it went by without a step, ms `[runs]`.
    """

    def __init__(
        self,
        pool: Pool,
        sequences: IntArray,
        num_seats: int,
        *,
        arrivals: F64Array | None = None,
        prefills: bool = False,
        first_position: int = 0,
    ):
        self.pool, self.sequences, self.arrivals = pool, sequences, arrivals
        self.prefills, self.first_position = prefills, first_position
        self.length = (sequences >= 0).sum(axis=1)
        runs, self.num_seats = len(sequences), num_seats
        shape = (runs, num_seats)
        self.taken = np.zeros(runs, dtype=np.int64)
        # One array, so that seating a request is one write.
        self._state = np.zeros((8, runs * num_seats), dtype=np.int64)
        views = self._state.reshape(8, *shape)
        self.request, self.base, self.prompt, self.last, self.turn, self.position, self.age, self.prompt_left = views
        prompt_len = np.maximum(pool.prompt_len, int(prefills))
        self._facts = np.stack([np.arange(len(prompt_len)), pool.start, prompt_len, pool.output_len - 1])
        self.active = np.zeros(shape, dtype=bool)
        self.entering, self.somebody_enters = np.zeros(shape, dtype=bool), False
        self._all_drafted = bool((pool.num_drafted >= pool.num_slots).all())
        self.num_active = np.zeros(runs, dtype=np.int64)
        self.emitted_at = np.zeros(num_seats)
        self.clock, self.idle_ms = np.zeros(runs), np.zeros(runs)
        self._nobody, self._nothing = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int64)
        never = np.full(sequences.shape, np.nan)
        seated, first_token, end = never.copy(), never.copy(), never
        tokens = np.where(sequences >= 0, pool.output_len[sequences], 0)
        arrived = seated if arrivals is None else np.where(sequences >= 0, arrivals, np.nan)
        self.times = RequestTimes(arrived, seated, first_token if prefills else seated.copy(), end, tokens)
        self._fill(*np.nonzero(~self.active))

    @property
    def rows(self) -> IntArray:
        """The block at hand of each seat; of a request amid its prompt, some other block of it.

        A trace has no drafts inside prompts; what an engine drafts there is thrown away, but its confidences size
        the request's first verification.
        """
        if not self.prefills:
            return np.where(self.active, self.base + self.position, 0)
        amid = self.prompt_left > 0
        elsewhere = (keyed_uniform(self.request, self.turn) * np.maximum(self.last, 1)).astype(np.int64)
        return np.where(self.active, self.base + np.where(amid, elsewhere, self.position), 0)

    @property
    def remaining(self) -> IntArray:
        """Output tokens still to come, at least 1; 1 in an empty seat."""
        return np.where(self.active, self.last - self.position, 1)

    def kv_tokens(self, scheduled: BoolArray) -> F64Array:
        """Return the tokens that the scheduled requests hold in the KV cache, `[runs]`."""
        held = np.where(scheduled, self.prompt - self.prompt_left + self.position + (self.prompt_left == 0), 0)
        return held.sum(axis=1).astype(np.float64)

    def schedule(self, rows: IntArray, depth: IntArray | int, token_budget: int | None, chunked: bool) -> Schedule:
        """Return what the next step runs: first come, first served within the token budget, as vLLM's scheduler does.

        Args:
            rows: the blocks at hand.
            depth: draft slots of each run, `[runs, 1]` or one number.
            token_budget: max_num_batched_tokens; None for no limit.
            chunked: whether a prompt may be split; if not, one that does not fit waits and so do those behind it.
        """
        amid = self.active & (self.prompt_left > 0) if self.prefills else self._nobody
        decoding = self.active & ~amid if self.prefills else self.active
        deep = depth if self._all_drafted else np.minimum(self.pool.num_drafted[rows], depth)
        drafted = np.where(decoding, deep, 0)
        prompt_tokens = np.where(amid, self.prompt_left, 0) if self.prefills else self._nothing
        plain = Schedule(decoding, drafted, prompt_tokens, amid)
        if token_budget is None:
            return plain
        wanted = prompt_tokens + drafted + decoding
        if wanted.sum(axis=1).max() <= token_budget:
            return plain
        order = np.argsort(np.where(self.active, self.turn, np.iinfo(np.int64).max), axis=1, kind="stable")
        in_order = np.take_along_axis(wanted, order, axis=1)
        given_in_order = np.clip(token_budget - np.cumsum(in_order, axis=1) + in_order, 0, in_order)
        if not chunked:
            prompts = np.take_along_axis(amid, order, axis=1)
            blocked = np.logical_or.accumulate(prompts & (given_in_order < in_order), axis=1)
            given_in_order[blocked & prompts] = 0
        given = np.empty_like(wanted)
        np.put_along_axis(given, order, given_in_order, axis=1)
        prompt_tokens = np.where(amid, given, 0)
        decoding = decoding & (given > 0)
        drafted = np.where(decoding, np.minimum(drafted, given - 1), 0)
        return Schedule(decoding, drafted, prompt_tokens, amid & (prompt_tokens == self.prompt_left))

    def wake(self) -> F64Array | None:
        """Move the clock of a run that has nothing to do to its next arrival, and seat whoever has arrived.

        Afterwards every run has something to do, or is over.

        Returns:
            how far each clock moved, ms `[runs]`; None where none did.
        """
        if self.arrivals is None:
            return None
        moved = None
        while True:
            waiting = self.taken < self.length
            run = np.flatnonzero(waiting & (self.num_active == 0))
            if len(run):
                gap = np.zeros_like(self.clock)
                gap[run] = np.maximum(self.arrivals[run, self.taken[run]] - self.clock[run], 0.0)
                self.clock[run] = np.maximum(self.clock[run], self.arrivals[run, self.taken[run]])
                self.idle_ms += gap
                moved = gap if moved is None else moved + gap
            run = np.flatnonzero(waiting & (self.num_active < self.num_seats))
            due = run[self.arrivals[run, self.taken[run]] <= self.clock[run]]
            if not len(due):
                return moved
            free = np.zeros_like(self.active)
            free[due] = ~self.active[due]
            self.active = self.active.copy()  # what was handed out stays as it was
            self._fill(*np.nonzero(free))

    def prefilled(self, ms: F64Array) -> None:
        """Let the prompts of those who enter take some time, `[runs]`: their first tokens come at its end."""
        self.clock = self.clock + ms
        run, seat = np.nonzero(self.entering)
        self.times.first_token_ms[run, self.turn[run, seat]] = self.clock[run]
        self.emitted_at[self.entering[0]] = self.clock[0]

    def advance(self, plan: Schedule, emitted: IntArray, ms: F64Array, timed: bool) -> tuple[F64Array, F64Array]:
        """Move the clocks, prompts and outputs, and seat the next requests.

        Returns:
            of run 0, if `timed`: the times since the last emission where there was one, and the TPOT of those that
            end, ms.
        """
        self.clock = self.clock + ms
        self.position += emitted
        self.age += plan.decoding
        if self.somebody_enters:
            self.entering, self.somebody_enters = np.zeros_like(self.entering), False
        itl = tpot = _NONE
        if timed:
            itl = self.clock[0] - self.emitted_at[plan.decoding[0]]
            self.emitted_at[plan.decoding[0] | plan.ends_prompt[0]] = self.clock[0]
        finished = self.active & (self.position >= self.last)
        if self.prefills:
            self.prompt_left -= plan.prompt_tokens
            run, seat = np.nonzero(plan.ends_prompt)
            self.times.first_token_ms[run, self.turn[run, seat]] = self.clock[run]
            finished &= self.prompt_left == 0
        run, seat = np.nonzero(finished)
        if not len(run):
            return itl, tpot
        turn = self.turn[run, seat]
        self.times.end_ms[run, turn] = self.clock[run]
        if timed:
            tpot = self.times.tpot_ms_of(0, turn[run == 0])
        self.active = self.active & ~finished
        self._fill(run, seat)
        return itl, tpot

    def _fill(self, run: IntArray, seat: IntArray) -> None:
        """Seat the next requests in empty places, given in row order; a request that is over at once needs no seat."""
        while len(run):
            turn = self.taken[run] + np.arange(len(run))
            if len(self.taken) > 1:
                turn -= np.searchsorted(run, run)
            seated = turn < self.length[run]
            if self.arrivals is not None:
                seated &= self.arrivals[run, np.minimum(turn, self.arrivals.shape[1] - 1)] <= self.clock[run]
            if not seated.all():
                run, seat, turn = run[seated], seat[seated], turn[seated]
            if not len(run):
                break
            self.taken += np.bincount(run, minlength=len(self.taken))
            place = run * self.num_seats + seat
            self._state[:4, place] = facts = self._facts[:, self.sequences[run, turn]]
            self._state[4, place] = turn
            self._state[5:, place] = ((self.first_position,), (0,), (0,))
            now = self.clock[run]
            self.times.seated_ms[run, turn] = now
            self.emitted_at[seat[run == 0]] = self.clock[0]
            if self.prefills:
                self._state[7, place] = facts[2]
            else:
                self.times.first_token_ms[run, turn] = now
            over = facts[3] <= self.first_position
            if not self.prefills and over.any():
                self.times.end_ms[run[over], turn[over]] = now[over]
                stays = ~over
                self.active[run[stays], seat[stays]] = self.entering[run[stays], seat[stays]] = True
                run, seat = run[over], seat[over]
                continue
            self.active[run, seat] = self.entering[run, seat] = True
            break
        self.somebody_enters = bool(self.entering.any())
        self.num_active = self.active.sum(axis=1)

    @property
    def somebody_waits(self) -> bool:
        """Whether a request of an open loop has arrived and found every place taken."""
        if self.arrivals is None:
            return False
        run = np.flatnonzero((self.taken < self.length) & (self.num_active == self.num_seats))
        return bool((self.arrivals[run, self.taken[run]] <= self.clock[run]).any())

    @property
    def any_left(self) -> bool:
        """Whether a run still serves a request or waits for one."""
        return bool(self.num_active.any()) or (self.arrivals is not None and bool((self.taken < self.length).any()))


_NONE = np.zeros(0)
