"""The order in which one server meets draft blocks: what estimators are scored on, whatever the trace."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from avsim.costs.base import CostModel
from avsim.metrics.savings import Path, flatten_log
from avsim.policies.base import NO_LOGIT_LIMIT
from avsim.simulate import Arm, simulate
from avsim.sources.base import Trace
from avsim.types import BoolArray, F32Array, IntArray
from avsim.workload import Pool, fill_missing

__all__ = ["Table", "Walk", "chain_lengths", "full_walk", "path_walk", "recorded_walk", "simulated_walk"]


@dataclass(frozen=True, slots=True)
class Table:
    """The blocks that walks visit, one row each.

    Attributes:
        num_slots: K.
        features: float32 `[K, rows]`.
        num_accepted: leading slots that the target accepts, as far as the trace knows, int `[rows]`.
        num_known: leading slots that have a verdict in the trace, int `[rows]`.
        unfit: rows whose labels must not be learned from, nor scored, bool `[rows]`.
        unit: source request, the unit of resampling, int `[rows]`.
        category: index into `categories`, int `[rows]`.
    """

    num_slots: int
    features: dict[str, F32Array]
    num_accepted: IntArray
    num_known: IntArray
    unfit: BoolArray
    unit: IntArray
    category: IntArray
    categories: tuple[str, ...]

    @property
    def num_units(self) -> int:
        return int(self.unit.max()) + 1

    def verdicts(self, rows: IntArray) -> tuple[BoolArray, BoolArray]:
        """Return `(accepted, reached)` of some rows, both bool `[K, n]`; nothing is reached in unfit rows."""
        slot = np.arange(self.num_slots, dtype=np.int16)[:, None]
        full = self.num_accepted[rows].astype(np.int16)
        known = np.where(self.unfit[rows], 0, self.num_known[rows]).astype(np.int16)
        return slot < full, (slot <= full) & (slot < known)

    @classmethod
    def of_pool(cls, pool: Pool, trace: Trace) -> Table:
        """Return the blocks of a dense trace."""
        request = np.repeat(np.arange(len(pool.start)), np.diff(np.append(pool.start, len(pool.num_accepted))))
        codes, names = _categories(trace)
        return cls(
            pool.num_slots, pool.features, pool.num_accepted, pool.num_recorded, pool.unfit, pool.unit[request],
            codes[request], names,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Walk:
    """Blocks in order of service, sorted by step.

    Attributes:
        rows: row of the table, int `[n]`.
        num_admitted: M, int `[n]`.
        seat: the place at which the block's request is served, int `[n]`; one block per step and seat.
        fresh: True for the first block of a request in its seat, bool `[n]`.
        step_starts: offsets of the blocks of each step, int `[steps + 1]`; a step may be empty.
    """

    rows: IntArray
    num_admitted: IntArray
    seat: IntArray
    fresh: BoolArray
    step_starts: IntArray

    @property
    def num_steps(self) -> int:
        return len(self.step_starts) - 1

    def step_of(self) -> IntArray:
        """Return the step of each block, int `[n]`."""
        return np.repeat(np.arange(self.num_steps), np.diff(self.step_starts))

    def until(self, step: int) -> Walk:
        """Return the walk's first steps, all of them if there are fewer."""
        starts = self.step_starts[: step + 1]
        rows, admitted, seat = (column[: starts[-1]] for column in (self.rows, self.num_admitted, self.seat))
        return Walk(rows, admitted, seat, self.fresh[: starts[-1]], starts)

    def restricted(self, picked: BoolArray) -> Walk:
        """Return the walk without the blocks that are not picked, in the same steps; bool `[n]`."""
        starts = np.concatenate(([0], np.cumsum(picked)))[self.step_starts]
        rows, admitted, seat = (column[picked] for column in (self.rows, self.num_admitted, self.seat))
        return Walk(rows, admitted, seat, self.fresh[picked], starts)


