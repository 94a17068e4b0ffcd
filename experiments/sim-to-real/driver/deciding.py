"""avsim's own policy and estimator, run for real: one step at a time, with what an engine knows at that moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from avsim.costs.base import CostTables
from avsim.estimators.base import EstimatorState, advance
from avsim.policies.base import DraftPlan, StepBatch, StepOutcome
from avsim.simulate import Arm
from avsim.sizing import Sizing
from avsim.types import Observations


@dataclass
class Places:
    """What `Sizing` asks of the seats: blocks verified so far, and who came since the last step, `[1, C]`."""

    age: np.ndarray
    entering: np.ndarray
    prefills: bool = False


class Deciding:
    """One arm's decisions.

    Per step: `plan` before drafting, `admit` on the drafts' features, `observe` with the verdicts.

    Args:
        tables: the costs that the policy believes in.
        state: the estimator's start; None for a cold one.
    """

    def __init__(self, arm: Arm, num_slots: int, concurrency: int, tables: CostTables, state: EstimatorState | None):
        self.arm, self.tables = arm, tables
        self.num_slots = arm.policy.depth(num_slots)
        self.shape = (self.num_slots, 1, concurrency)
        self.estimator = arm.estimator if arm.policy.uses_confidence else None
        if self.estimator is not None and self.estimator.memory_size:
            raise ValueError(f"{self.estimator.name} keeps numbers of each request, which this driver does not")
        self.state = state
        if self.estimator is not None and state is None:
            self.state = self.estimator.start(self.num_slots)
        self.sizing = Sizing(arm.lag, self.shape, steady=not arm.policy.plans)
        self.memory = arm.policy.fresh_memory(self.num_slots)[:, None]
        self.last_admitted = np.full((1, concurrency), self.num_slots)
        self.places = Places(np.zeros((1, concurrency), np.int64), np.zeros((1, concurrency), dtype=bool))
        self.unread = np.ones(self.shape, dtype=np.float32)

    @property
    def features(self) -> tuple[str, ...]:
        """What `admit` must be given of each draft."""
        return self.estimator.features if self.estimator is not None else ()

    def plan(self, active: np.ndarray, entering: np.ndarray, age: np.ndarray) -> int:
        """Return how deep to draft in this step; all arguments `[C]`."""
        self.places = Places(age[None], entering[None])
        self.active = active[None]
        self.reqs = np.array([active.sum()])
        if entering.any():
            self.last_admitted = np.where(entering, self.num_slots, self.last_admitted)
        # Sizing reads its history alone at lag 1, and `Places` is all that it asks of seats.
        self.old = self.sizing.read(self.unread, cast(Any, self.places))
        if not self.arm.policy.plans:
            return self.num_slots
        reqs = self.reqs
        remembered = self.memory if len(self.memory) else None
        plan = DraftPlan(self.old, self.active, reqs, reqs, reqs, self.tables, remembered)
        return int(self.arm.policy.plan(plan)[0])

    def admit(self, depth: int, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return how many drafts of each place are verified, int `[C]`; features are `[K, C]`, unread beyond depth."""
        if self.estimator is not None and self.state is not None:
            self.drafted_on = {name: features[name] for name in self.estimator.features}
            width = (self.num_slots, self.shape[2])
            self.live = self.estimator.predict(self.state.params, self.drafted_on, width)[:, None]
        else:
            self.live = self.unread
        self.depth = np.array([depth])
        self.num_drafted = np.where(self.active, depth, 0)
        remembered = self.memory if len(self.memory) else None
        batch = StepBatch(
            self.live, self.old, self.num_drafted, self.reqs, self.reqs, self.reqs, self.tables,
            memory=remembered, sizing_admitted=self.last_admitted,
        )  # fmt: skip
        self.sizing.record(self.live, cast(Any, self.places), self.depth)
        self.admitted = self.arm.policy.admit(batch)
        return cast(np.ndarray, self.admitted[0])

    def observe(self, accepted: np.ndarray, emitted: np.ndarray, ms: float) -> None:
        """Learn from the verdicts, int `[C]` each."""
        if self.estimator is not None and self.state is not None:
            rows = self.active[0]
            features = {name: array[:, rows] for name, array in self.drafted_on.items()}
            starts = np.array([0, rows.sum()])
            seen = Observations.grade(
                features, self.live[:, 0, rows], self.admitted[0, rows], accepted[rows], starts
            )  # fmt: skip
            self.state = advance(self.estimator, self.state, seen, 1)
        if len(self.memory):
            outcome = StepOutcome(
                self.live, self.num_drafted, self.admitted, accepted[None], emitted[None], self.depth, self.reqs,
                np.array([ms]),
            )  # fmt: skip
            self.memory = self.arm.policy.remember(self.memory, outcome)
        self.sizing.recording = self.active
        self.last_admitted = self.admitted
