"""Policies with one realistic mistake each; `test_policy_contract.py` says which checks catch it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from avsim.policies import (
    NO_LOGIT_LIMIT,
    Adaptive,
    AdaptiveSkip,
    FixedDepth,
    Goodput,
    NoDrafting,
    Oracle,
    PrefixScheduler,
    Renewal,
    ServiceLevel,
    Threshold,
)
from avsim.policies.budget import allocate, best_budget, budget_cap, objective, ranked_survival, survival


@dataclass(frozen=True)
class TooDeep(FixedDepth):
    """Asks for its own depth whatever the trace holds."""

    def depth(self, num_speculative_tokens):
        return self.k


@dataclass(frozen=True)
class OverDrafts(FixedDepth):
    """Verifies k slots even where fewer were drafted."""

    def admit(self, step):
        return np.full(step.num_drafted.shape, self.k)


@dataclass(frozen=True)
class FloatCounts(FixedDepth):
    """Counts in floating point."""

    def admit(self, step):
        return super().admit(step).astype(np.float64)


@dataclass(frozen=True)
class MarksSkipped(Adaptive):
    """Marks the requests that get nothing by −1."""

    def admit(self, step):
        admitted = super().admit(step)
        return np.where(admitted == 0, -1, admitted)


@dataclass(frozen=True)
class CutsInPlace(FixedDepth):
    """Cuts the caller's num_drafted instead of a copy."""

    def admit(self, step):
        return np.minimum(step.num_drafted, self.k, out=step.num_drafted)


@dataclass(frozen=True)
class ReadsUndrafted(PrefixScheduler):
    """Ranks every slot, drafted or not, and cuts what was not drafted afterwards."""

    early_stop: bool = False

    def admit(self, step):
        everything = np.full_like(step.num_drafted, len(step.live))
        live = np.nan_to_num(step.live)
        return np.minimum(allocate(survival(live, everything), best_budget(step, step.live)), step.num_drafted)


@dataclass(frozen=True)
class LastMaximum(Adaptive):
    """Takes the last of several equally good budgets."""

    def admit(self, step):
        ranked = ranked_survival(step.sizing, step.num_drafted)
        value = objective(ranked, step.num_sampling, step.num_reqs, step.num_target_tokens, step.tables)
        value[np.arange(value.shape[1]) > budget_cap(step)[:, None]] = -np.inf
        budget = value.shape[1] - 1 - value[:, ::-1].argmax(axis=1)
        return allocate(survival(step.live, step.num_drafted), budget)


@dataclass(frozen=True)
class PassesFalls(PrefixScheduler):
    """Named after Algorithm 1, but goes on past the first fall to the global maximum."""

    def admit(self, step):
        return PrefixScheduler(early_stop=False).admit(step)


@dataclass(frozen=True)
class AdmitsTies(Adaptive):
    """Admits every slot that reaches the threshold, so a tie at the cut overshoots the budget."""

    def admit(self, step):
        budget = best_budget(step, step.sizing)
        live = survival(step.live, step.num_drafted)
        ranked = -np.sort(-live.transpose(1, 0, 2).reshape(len(budget), -1), axis=1)
        cut = ranked[np.arange(len(budget)), np.maximum(budget - 1, 0)]
        return ((live >= cut[:, None]) & (budget[:, None] > 0) & (live >= 0)).sum(axis=0)


@dataclass(frozen=True)
class TiesByRequest(Adaptive):
    """Fills a tie request by request, so that the first ones are verified to their full depth."""

    def admit(self, step):
        budget = best_budget(step, step.sizing)
        live = survival(step.live, step.num_drafted)
        slots, steps, reqs = live.shape
        order = np.argsort(-live.transpose(1, 2, 0).reshape(steps, -1), axis=1, kind="stable")
        taken = np.zeros((steps, reqs * slots), dtype=bool)
        np.put_along_axis(taken, order, np.arange(reqs * slots) < budget[:, None], axis=1)
        return taken.reshape(steps, reqs, slots).sum(axis=2)


@dataclass(frozen=True)
class SharesBudget(Adaptive):
    """Chooses one budget for all steps that happen to be decided together."""

    def admit(self, step):
        budget = np.minimum(best_budget(step, step.sizing).max(initial=0), budget_cap(step))
        return allocate(survival(step.live, step.num_drafted), budget)


