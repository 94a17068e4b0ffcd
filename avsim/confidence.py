"""The estimator inside a closed loop: confidences of the blocks at hand, and learning from their verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from avsim.estimators.base import Estimator, EstimatorState, advance
from avsim.types import BoolArray, F32Array, IntArray, Observations, observe
from avsim.workload import Pool

__all__ = ["ClosedLoopConfidence"]


class ClosedLoopConfidence:
    """One estimator per run of a closed loop, each learning from its own run.

    Predictions change only at a refit, so while the pool is small the confidences of all its blocks are tabulated
    there and a step is a gather. Observations are handed over once per refit; block-split invariance makes that
    the same as handing them over step by step.
    """

    def __init__(
        self, estimator: Estimator, pool: Pool, states: Sequence[EstimatorState], num_slots: int, num_reqs: int
    ):
        self.estimator = estimator
        self.pool = pool
        self.states = list(states)
        self.num_slots = num_slots
        self._features = {name: pool.features[name][:num_slots] for name in estimator.features}
        self._rows: list[IntArray] = []
        self._admitted: list[IntArray] = []
        self._active: list[BoolArray] = []
        self._left = [estimator.refit_interval - state.steps_since_refit for state in self.states]
        rows = len(pool.num_accepted)
        self._tabulate = rows <= 4 * estimator.refit_interval * num_reqs or rows <= 1 << 14
        self._table = np.empty((num_slots, len(self.states), rows if self._tabulate else 0), dtype=np.float32)
        self._offset = np.arange(len(self.states))[:, None] * self._table.shape[2]
        if self._tabulate:
            for run in range(len(self.states)):
                self._predict_all(run)

    def predict(self, rows: IntArray) -> F32Array:
        """Return the confidences of blocks `[runs, reqs]` as they are drafted now, float32 `[K, runs, reqs]`."""
        if self._tabulate:
            return np.take(self._table.reshape(self.num_slots, -1), rows + self._offset, axis=1)
        return np.stack([self._predict(run, line) for run, line in enumerate(rows)], axis=1)

    def record(self, rows: IntArray, admitted: IntArray, active: BoolArray) -> None:
        """Take the verdicts of one step, all arrays `[runs, reqs]`, and refit the runs that are due."""
        self._rows.append(rows)
        self._admitted.append(admitted)
        self._active.append(active)
        self._left = [left - 1 for left in self._left]
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
        rows, admitted = np.stack(self._rows), np.stack(self._admitted)
        active = np.stack(self._active)
        self._rows, self._admitted, self._active = [], [], []
        for run, state in enumerate(self.states):
            mask = active[:, run]
            refits = state.refits
            self.states[run] = advance(
                self.estimator, state, self._observations(run, rows[:, run], admitted[:, run], mask), len(rows)
            )
            if self._tabulate and self.states[run].refits != refits:
                self._predict_all(run)

    def _observations(self, run: int, rows: IntArray, admitted: IntArray, active: BoolArray) -> Observations:
        counts = active.sum(axis=1)
        picked, admitted = rows[active], admitted[active]
        accepted = np.minimum(self.pool.num_accepted[picked], admitted)
        recorded = self.pool.num_recorded[picked]
        # A slot that the trace lacks is charged, but it has no verdict to learn from.
        observed, label = observe(np.minimum(admitted, recorded), accepted, self.num_slots, self.pool.unfit[picked])
        confidence = self._table[:, run, picked] if self._tabulate else self._predict(run, picked)
        features = {name: array[:, picked] for name, array in self._features.items()}
        return Observations(features, confidence, observed, label, np.concatenate(([0], np.cumsum(counts))))

    def _predict(self, run: int, rows: IntArray) -> F32Array:
        features = {name: array[:, rows] for name, array in self._features.items()}
        return self.estimator.predict(self.states[run].params, features, (self.num_slots, len(rows)))

    def _predict_all(self, run: int) -> None:
        shape = (self.num_slots, self._table.shape[2])
        self._table[:, run] = self.estimator.predict(self.states[run].params, self._features, shape)