def full_walk(pool: Pool, sequence: IntArray, num_seats: int, offset: int = 0) -> Walk:
    """Return the walk of a server that verifies all that was drafted: the closed loop's, without simulating it.

    Args:
        sequence: requests in order of service, int `[N]`.
        num_seats: requests served at once; a finished one is replaced by the next.
        offset: output position at which requests begin; those that are over before are left out.
    """
    depth = np.minimum(pool.num_drafted, pool.num_slots)
    chains = _chains(pool, offset)
    free = [(0, seat) for seat in range(num_seats)]
    rows, steps, seats, fresh = [], [], [], []
    for request in sequence.tolist():
        chain = chains[request]
        if not len(chain):
            continue
        start, seat = heapq.heappop(free)
        heapq.heappush(free, (start + len(chain), seat))
        rows.append(chain)
        steps.append(start + np.arange(len(chain)))
        seats.append(np.full(len(chain), seat))
        fresh.append(np.arange(len(chain)) == 0)
    row, step, seat_of = (np.concatenate(parts) for parts in (rows, steps, seats))
    order = np.lexsort((seat_of, step))
    row = row[order]
    starts = np.searchsorted(step[order], np.arange(int(step.max()) + 2))
    return Walk(row, depth[row], seat_of[order], np.concatenate(fresh)[order], starts)


def chain_lengths(pool: Pool) -> IntArray:
    """Return how many blocks each request has when all drafts are verified, int `[requests]`."""
    return np.array([len(chain) for chain in _chains(pool, 0)])


def _chains(pool: Pool, offset: int) -> list[IntArray]:
    """Return the rows that each request visits, all requests a block at a time."""
    ahead = np.minimum(pool.num_accepted, np.minimum(pool.num_drafted, pool.num_slots)) + 1
    last = pool.output_len - 1
    position = np.full(len(last), offset)
    visited: list[tuple[IntArray, IntArray]] = []
    going = np.flatnonzero(position < last)
    while len(going):
        row = pool.start[going] + position[going]
        visited.append((going, row))
        position[going] += ahead[row]
        going = going[position[going] < last[going]]
    if not visited:
        return [np.zeros(0, dtype=np.int64)] * len(last)
    request, row = (np.concatenate(parts) for parts in zip(*visited, strict=True))
    order = np.argsort(request, kind="stable")
    return np.split(row[order], np.cumsum(np.bincount(request, minlength=len(last)))[:-1])


def simulated_walk(
    pool: Pool,
    arm: Arm,
    sequence: IntArray,
    num_seats: int,
    cost: CostModel,
    offset: int = 0,
    max_total_logits: int = NO_LOGIT_LIMIT,
) -> Walk:
    """Return the walk of a closed loop under any policy; see `simulate`."""
    log = simulate(
        pool,
        arm,
        sequence[None],
        num_seats,
        cost,
        max_total_logits=max_total_logits,
        first_position=offset,
        log=True,
    ).log
    assert log is not None
    return path_walk(flatten_log(log))


def path_walk(path: Path) -> Walk:
    """Return a logged path as a walk."""
    seat = np.nonzero(path.active)[1]
    starts = np.concatenate(([0], np.cumsum(path.active.sum(axis=1))))
    return Walk(path.rows[path.active], path.admitted[path.active], seat, path.first[path.active], starts)


def recorded_walk(trace: Trace, features: Sequence[str], num_slots: int | None = None) -> tuple[Table, Walk]:
    """Return the blocks that an engine really ran, in its own steps: an on-policy trace."""
    blocks = trace.blocks([name for name in features if name != "label"], num_slots=num_slots)
    assert blocks.step is not None
    slots = num_slots or trace.card.num_speculative_tokens
    slot = np.arange(slots)[:, None]
    arrays = {name: fill_missing(array, slot < blocks.num_drafted) for name, array in blocks.features.items()}
    if "label" in features:
        arrays["label"] = (slot < blocks.num_accepted).astype(np.float32)
    _, unit = np.unique(trace.requests["source"].to_numpy(), return_inverse=True)
    codes, names = _categories(trace)
    unfit = np.zeros(len(blocks), dtype=bool) if blocks.unfit is None else blocks.unfit
    table = Table(
        slots, arrays, blocks.num_accepted, blocks.num_admitted, unfit, unit[blocks.request], codes[blocks.request],
        names,
    )  # fmt: skip
    fresh = np.zeros(len(blocks), dtype=bool)
    fresh[np.unique(blocks.request, return_index=True)[1]] = True
    first = int(blocks.step[0])
    starts = np.searchsorted(blocks.step, np.arange(first, int(blocks.step[-1]) + 2))
    return table, Walk(np.arange(len(blocks)), blocks.num_admitted, blocks.request, fresh, starts)


def _categories(trace: Trace) -> tuple[IntArray, tuple[str, ...]]:
    names = trace.requests["category"].fill_null("(none)").to_numpy()
    values, codes = np.unique(names, return_inverse=True)
    return codes.astype(np.int64), tuple(map(str, values))