@dataclass(frozen=True)
class CountsRows(Adaptive):
    """Takes the width of the batch for the number of requests."""

    def admit(self, step):
        return super().admit(replace(step, num_reqs=np.full_like(step.num_reqs, step.num_drafted.shape[1])))


@dataclass(frozen=True)
class FavoursFirst(Adaptive):
    """Serves requests in batch order, each to its full depth, until the budget is spent."""

    def admit(self, step):
        before = np.cumsum(step.num_drafted, axis=1) - step.num_drafted
        return np.clip(best_budget(step, step.sizing)[:, None] - before, 0, step.num_drafted)


@dataclass(frozen=True)
class ForgetsLogitLimit(Adaptive):
    """Leaves out the cap of the rejection sampler."""

    def admit(self, step):
        return super().admit(replace(step, max_total_logits=NO_LOGIT_LIMIT))


@dataclass(frozen=True)
class PeeksAtVerdict(Adaptive):
    """Trims to the verdict where somebody left it in the batch."""

    def admit(self, step):
        admitted = super().admit(step)
        return admitted if step.num_accepted is None else np.minimum(admitted, step.num_accepted)


@dataclass(frozen=True)
class CallsItselfSeparable(Adaptive):
    """Ranks slots across requests, and says that it does not."""

    @property
    def separable(self):
        return True


@dataclass(frozen=True)
class HidesConfidence(Adaptive):
    """Reads confidences without saying so."""

    uses_confidence: ClassVar[bool] = False


@dataclass(frozen=True)
class Alternates(FixedDepth):
    """Remembers how often it was asked, and skips every second batch."""

    calls: Any = field(default_factory=lambda: [0], compare=False)

    def admit(self, step):
        self.calls[0] += 1
        return super().admit(step) * (self.calls[0] % 2)


@dataclass(frozen=True)
class LossyFlag(Adaptive):
    """Answers yes or no where a reason is asked for."""

    def lossy(self, lag):
        return lag == 0


@dataclass(frozen=True)
class SilentOracle(Oracle):
    """Reads the verdict and claims to be lossless."""

    def lossy(self, lag):
        return None


@dataclass(frozen=True)
class DraftsAfterAll(NoDrafting):
    """Says that it never drafts, but gives a depth."""

    def depth(self, num_speculative_tokens):
        return 1


@dataclass(frozen=True)
class ForgetsFloor(Adaptive):
    """Sizes with the floor, and allocates without it."""

    def admit(self, step):
        budget = best_budget(step, step.sizing, floor=self.floor)
        return allocate(survival(step.live, step.num_drafted), budget)


@dataclass(frozen=True)
class LooksBehindTheCut(Adaptive):
    """Keeps the mean of what was trimmed, but sizes on the drafts themselves."""

    def admit(self, step):
        return Adaptive().admit(step)


@dataclass(frozen=True)
class RoundsThreshold(Threshold):
    """Compares to one digit."""

    def admit(self, step):
        return super().admit(replace(step, live=np.round(step.live, 1)))


@dataclass(frozen=True)
class BoundsTheMean(ServiceLevel):
    """Bounds the TPOT of all requests taken together, which is lowest at the best throughput anyway."""

    def admit(self, step):
        return Adaptive().admit(step)


@dataclass(frozen=True)
class ChargesFullDepth(AdaptiveSkip):
    """Takes the drafts at hand for full ones when it weighs their cost."""

    def admit(self, step):
        return Adaptive().admit(step)


@dataclass(frozen=True)
class PlansTooDeep(Goodput):
    """Drafts one slot more, whatever the drafter can do."""

    def plan(self, plan):
        return super().plan(plan) + 1


@dataclass(frozen=True)
class PlansFractions(Goodput):
    """Plans in floating point."""

    def plan(self, plan):
        return super().plan(plan).astype(np.float64)


@dataclass(frozen=True)
class PlansInPlace(Goodput):
    """Counts the step in the memory that it was given to read."""

    def plan(self, plan):
        plan.memory[-1] += 1
        return super().plan(plan)


@dataclass(frozen=True)
class FreeDrafting(AdaptiveSkip):
    """Weighs verification only."""

    def plan(self, plan):
        free = replace(plan.tables, draft=plan.tables.draft * 0, by_depth=None)
        return super().plan(replace(plan, tables=free))


