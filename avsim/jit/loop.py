"""Where the compiled closed loop applies, the walk through each run, and what is made of it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from avsim.confidence import ClosedLoopConfidence
from avsim.costs import CurveCost, DistortedCost, LinearCost, NoisyCost, RooflineCost
from avsim.costs.base import CostModel, CostTables, StepShape
from avsim.errors import InputError
from avsim.estimators.base import EstimatorState
from avsim.policies.adaptive import Adaptive
from avsim.policies.base import Policy
from avsim.policies.fixed import FixedDepth
from avsim.policies.none import NoDrafting
from avsim.seats import Seats
from avsim.tally import StepLog, StepSums, Tally
from avsim.types import F32Array, F64Array, IntArray

if TYPE_CHECKING:
    from avsim.jit.kernel import Seated, Written
    from avsim.simulate import Arm

__all__ = ["Engine", "take_steps"]

Engine = Literal["auto", "numpy", "jit"]

_WORTH_COMPILING = 10_000_000  # output tokens of all runs: some 4 s in NumPy, and whoever has one such loop has several
_STEPS_AT_A_TIME = 256  # at most, for memory's sake
_ONE = np.float32(1).view(np.uint32)  # the bits of what is negative, −0 too, or not a number are higher numbers
_MOST_SLOTS = 1 << 16  # seats × K up to which the kernel's slack is far above rounding


def _wanted(engine: Engine, seats: Seats) -> bool:
    """Whether the kernel should be used if it can be: with `auto` for long simulations only."""
    if engine == "numpy" or (engine == "auto" and seats.times.tokens.sum() < _WORTH_COMPILING):
        return False
    found = importlib.util.find_spec("numba") is not None
    if engine == "jit" and not found:
        raise InputError("engine jit needs numba; install avsim[jit], or use engine auto")
    return found


def _admits_by_kernel(policy: Policy) -> bool:
    if type(policy) is Adaptive:
        return not (policy.explore or policy.floor or policy.hide_trimmed)
    return type(policy) in (FixedDepth, NoDrafting)


def _is_timed_afterwards(model: CostModel) -> bool:
    """Whether step times follow from shapes and step numbers: a clock that drifts depends on itself."""
    while isinstance(model, DistortedCost | NoisyCost):
        if isinstance(model, NoisyCost) and model.drift_pct:
            return False
        model = model.base
    return type(model) in (CurveCost, LinearCost, RooflineCost)


def _are_costs(tables: CostTables) -> bool:
    finite = np.isfinite(tables.draft).all() and np.isfinite(tables.verify).all()
    return bool(finite and (tables.draft >= 0).all() and (tables.verify > 0).all())


def take_steps(
    engine: Engine,
    seats: Seats,
    arm: Arm,
    truth: CostModel,
    tables: CostTables,
    confidence: ClosedLoopConfidence | None,
    tally: Tally,
    log: StepLog | None,
    *,
    max_total_logits: int,
    max_steps: int | None,
) -> int:
    """Run a closed loop whose prompts are free to its end, exactly as the steps of `simulate` would.

    Then tally and log hold those steps, `confidence` the last states, and `seats` the last clocks, the times of the
    requests and how many are left. Where the kernel does not know the case, nothing has changed: another policy, a
    clock that drifts, confidences that are not tabulated or leave [0, 1], runs that do not refit in the same steps.

    Returns:
        the steps taken; 0 where the kernel does not know the case.

    Raises:
        InputError: engine `jit` where numba cannot be imported.
    """
    num_slots = arm.policy.depth(seats.pool.num_slots)
    if (
        not _wanted(engine, seats)
        or not (_admits_by_kernel(arm.policy) and _is_timed_afterwards(truth) and _are_costs(tables))
        or not (confidence is None or (confidence.table is not None and confidence.in_step))
        or seats.num_seats * num_slots > _MOST_SLOTS
    ):
        return 0
    from avsim.jit import kernel

    if not kernel.NUMBA:
        if engine == "jit":
            raise InputError("engine jit needs numba, which is installed but cannot be imported; use engine numpy")
        return 0
    walker = _Walker(kernel, seats, num_slots, arm.lag, tables, max_total_logits, max_steps)
    walks = []
    for run in range(len(seats.taken)):
        learner = None if confidence is None else confidence.alone(run)
        walk = walker.walk(run, learner, log is not None and run == 0)
        if walk is None:
            return 0
        walks.append(walk)
    steps = max(walk.steps for walk in walks)
    sums = np.stack([np.pad(walk.sums, ((0, 0), (0, steps - walk.steps))) for walk in walks], axis=2)
    ms = _times(arm, truth, sums, tally.copies, num_slots)
    clock = np.cumsum(np.concatenate((seats.clock[None], ms)), axis=0)
    for run, walk in enumerate(walks):
        _stamp(seats, run, walk.seated, clock[1:, run])
    _sum(tally, sums, ms)
    if log is not None:
        _keep(log, seats, walks[0], clock[:, 0], ms[:, 0], num_slots)
    if confidence is not None:
        confidence.states = [_finish(walk, steps, seats.num_seats) for walk in walks]
    seats.clock = clock[-1].copy()
    seats.num_active = np.array([walk.seated.counts[1] for walk in walks])
    return steps


@dataclass(slots=True)
class _Walk:
    """One run from its start to its end: `written` are the steps' arrays where they are kept, `sums` `[6, steps]`."""

    steps: int
    seated: Seated
    sums: IntArray
    learner: ClosedLoopConfidence | None
    written: list[Written]
    confidence: list[F32Array]


