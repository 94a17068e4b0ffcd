"""The estimator inside a closed loop: confidences of the blocks at hand, and learning from their verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from avsim.estimators.base import MEMORY, Estimator, EstimatorState, advance
from avsim.types import BoolArray, F32Array, IntArray, Observations
from avsim.workload import Pool

__all__ = ["ClosedLoopConfidence"]


class ClosedLoopConfidence:
    """One estimator per run of a closed loop, each learning from its own run.

    Predictions change only at a refit, so while the pool is small the confidences of all its blocks are tabulated
    there and a step is a gather. Observations are handed over once per refit; block-split invariance makes that
    the same as handing them over step by step. An estimator that keeps something of each request predicts and
    remembers step by step.

    With `uncensored`, every slot that a verdict reaches at full admission is learned from, verified or not: no engine
    can, and the difference is what censoring costs.
    """

    def __init__(
        self,
        estimator: Estimator,
        pool: Pool,
        states: Sequence[EstimatorState],
        num_slots: int,
        num_reqs: int,
        uncensored: bool = False,
    ):
        self.estimator = estimator
        self.pool = pool
        self.states = list(states)
        self.num_slots = num_slots
        self._features = {name: pool.features[name][:num_slots] for name in estimator.features}
        self._uncensored = uncensored
        self._memory = np.zeros((estimator.memory_size, len(self.states), num_reqs), dtype=np.float32)
        self._kept: list[F32Array] = []
        self._drafted: list[F32Array] = []
        self._rows: list[IntArray] = []
        self._admitted: list[IntArray] = []
        self._active: list[BoolArray] = []
        self._left = [estimator.refit_interval - state.steps_since_refit for state in self.states]
        rows = len(pool.num_accepted)
        self._tabulate = not estimator.memory_size and (
            rows <= 4 * estimator.refit_interval * num_reqs or rows <= 1 << 14
        )
        self._table = np.empty((num_slots, len(self.states), rows if self._tabulate else 0), dtype=np.float32)
        self._offset = np.arange(len(self.states))[:, None] * self._table.shape[2]
        if self._tabulate:
            self._predict_all(0)
            for run in range(1, len(self.states)):
                if self.states[run].params is self.states[0].params:
                    self._table[:, run] = self._table[:, 0]
                else:
                    self._predict_all(run)

    def predict(self, rows: IntArray, fresh: BoolArray) -> F32Array:
        """Return the confidences of blocks as they are drafted now, float32 `[K, runs, reqs]`.

        Args:
            rows: the blocks, int `[runs, reqs]`.
            fresh: where a request has its first block: nothing is kept of the one that sat there before.
        """
        if self._tabulate:
            return np.take(self._table.reshape(self.num_slots, -1), rows + self._offset, axis=1)
        if self.estimator.memory_size:
            self._memory[:, fresh] = 0
            self._kept.append(self._memory.copy())
        live = np.stack([self._predict(run, line, self._memory[:, run]) for run, line in enumerate(rows)], axis=1)
        if self.estimator.memory_size:
            self._drafted.append(live)
        return live

    @property
    def table(self) -> F32Array | None:
        """The confidences of all blocks until the next refit, `[K, runs, rows]`; None where they are not tabulated."""
        return self._table if self._tabulate else None

    @property
    def steps_left(self) -> int:
        """Steps until a refit is due."""
        return min(self._left)

    @property
    def in_step(self) -> bool:
        """Whether all runs refit in the same steps."""
        return min(self._left) == max(self._left)

    def alone(self, run: int) -> ClosedLoopConfidence:
        """Return one run by itself, to go on from its start; not for estimators with a memory."""
        one = copy(self)
        one.states, one._left = [self.states[run]], [self._left[run]]
        one._table, one._offset = self._table[:, run : run + 1].copy(), self._offset[:1]
        one._rows, one._admitted, one._active = [], [], []
        return one

    def record(self, rows: IntArray, admitted: IntArray, active: BoolArray) -> None:
        """Take the verdicts of one step, all arrays `[runs, reqs]`, and refit the runs that are due."""
        if self.estimator.memory_size:
            for run in range(len(self.states)):
                seats = np.flatnonzero(active[run])
                seen = self._observations(run, rows[None, run], admitted[None, run], active[None, run], -1)
                self._memory[:, run, seats] = self.estimator.remember(self.states[run].params, seen)
        self.record_steps(rows[None], admitted[None], active[None])

    def record_steps(self, rows: IntArray, admitted: IntArray, active: BoolArray) -> None:
        """Take the verdicts of some steps up to a refit, `[steps, runs, reqs]`; not for estimators with a memory."""
        self._rows.append(rows)
        self._admitted.append(admitted)
        self._active.append(active)
        self._left = [left - len(rows) for left in self._left]
        if min(self._left) > 0:
            return
        self._learn()
        self._left = [self.estimator.refit_interval - state.steps_since_refit for state in self.states]

    def finish(self) -> list[EstimatorState]:
        """Hand over what is pending and return the final states."""
        if self._rows:
            self._learn()
        return self.states

    def _learn(self) -> None:
        rows, admitted = np.concatenate(self._rows), np.concatenate(self._admitted)
        active = np.concatenate(self._active)
        self._rows, self._admitted, self._active = [], [], []
        for run, state in enumerate(self.states):
            seen = self._observations(run, rows[:, run], admitted[:, run], active[:, run], 0)
            self.states[run] = advance(self.estimator, state, seen, len(rows))
            if self._tabulate and self.states[run].params is not state.params:
                self._predict_all(run)
        self._kept, self._drafted = [], []

    def _observations(
        self, run: int, rows: IntArray, admitted: IntArray, active: BoolArray, first: int
    ) -> Observations:
        """Grade the steps `[steps, reqs]` of one run, the first of which is the `first`th pending one."""
        counts = active.sum(axis=1)
        if counts.sum() == active.size:
            picked, admitted = rows.ravel(), admitted.ravel()
        else:
            picked, admitted = rows[active], admitted[active]
        recorded = self.pool.num_recorded[picked]
        # A slot that the trace lacks is charged, but it has no verdict to learn from.
        known = np.minimum(recorded, self.num_slots) if self._uncensored else np.minimum(admitted, recorded)
        accepted = np.minimum(self.pool.num_accepted[picked], known)
        # Three times as fast as an index; the mode spares a check that no row is out of bounds.
        features = {name: array.take(picked, axis=1, mode="clip") for name, array in self._features.items()}
        if self.estimator.memory_size:
            kept = np.stack(self._kept[first:], axis=1)[:, :, run]
            features[MEMORY] = kept[:, active]
            confidence = np.stack(self._drafted[first:], axis=1)[:, :, run][:, active]
        elif self._tabulate:
            flat = self._table.reshape(self.num_slots, -1)
            confidence = flat.take(picked + self._offset[run], axis=1, mode="clip")
        else:
            confidence = self._predict(run, picked)
        starts = np.concatenate(([0], np.cumsum(counts)))
        return Observations.grade(features, confidence, known, accepted, starts, self.pool.unfit[picked])

    def _predict(self, run: int, rows: IntArray, memory: F32Array | None = None) -> F32Array:
        features = {name: array[:, rows] for name, array in self._features.items()}
        if memory is not None and len(memory):
            features[MEMORY] = memory
        return self.estimator.predict(self.states[run].params, features, (self.num_slots, len(rows)))

    def _predict_all(self, run: int) -> None:
        shape = (self.num_slots, self._table.shape[2])
        self._table[:, run] = self.estimator.predict(self.states[run].params, self._features, shape)
