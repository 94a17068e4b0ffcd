"""The best throughput at which no request is too slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.policies.base import Policy, StepBatch
from avsim.policies.budget import (
    allocate,
    best_within,
    budget_cap,
    by_step,
    expected_tokens,
    sizing_survival,
    step_costs,
    survival,
)
from avsim.types import F64Array, IntArray

__all__ = ["ServiceLevel"]


@dataclass(frozen=True)
class ServiceLevel(Policy):
    """`adaptive`, among budgets at which every drafting request's expected TPOT keeps a bound in ms: `slo:30`.

    B = argmax N(B) / C(B) over the budgets with C(B) ≤ bound · min_i E_i(B), where C(B) = draft[num_reqs] +
    verify[T + B] is the step's believed cost, and E_i(B) = 1 + the survivals of request i among the B highest: what it
    is expected to emit, on the sizing confidences. C / E_i is the expected TPOT of request i while steps are like this
    one; the slowest is a request that gets no slot, and waits C(B) for one token. Where no budget keeps the bound, the
    one with the lowest expected TPOT of the slowest. It is a bound on an expectation of single steps: no percentile,
    no promise for a request's whole TPOT, and none for queueing or prefill.

    The TPOT of all requests taken together is not bounded, since that says nothing new: N_sampling · C(B) / N(B) is
    lowest where N / C is highest, which is `adaptive`. Allocation as in `adaptive`.
    """

    name: ClassVar[str] = "slo"
    positional: ClassVar[str | None] = "tpot_ms"
    uses_confidence: ClassVar[bool] = True

    tpot_ms: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.tpot_ms) and self.tpot_ms > 0):
            raise InputError(f"{self.name}: tpot_ms must be finite and > 0, not {self.tpot_ms}")

    def lossy(self, lag: int) -> str | None:
        return "its budget is a global argmax on live confidences" if lag == 0 else None

    def admit(self, step: StepBatch) -> IntArray:
        survivals = sizing_survival(step.sizing, step.num_drafted)
        flat = by_step(survivals)
        order = np.argsort(-flat, axis=1, kind="stable")
        tokens = expected_tokens(np.take_along_axis(flat, order, axis=1), step.num_sampling)
        cost = step_costs(step.num_reqs, step.num_target_tokens, flat.shape[1], step.tables)
        slowest = _slowest(survivals, step.num_drafted, order)
        cap = budget_cap(step)
        keeps = (cost <= self.tpot_ms * slowest) & (np.arange(tokens.shape[1]) <= cap[:, None])
        value = np.where(keeps.any(axis=1, keepdims=True), np.where(keeps, tokens / cost, -np.inf), -cost / slowest)
        return allocate(survival(step.live, step.num_drafted), best_within(value, cap))


def _slowest(survivals: F64Array, num_drafted: IntArray, order: IntArray) -> F64Array:
    """Return min_i E_i(B) at B = 0 … K·R, `[S, K·R + 1]`; infinite in a step without drafts.

    Before its slot k is among the B highest, a request has at most 1 + Σ_{j<k} S_j tokens, and that rises with k. So
    the minimum at B is that of these numbers over all slots at ranks ≥ B, and of the whole blocks.
    """
    drafted = np.arange(len(survivals))[:, None, None] < num_drafted
    gained = np.cumsum(np.where(drafted, survivals, 0), axis=0)
    before = np.where(drafted, 1 + np.concatenate((np.zeros_like(gained[:1]), gained[:-1])), np.inf)
    whole = np.where(num_drafted > 0, 1 + gained[-1], np.inf).min(axis=1, keepdims=True, initial=np.inf)
    ranked = np.concatenate((np.take_along_axis(by_step(before), order, axis=1), whole), axis=1)
    return np.minimum.accumulate(ranked[:, ::-1], axis=1)[:, ::-1]