class _Walker:
    """Walks runs one after another, so that what a run reads stays in the processor's cache."""

    def __init__(
        self,
        kernel: ModuleType,
        seats: Seats,
        num_slots: int,
        lag: int,
        tables: CostTables,
        max_total_logits: int,
        max_steps: int | None,
    ):
        pool = seats.pool
        self.kernel, self.seats, self.num_slots, self.lag = kernel, seats, num_slots, lag
        self.max_total_logits, self.max_steps = max_total_logits, max_steps
        facts = (pool.num_accepted, pool.num_drafted, pool.start, pool.prompt_len, pool.output_len)
        self.facts = [_plain(array, np.int64) for array in facts]
        self.tables = _plain(tables.draft, np.float64), _plain(tables.verify, np.float64)
        self.scratch = kernel.scratch_for(num_slots, seats.num_seats)

    def walk(self, run: int, learner: ClosedLoopConfidence | None, kept: bool) -> _Walk | None:
        """Return a run, or None where confidences leave [0, 1]: sorting them by their bits would go wrong."""
        kernel, seats, scratch = self.kernel, self.seats, self.scratch
        never = np.full(int(seats.length[run]), -1)
        seated = kernel.Seated(
            *(array[run].copy() for array in (seats.request, seats.turn, seats.base, seats.prompt, seats.last)),
            *(array[run].copy() for array in (seats.position, seats.age, seats.active)),
            np.array([seats.taken[run], seats.num_active[run]]),
            np.ones((self.lag + 1, seats.num_seats, self.num_slots), dtype=np.float32),
            never,
            never.copy(),
        )
        unread = np.empty((self.num_slots, 1, 0), dtype=np.float32)
        sequence = _plain(seats.sequences[run, : len(never)], np.int64)
        given = kernel.Given(unread, *self.facts, sequence, *self.tables)
        walk = _Walk(0, seated, np.zeros((6, 0), dtype=np.int64), learner, [], [])
        sums = [walk.sums]
        while seated.counts[1] and (self.max_steps is None or walk.steps < self.max_steps):
            steps = _STEPS_AT_A_TIME if self.max_steps is None else min(_STEPS_AT_A_TIME, self.max_steps - walk.steps)
            if learner is not None:
                table, steps = learner.table, min(steps, learner.steps_left)
                if table is None or table.view(np.uint32).max(initial=0) > _ONE:
                    return None
                given = given._replace(table=table)
            written = kernel.blank(steps, seats.num_seats, kept)
            taken = kernel.serve(
                steps, walk.steps, self.num_slots, self.lag, self.max_total_logits, seats.first_position, given, seated,
                written, scratch,
            )  # fmt: skip
            written = type(written)(*(array[:taken] for array in written[:-1]), written.sums[:, :taken])
            sums.append(written.sums)
            if kept:
                walk.written.append(written)
            if kept and learner is not None:
                walk.confidence.append(given.table[:, 0, written.rows])
            if learner is not None:
                learner.record_steps(*(array[:, None] for array in (written.rows, written.admitted, written.active)))
            walk.steps += taken
        walk.sums = np.concatenate(sums, axis=1)
        return walk


def _finish(walk: _Walk, steps: int, seats: int) -> EstimatorState:
    """Return the final state: a run that is over sits out the steps of the longest, and they count."""
    assert walk.learner is not None
    left = steps - walk.steps
    while left:
        some = min(left, walk.learner.steps_left)
        nobody = np.zeros((some, 1, seats), dtype=np.int64)
        walk.learner.record_steps(nobody, nobody, nobody > 0)
        left -= some
    return walk.learner.finish()[0]


