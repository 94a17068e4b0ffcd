"""Bounds that know the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from avsim.policies.base import Policy, StepBatch
from avsim.policies.budget import allocate, best_budget, survival
from avsim.types import IntArray

__all__ = ["Oracle"]


@dataclass(frozen=True)
class Oracle(Policy):
    """The budget rule on the true labels (`oracle`), or admission of exactly what will be accepted (`oracle:exact`).

    `oracle` has, per step and state, the most emitted tokens per ms of all policies that draft. It always drafts,
    so plain decoding may beat it; over a whole run nothing is claimed.
    """

    name: ClassVar[str] = "oracle"
    positional: ClassVar[str | None] = "rule"
    uses_truth: ClassVar[bool] = True

    rule: Literal["budget", "exact"] = "budget"

    @property
    def separable(self) -> bool:
        return self.rule == "exact"

    def lossy(self, lag: int) -> str | None:
        return "it reads the verdict"

    def admit(self, step: StepBatch) -> IntArray:
        if step.num_accepted is None:
            raise ValueError("oracle needs num_accepted")
        if self.rule == "exact":
            return np.minimum(step.num_accepted, step.num_drafted)
        useful = step.num_accepted
        if step.num_remaining is not None:
            # The bonus token ends an output as well as its last draft would.
            useful = np.minimum(useful, step.num_remaining - 1)
        slot = np.arange(len(step.live))[:, None, None]
        truth = (slot < useful).astype(np.float32)
        return allocate(survival(truth, step.num_drafted), best_budget(step, truth))
