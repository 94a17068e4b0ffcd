"""The loads of a study: so many clients in a closed loop, or arrivals of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from avsim import arrivals
from avsim.arrivals import ArrivalProcess, Recorded
from avsim.config import DEFAULT_MAX_NUM_SEQS, ReplayConfig
from avsim.costs.base import CostModel, StepShape
from avsim.types import F64Array, IntArray
from avsim.workload import Pool

__all__ = ["Load", "loads_of"]


@dataclass(frozen=True, slots=True)
class Load:
    """One load.

    Attributes:
        name: how it is called in tables: the number of clients, or the arrival process.
        seats: requests that run at once at most.
        clients: of a closed loop; None where requests arrive by themselves.
        process: how they arrive; None in a closed loop.
        num_requests: requests to serve at least.
        busy: about how many requests run at once.
        recorded_ms: when the trace's requests arrived, rising, and who they were; None where it does not say.
    """

    name: str
    seats: int
    clients: int | None
    process: ArrivalProcess | None
    num_requests: int
    busy: int
    recorded_ms: F64Array | None = None
    recorded_order: IntArray | None = None

    @property
    def key(self) -> int:
        """What seeds are made from; the same for all arrival processes, so that their loads can be compared."""
        return self.clients or 0

    @property
    def waits(self) -> bool:
        """Whether a request can find every seat taken."""
        return self.clients is None or self.clients > self.seats

    def arrivals_ms(self, num: int, seeds: Sequence[Sequence[int]]) -> F64Array | None:
        """Return arrival times, `[runs, num]`; None in a closed loop."""
        return None if self.process is None else self.process.times_ms(num, seeds, self.recorded_ms)

    def rate_req_s(self) -> float | None:
        """Return the highest mean rate of arrivals, requests/s; None in a closed loop."""
        return None if self.process is None else self.process.rate_req_s(self.recorded_ms)

    def in_order(self, sequences: IntArray, runs: Sequence[int], *, whole: bool) -> IntArray:
        """Let the requests of run 0 come in the order in which they were recorded, if that is the load."""
        if not (isinstance(self.process, Recorded) and whole and self.recorded_order is not None):
            return sequences
        line = np.tile(self.recorded_order, -(-sequences.shape[1] // len(self.recorded_order)))[: sequences.shape[1]]
        return np.where((np.asarray(runs) == 0)[:, None] & (sequences >= 0), line, sequences)


def loads_of(config: ReplayConfig, pool: Pool, truth: CostModel, arrival_s: F64Array | None) -> list[Load]:
    """Return the loads of a config, in its order.

    Args:
        arrival_s: when each of the pool's requests arrived; None or NaN where the trace does not say.

    Raises:
        InputError: recorded arrivals that the trace does not hold.
    """
    if not config.arrivals:
        most = config.max_num_seqs or max(config.concurrency)
        return [Load(str(c), min(c, most), c, None, 8 * c, min(c, most)) for c in config.concurrency]
    recorded_ms = order = None
    if arrival_s is not None and np.isfinite(arrival_s).all():
        order = np.argsort(arrival_s, kind="stable")
        recorded_ms = arrival_s[order] * 1e3
    seats = config.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    found = []
    for spec in config.arrivals:
        process = arrivals.make(spec)
        # Little's law with the time that plain decoding takes alone: what runs at once if the engine is not strained.
        in_system = process.rate_req_s(recorded_ms) * _alone_s(pool, truth)
        busy = int(np.clip(np.ceil(in_system), 1, seats))
        least = config.num_requests or 8 * busy
        found.append(Load(spec, seats, None, process, least, busy, recorded_ms, order))
    return found


def _alone_s(pool: Pool, truth: CostModel) -> float:
    one, none = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    kv = np.array([float((pool.prompt_len + pool.output_len / 2).mean())])
    step_ms = float(truth.step_ms(StepShape(one, one, kv, none), drafting=False)[0])
    return float(pool.output_len.mean()) * step_ms / 1e3