def _times(arm: Arm, truth: CostModel, sums: IntArray, copies: int, depth: int) -> F64Array:
    """Return how long each step took, ms `[steps, runs]`."""
    _, steps, runs = sums.shape
    reqs, _, verified, _, _, kv_tokens = sums.reshape(6, -1)
    tokens = (reqs + verified) * copies
    shape = StepShape(
        reqs * copies,
        tokens,
        kv_tokens.astype(np.float64) * copies if truth.uses_kv else np.zeros(steps * runs),
        np.zeros(steps * runs, dtype=np.int64),
        np.full(steps * runs, depth),
        tokens,
        np.repeat(np.arange(steps), runs),
    )
    ms = truth.step_ms(shape, drafting=arm.policy.drafts)
    if arm.overhead_ms > 0 or arm.overhead_us_per_req > 0:
        ms = ms + arm.overhead_ms + reqs * (arm.overhead_us_per_req * 1e-3)
    return np.where(reqs > 0, ms, 0.0).reshape(steps, runs)


def _stamp(seats: Seats, run: int, seated: Seated, clock: F64Array) -> None:
    """Write down when the requests of a run were seated and ended; `clock` is that at the end of each step."""
    times = seats.times
    turn = np.flatnonzero(seated.seated_at >= 0)
    times.seated_ms[run, turn] = times.first_token_ms[run, turn] = clock[seated.seated_at[turn]]
    turn = np.flatnonzero(seated.ended_at >= 0)
    times.end_ms[run, turn] = clock[seated.ended_at[turn]]


def _sum(tally: Tally, sums: IntArray, ms: F64Array) -> None:
    reqs, drafted, verified, accepted, emitted, _ = sums
    nothing = np.zeros(ms.shape, dtype=np.int64)
    tally.lines.append(
        StepSums(
            occupied=reqs,
            num_reqs=reqs,
            blocks=reqs,
            drafted=drafted,
            admitted=verified,
            accepted=accepted,
            emitted=emitted,
            first_tokens=nothing,
            tokens=reqs + verified,
            scheduled=reqs + drafted,
            prompt_tokens=nothing,
            loaded=np.ones(ms.shape, dtype=bool),
            ms=ms,
            idle_ms=np.zeros(ms.shape),
        )
    )


def _keep(log: StepLog, seats: Seats, walk: _Walk, clock: F64Array, ms: F64Array, depth: int) -> None:
    """Keep the steps of run 0."""
    pool, steps = seats.pool, walk.steps
    if not steps:
        return
    by_name = list(zip(*walk.written, strict=True))[:-1]  # without the sums
    rows, admitted, active, request, turn, first = (np.concatenate(arrays) for arrays in by_name)
    accepted = np.minimum(pool.num_accepted[rows], admitted)
    left = pool.output_len[request] - 1 - (rows - pool.start[request])
    log.rows.extend(rows)
    log.request.extend(request)
    log.turn.extend(turn)
    log.prompt_tokens.extend(np.zeros_like(rows))
    log.drafted.extend(np.where(active, np.minimum(pool.num_drafted[rows], depth), 0))
    log.admitted.extend(admitted)
    log.accepted.extend(accepted)
    log.active.extend(active)
    log.first.extend(first)
    log.emitted.extend(np.where(active, np.minimum(accepted + 1, left), 0))
    log.start_ms.extend(clock[:steps].tolist())
    log.ms.extend(ms[:steps].tolist())
    log.depth.extend([depth] * steps)
    if walk.learner is not None:
        log.confidence.extend(np.ascontiguousarray(np.concatenate(walk.confidence, axis=1).transpose(1, 0, 2)))
    # Whoever is in a step emitted at the end of the one before, or was seated then.
    log.itl_ms.extend(np.full(count, clock[at + 1] - clock[at]) for at, count in enumerate(active.sum(axis=1)))
    leaves = active & (walk.seated.ended_at[turn] == np.arange(steps)[:, None])
    tpot = (seats.times.tpot_ms_of(0, turn[at, leaves[at]]) for at in np.flatnonzero(leaves.any(axis=1)))
    log.tpot_ms.extend(values for values in tpot if len(values))


def _plain(array: NDArray[Any], dtype: type[Any]) -> NDArray[Any]:
    """Return the array as the one type that the kernel is compiled for: contiguous, and not read-only."""
    return np.require(array, dtype, ["C", "W"])
