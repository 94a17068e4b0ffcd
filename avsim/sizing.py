"""Which confidences a budget is chosen from."""

from __future__ import annotations

from collections import deque

import numpy as np

from avsim.seats import Seats
from avsim.types import F32Array, IntArray

__all__ = ["Sizing"]


class Sizing:
    """The confidences that budgets are chosen from: each seat's drafts as recorded `lag` records ago, 1 before that.

    vLLM sizes on its slot table as it stood before the last record. So a request left out of a step is sized on its
    live confidences next time, and one whose prompt took several steps on what was drafted amid the prompt. Where
    every request drafts all slots in every step (`steady`), that is simply the block before.

    A request left out of a step is predicted anew with the parameters of the next, where an engine keeps what it
    drafted with: the two differ only if a refit came between.
    """

    def __init__(self, lag: int, shape: tuple[int, int, int], *, steady: bool):
        self.lag, self.steady = lag, steady
        self.history: deque[F32Array] = deque([np.ones(shape, dtype=np.float32)] * max(lag, 1), maxlen=max(lag, 1))
        self.slot = np.arange(shape[0])[:, None, None]
        self.records = np.zeros(shape[1:], dtype=np.int64)
        self.recording = np.zeros(shape[1:], dtype=bool)

    def read(self, live: F32Array, seats: Seats) -> F32Array:
        """Return the sizing confidences of the blocks at hand."""
        if self.lag == 0:
            return live
        if self.steady:
            return np.where(seats.age >= self.lag, self.history[0], np.float32(1))
        self.records[seats.entering] = 0
        # A request that is prefilled for free was so in the step before.
        self.recording[seats.entering] = not seats.prefills
        return np.where(self.records >= self.lag, self.history[0], np.float32(1))

    def record(self, live: F32Array, seats: Seats, depth: IntArray) -> None:
        """Record the drafts at hand, which were made at the end of the step before."""
        if self.lag == 0:
            return
        if self.steady:
            self.history.append(live)
            return
        written = self.recording & (self.slot < depth[:, None])
        before = np.where(seats.entering, np.float32(1), self.history[-1])
        self.history.append(np.where(written, live, before))
        self.records += self.recording & (depth[:, None] > 0)
