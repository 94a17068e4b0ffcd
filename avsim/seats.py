"""Who sits where: requests wait, are prefilled in chunks, decode and leave, in every run of a simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from avsim.tally import RequestTimes
from avsim.types import BoolArray, F64Array, IntArray
from avsim.workload import Pool, keyed_uniform

__all__ = ["Schedule", "Seats"]


@dataclass(frozen=True, slots=True)
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
        runs = len(sequences)
        shape = (runs, num_seats)
        self.taken = np.zeros(runs, dtype=np.int64)
        self.request = np.zeros(shape, dtype=np.int64)
        self.position = np.zeros(shape, dtype=np.int64)
        self.last = np.zeros(shape, dtype=np.int64)
        self.age = np.zeros(shape, dtype=np.int64)
        self.turn = np.zeros(shape, dtype=np.int64)
        self.base = np.zeros(shape, dtype=np.int64)
        self.prompt = np.zeros(shape, dtype=np.int64)
        self.prompt_left = np.zeros(shape, dtype=np.int64)
        self.active = np.zeros(shape, dtype=bool)
        self.entering = np.zeros(shape, dtype=bool)
        self.emitted_at = np.zeros(shape)
        self.clock = np.zeros(runs)
        never = np.full(sequences.shape, np.nan)
        tokens = np.where(sequences >= 0, pool.output_len[sequences], 0)
        self.times = RequestTimes(never.copy() if arrivals is None else arrivals.copy(), never.copy(), never, tokens)
        self._fill(np.ones(shape, dtype=bool))

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

    def schedule(self, depth: IntArray | int, token_budget: int | None, chunked: bool) -> Schedule:
        """Return what the next step runs: first come, first served within the token budget, as vLLM's scheduler does.

        Args:
            depth: draft slots of each run, `[runs, 1]` or one number.
            token_budget: max_num_batched_tokens; None for no limit.
            chunked: whether a prompt may be split; if not, one that does not fit waits and so do those behind it.
        """
        amid = self.active & (self.prompt_left > 0)
        decoding = self.active & ~amid
        drafted = np.where(decoding, np.minimum(self.pool.num_drafted[self.rows], depth), 0)
        if token_budget is None:
            prompt_tokens = np.where(amid, self.prompt_left, 0)
            return Schedule(decoding, drafted, prompt_tokens, amid)
        wanted = np.where(amid, self.prompt_left, np.where(decoding, 1 + drafted, 0))
        order = np.argsort(np.where(self.active, self.turn, np.iinfo(np.int64).max), axis=1, kind="stable")
        in_order = np.take_along_axis(wanted, order, axis=1)
        before = np.cumsum(in_order, axis=1) - in_order
        given_in_order = np.clip(token_budget - before, 0, in_order)
        if not chunked:
            partial = np.take_along_axis(amid, order, axis=1) & (given_in_order < in_order)
            blocked = np.logical_or.accumulate(partial, axis=1)
            given_in_order = np.where(blocked & np.take_along_axis(amid, order, axis=1), 0, given_in_order)
        given = np.empty_like(wanted)
        np.put_along_axis(given, order, given_in_order, axis=1)
        prompt_tokens = np.where(amid, given, 0)
        decoding = decoding & (given > 0)
        return Schedule(
            decoding,
            np.where(decoding, np.minimum(drafted, given - 1), 0),
            prompt_tokens,
            amid & (prompt_tokens == self.prompt_left),
        )

    def wake(self) -> None:
        """Move the clock of a run that has nothing to do to its next arrival, and seat whoever has arrived."""
        if self.arrivals is None:
            return
        waiting = self.taken < self.length
        idle = waiting & ~self.active.any(axis=1)
        run = np.flatnonzero(idle)
        self.clock[run] = np.maximum(self.clock[run], self.arrivals[run, self.taken[run]])
        run = np.flatnonzero(waiting)
        due = self.arrivals[run, self.taken[run]] <= self.clock[run]
        if due.any():
            empty = np.zeros_like(self.active)
            empty[run[due]] = ~self.active[run[due]]
            self._fill(empty)

    def advance(self, plan: Schedule, emitted: IntArray, ms: F64Array, timed: bool) -> tuple[F64Array, F64Array]:
        """Move the clocks, prompts and outputs, and seat the next requests.

        Returns:
            of run 0, if `timed`: the times since the last emission where there was one, and the TPOT of those that
            end, ms.
        """
        self.clock = self.clock + ms
        decoded = plan.decoding
        self.position += emitted
        self.age += decoded
        self.entering[:] = False
        now = np.broadcast_to(self.clock[:, None], decoded.shape)
        itl = now[0][decoded[0]] - self.emitted_at[0][decoded[0]] if timed else np.zeros(0)
        if self.prefills:
            self.prompt_left -= plan.prompt_tokens
            run, seat = np.nonzero(plan.ends_prompt)
            self.times.first_token_ms[run, self.turn[run, seat]] = self.clock[run]
            self.emitted_at = np.where(decoded | plan.ends_prompt, now, self.emitted_at)
            finished = self.active & (self.position >= self.last) & (self.prompt_left == 0)
        else:
            self.emitted_at = np.where(decoded, now, self.emitted_at)
            finished = self.active & (self.position >= self.last)
        if not finished.any():
            return itl, np.zeros(0)
        run, seat = np.nonzero(finished)
        self.times.end_ms[run, self.turn[run, seat]] = self.clock[run]
        ended = self.turn[0, finished[0]]
        tpot = self.times.tpot_ms[0, ended] if timed else np.zeros(0)
        self._fill(finished)
        return itl, tpot[~np.isnan(tpot)]

    def _fill(self, empty: BoolArray) -> None:
        """Seat the next requests in the empty places, in seat order; a request that is over at once needs no seat."""
        self.active = self.active & ~empty  # a new array: what was handed out stays as it was
        pending = empty
        while pending.any():
            turn = self.taken[:, None] + np.cumsum(pending, axis=1) - 1
            seated = pending & (turn < self.length[:, None])
            if self.arrivals is not None:
                arrived = np.take_along_axis(self.arrivals, np.minimum(turn, self.arrivals.shape[1] - 1), axis=1)
                seated &= arrived <= self.clock[:, None]
            run, seat = np.nonzero(seated)
            self.taken += seated.sum(axis=1)
            order = turn[run, seat]
            self.turn[run, seat] = order
            request = self.sequences[run, order]
            self.request[run, seat] = request
            self.base[run, seat] = self.pool.start[request]
            self.prompt[run, seat] = np.maximum(self.pool.prompt_len[request], int(self.prefills))
            self.last[run, seat] = self.pool.output_len[request] - 1
            self.position[run, seat] = self.first_position
            self.age[run, seat] = 0
            if self.arrivals is None:
                self.times.arrival_ms[run, order] = self.clock[run]
            if self.prefills:
                self.prompt_left[run, seat] = self.prompt[run, seat]
                stays = np.ones(len(run), dtype=bool)
            else:
                self.times.first_token_ms[run, order] = self.clock[run]
                stays = self.pool.output_len[request] > 1 + self.first_position
                self.times.end_ms[run[~stays], order[~stays]] = self.clock[run[~stays]]
            self.emitted_at[run, seat] = self.clock[run]
            self.active[run[stays], seat[stays]] = True
            self.entering[run[stays], seat[stays]] = True
            pending = np.zeros_like(pending)
            pending[run[~stays], seat[~stays]] = True
        self.num_active = self.active.sum(axis=1)

    @property
    def any_left(self) -> bool:
        """Whether a run still serves a request or waits for one."""
        return bool(self.num_active.any()) or (self.arrivals is not None and bool((self.taken < self.length).any()))