@dataclass(frozen=True)
class OnePlanForAll(Goodput):
    """Chooses one depth for all steps that happen to be planned together."""

    def plan(self, plan):
        return np.full_like(plan.num_reqs, super().plan(plan).max(initial=0))


@dataclass(frozen=True)
class FirstRequestPlans(Goodput):
    """Drafts only if the first seat is taken."""

    def plan(self, plan):
        return super().plan(plan) * plan.ready[:, 0]


@dataclass(frozen=True)
class PlansOnTheVerdict(Goodput):
    """Drafts no deeper than anything will be accepted, where somebody left the verdict in the plan."""

    def plan(self, plan):
        depth = super().plan(plan)
        return depth if plan.num_accepted is None else np.minimum(depth, plan.num_accepted.max(axis=1))


@dataclass(frozen=True)
class PlansOnConfidence(Goodput):
    """Drafts one slot where the last blocks look bad, and says that it reads no confidences."""

    def plan(self, plan):
        bad = np.where(plan.ready, plan.sizing[0], 1).min(axis=1) < 0.7
        return np.where(bad, 1, super().plan(plan))


@dataclass(frozen=True)
class CountsTheUnready(PlansOnConfidence):
    """Looks at the blocks of requests that cannot be drafted for."""

    uses_confidence: ClassVar[bool] = True

    def plan(self, plan):
        return np.where(plan.sizing[0].min(axis=1) < 0.3, 1, Goodput.plan(self, plan))


@dataclass(frozen=True)
class RemembersNothing(Renewal):
    """Declares a memory and returns another one."""

    def remember(self, memory, outcome):
        return super().remember(memory, outcome)[:, :1]


@dataclass(frozen=True)
class SinglePrecision(Renewal):
    """Keeps its numbers in float32."""

    def remember(self, memory, outcome):
        return super().remember(memory, outcome).astype(np.float32)


@dataclass(frozen=True)
class DividesByZero(FixedDepth):
    """Keeps the ms per request, of a step without requests as well."""

    def memory_size(self, num_speculative_tokens):
        return 1

    def remember(self, memory, outcome):
        with np.errstate(divide="ignore"):
            return ((1 + outcome.ms) / outcome.num_reqs)[None]


@dataclass(frozen=True)
class UpdatesInPlace(Renewal):
    """Writes into the memory that it was given."""

    def remember(self, memory, outcome):
        memory[:] = super().remember(memory, outcome)
        return memory


@dataclass(frozen=True)
class CountsEmptySteps(Renewal):
    """Counts steps that did not happen."""

    def remember(self, memory, outcome):
        return super().remember(memory, replace(outcome, num_reqs=np.ones_like(outcome.num_reqs)))


@dataclass(frozen=True)
class SharedMemory(Renewal):
    """Averages over the steps that happen to be remembered together."""

    def remember(self, memory, outcome):
        after = super().remember(memory, outcome)
        return np.repeat(after.mean(axis=1, keepdims=True), after.shape[1], axis=1)


@dataclass(frozen=True)
class RemembersTheFirst(Renewal):
    """Takes the first seat for all of them."""

    def remember(self, memory, outcome):
        return super().remember(
            memory, replace(outcome, num_emitted=outcome.num_emitted[:, :1] * outcome.num_reqs[:, None])
        )


@dataclass(frozen=True)
class CountsSeats(Goodput):
    """Takes the width of the batch for the number of requests that took part."""

    def remember(self, memory, outcome):
        after = super().remember(memory, outcome)
        after[0] /= 1 + 0.01 * outcome.num_drafted.shape[1] * (outcome.num_reqs > 0)
        return after


@dataclass(frozen=True)
class RemembersUndrafted(AdaptiveSkip):
    """Remembers whole blocks, drafted or not."""

    def remember(self, memory, outcome):
        whole = np.where(outcome.num_drafted > 0, len(outcome.live), 0)
        return super().remember(memory, replace(outcome, num_drafted=whole))


@dataclass(frozen=True)
class RemembersConfidence(Goodput):
    """Takes the mean confidence for the rate, and says that it reads no confidences."""

    def remember(self, memory, outcome):
        after = super().remember(memory, outcome)
        first = outcome.num_drafted > 0
        mean = np.where(first, outcome.live[0], 0.0).sum(axis=1, dtype=np.float64) / np.maximum(first.sum(axis=1), 1)
        after[0] = np.where(first.any(axis=1), mean, after[0])
        return after
