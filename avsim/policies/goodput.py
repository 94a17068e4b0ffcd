"""SmartSpec's goodput rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from avsim.errors import InputError
from avsim.policies.base import DraftPlan, Policy, StepBatch, StepOutcome
from avsim.policies.budget import depth_costs
from avsim.policies.moving import moving_mean
from avsim.types import F64Array, IntArray

__all__ = ["Goodput"]

_PRIOR_RATE, _PRIOR_WEIGHT = 0.7, 10.0
"""What acceptance is taken for before anything was verified, and how many verdicts that is worth."""


@dataclass(frozen=True)
class Goodput(Policy):
    """One draft length for all requests of a step, with the highest goodput at the acceptance rates seen so far.

    k* = argmax over 0 ≤ k ≤ K of (N_sampling + R Σ_{j≤k} ∏_{i≤j} α_i) / (draft_k + verify[T + R k]), first maximum: R
    requests to draft for, believed costs. α is a moving mean over verdicts (accepted slots, and the first rejection):
    one rate for all slots (`rates = one`; then the sum is SmartSpec's (1 − α^{k+1}) / (1 − α)), or one for each slot
    (`per-slot`), which is not biased where requests differ. A mean over `horizon` verdicts, begun at 0.7 worth ten.

    It drafts and verifies exactly k*. A slot that is never drafted teaches nothing, so one step in `probe` drafts one
    slot more: where k* = 0, or, with a rate for each slot, k* < K. With 0 it never probes, and a bad start then lasts.

    Source: SmartSpec / TurboSpec (arXiv 2406.14066), without its KV term; probing is ours.
    """

    name: ClassVar[str] = "goodput"

    rates: Literal["one", "per-slot"] = "one"
    horizon: int = 1000
    probe: int = 50

    def __post_init__(self) -> None:
        if self.horizon < 1 or self.probe < 0:
            raise InputError(f"{self.name}: horizon (verdicts) must be at least 1, and probe (steps) at least 0")

    @property
    def plans(self) -> bool:
        return True

    def memory_size(self, num_speculative_tokens: int) -> int:
        """The rates, the verdicts that each rests on, and the number of steps so far."""
        return 2 * self._num_rates(num_speculative_tokens) + 1

    def fresh_memory(self, num_speculative_tokens: int) -> F64Array:
        num_rates = self._num_rates(num_speculative_tokens)
        return np.concatenate((np.full(num_rates, _PRIOR_RATE), np.full(num_rates, _PRIOR_WEIGHT), [0.0]))

    def plan(self, plan: DraftPlan) -> IntArray:
        if plan.memory is None:
            raise ValueError(f"{self.name} needs its memory")
        num_slots, reqs = len(plan.sizing), plan.ready.sum(axis=1)
        rates = np.broadcast_to(plan.memory[: self._num_rates(num_slots)], (num_slots, len(reqs)))
        gained = np.zeros((num_slots + 1, len(reqs)))
        gained[1:] = np.cumsum(np.cumprod(rates, axis=0), axis=0)
        tokens = plan.num_target_tokens + np.arange(num_slots + 1)[:, None] * reqs
        verify = plan.tables.verify[np.minimum(tokens, len(plan.tables.verify) - 1)]
        cost = depth_costs(plan.tables, plan.num_reqs, num_slots) + verify
        depth = ((plan.num_sampling + reqs * gained) / cost).argmax(axis=0)
        if not self.probe:
            return depth
        due = plan.memory[-1] % self.probe == self.probe - 1
        return depth + (due & (depth < (1 if self.rates == "one" else num_slots)))

    def admit(self, step: StepBatch) -> IntArray:
        return step.num_drafted.copy()

    def remember(self, memory: F64Array, outcome: StepOutcome) -> F64Array:
        num_slots = len(outcome.live)
        num_rates = self._num_rates(num_slots)
        slot = np.arange(num_slots)[:, None, None]
        observed = ((slot <= outcome.num_accepted) & (slot < outcome.num_admitted)).sum(axis=2)
        accepted = (slot < outcome.num_accepted).sum(axis=2)
        if self.rates == "one":
            observed, accepted = observed.sum(axis=0, keepdims=True), accepted.sum(axis=0, keepdims=True)
        mean, seen = memory[:num_rates], memory[num_rates:-1]
        mean, seen = moving_mean(mean, seen, accepted / np.maximum(observed, 1), observed, self.horizon)
        return np.where(outcome.num_reqs > 0, np.concatenate((mean, seen, memory[-1:] + 1)), memory)

    def _num_rates(self, num_slots: int) -> int:
        return 1 if self.rates == "one" else num_slots
