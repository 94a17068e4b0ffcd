"""Timing every step of a grid: warmed up, in rounds of random order, inside a time limit, with a check for drift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from avsim.costs.profile.plan import MIN_ROUNDS, Cell, ProfilePlan
from avsim.costs.profile.runner import Runner, Step
from avsim.costs.profile.timers import Timer
from avsim.errors import InputError
from avsim.types import F64Array, IntArray

__all__ = ["WARM_CALLS", "Measured", "Progress", "measure"]

Progress = Callable[[int, int, str], None]
"""Takes (done, total, what)."""

WARM_CALLS = 3
"""Calls of each step before anything is timed."""
_CHECKS = 9
"""Timings of the first step, in a row, at the start and again at the end."""


@dataclass(frozen=True, eq=False)
class Measured:
    """The timings of a grid.

    Attributes:
        modes: graph mode of each cell.
        ms: `[cells, rounds]`.
        order: `[cells, rounds]`, the place of each timing in the order they were taken, from 0.
        start_ms, end_ms: timings of the first cell before and after the rounds.
        seconds: from the first preparation to the end.
    """

    cells: tuple[Cell, ...]
    modes: tuple[str, ...]
    ms: F64Array
    order: IntArray
    start_ms: F64Array
    end_ms: F64Array
    seconds: float

    @property
    def num_rounds(self) -> int:
        return int(self.ms.shape[1])


def measure(
    runner: Runner, plan: ProfilePlan, timer: Timer, clock: Callable[[], float], progress: Progress
) -> Measured:
    """Time every step of a plan, `repeats` times or until its minutes are over.

    All steps are readied first, the largest caches first, and called a few times. Then come rounds: each calls every
    step once untimed (the steps before it left caches and allocator as they were) and once timed, in an order drawn
    for that round, so that a machine that slows down does so for small and large steps alike. A round is never cut.

    Args:
        clock: seconds that only go forward.

    Raises:
        InputError: a step cannot be readied or fails, nothing is drafted though the plan says so, or the time is too
            short for six rounds.
    """
    begin = clock()
    end = begin + 60 * plan.minutes if plan.minutes is not None else float("inf")
    cells = plan.cells()
    ready, rough_s = _ready(runner, cells, timer, clock, progress)
    round_s = 2 * sum(rough_s)
    check_s = 2 * _CHECKS * rough_s[0]
    needed = MIN_ROUNDS * round_s + check_s
    if clock() + needed > end:
        raise InputError(
            f"--minutes {plan.minutes:g} is too short: {MIN_ROUNDS} rounds of {len(cells)} steps take about "
            f"{(clock() - begin + needed) / 60:.2g} minutes with their preparation; allow more, or name fewer or "
            "smaller sizes"
        )
    first = ready[0][0]
    start_ms = _check(first, cells[0], timer)
    rng = np.random.default_rng(plan.seed)
    rounds: list[F64Array] = []
    orders: list[IntArray] = []
    rounds_begin = clock()
    for index in range(plan.repeats):
        each_s = (clock() - rounds_begin) / index if index else 0.0
        if index >= MIN_ROUNDS and clock() + each_s + check_s / 2 > end:
            break
        ms, order = np.empty(len(cells)), rng.permutation(len(cells))
        for at in order.tolist():
            step = ready[at][0]
            ms[at] = _timed(step, cells[at], timer, warm=1)
        rounds.append(ms)
        place = np.empty(len(cells), dtype=np.int64)
        place[order] = np.arange(len(cells)) + index * len(cells)
        orders.append(place)
        progress(index + 1, plan.repeats, "rounds")
    end_ms = _check(first, cells[0], timer)
    return Measured(
        cells, tuple(mode for _, mode in ready), np.stack(rounds, axis=1), np.stack(orders, axis=1), start_ms, end_ms,
        clock() - begin,
    )  # fmt: skip


def _ready(
    runner: Runner, cells: tuple[Cell, ...], timer: Timer, clock: Callable[[], float], progress: Progress
) -> tuple[list[tuple[Step, str]], list[float]]:
    """Return each cell's step with its graph mode, and about how long it takes, in seconds."""
    found: dict[int, tuple[Step, str]] = {}
    took: dict[int, float] = {}
    # Largest first: a cache that is shared is then allocated once, as is the memory of graphs.
    for done, index in enumerate(sorted(range(len(cells)), key=lambda i: -cells[i].held_tokens)):
        cell = cells[index]
        try:
            step = (
                runner.draft(cell.num_reqs, cell.depth, cell.context)
                if cell.depth
                else runner.verify(cell.queries, cell.context)
            )
            if step is None:
                raise InputError(f"{runner.name} has no drafter to measure; name one, or none, with --drafter")
            step, mode = timer.ready(step, cell.size)
            for _ in range(WARM_CALLS):
                start = clock()
                step()
                took[index] = clock() - start
        except InputError:
            raise
        except (RuntimeError, MemoryError) as error:
            raise InputError(f"{cell}: cannot be run ({_first_line(error)}); leave such sizes out") from error
        found[index] = (step, mode)
        progress(done + 1, len(cells), "steps made ready")
    return [found[index] for index in range(len(cells))], [took[index] for index in range(len(cells))]


def _check(step: Step, cell: Cell, timer: Timer) -> F64Array:
    return np.asarray([_timed(step, cell, timer, warm=1 if index == 0 else 0) for index in range(_CHECKS)])


def _timed(step: Step, cell: Cell, timer: Timer, *, warm: int) -> float:
    try:
        for _ in range(warm):
            step()
        ms = timer.ms(step)
    except (RuntimeError, MemoryError) as error:
        raise InputError(f"{cell}: failed while it was timed ({_first_line(error)})") from error
    if not (np.isfinite(ms) and ms > 0):
        raise InputError(f"{cell}: took {ms} ms; the timer must give finite times above 0")
    return ms


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
