"""The simulator: requests walk a dense trace through an engine under one policy, many runs in lockstep.

    enter → predict → plan → size → allocate → verify → clock → observe → advance

Runs are independent replicates (bootstrap samples, say) of the same arm and load; they share nothing but the
array operations. All arrays of a step are `[runs, reqs]`, per-slot arrays `[K, runs, reqs]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from avsim.costs.base import CostModel, CostTables
from avsim.errors import InputError
from avsim.estimators.base import Estimator, EstimatorState
from avsim.jit import Engine, take_steps
from avsim.policies.base import NO_LOGIT_LIMIT, Policy
from avsim.seats import Seats
from avsim.serving import Limits, Serving
from avsim.tally import RequestTimes, StepLog, Totals, Work
from avsim.types import F64Array, IntArray
from avsim.workload import Pool

__all__ = ["Arm", "Prompts", "RequestTimes", "SimulationResult", "StepLog", "Totals", "Work", "simulate"]

Prompts = Literal["free", "own-step", "scheduled"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of serving: a policy, the estimator that it reads, and how old its sizing confidences are.

    `lag` counts records: 1 is vLLM (a block is sized by the confidences of the request's block before it), 0 sizes
    on the live confidences. A request's first `lag` blocks are sized at 1. `uncensored`: the estimator learns from
    every slot that a verdict reaches at full admission; no engine can, it is there to price censoring.
    `overhead_ms` and `overhead_us_per_req` are what running the policy itself costs, in every step.
    """

    policy: Policy
    estimator: Estimator | None = None
    lag: int = 1
    uncensored: bool = False
    overhead_ms: float = 0.0
    overhead_us_per_req: float = 0.0

    def __post_init__(self) -> None:
        if self.policy.uses_confidence and self.estimator is None:
            raise InputError(f"policy {self.policy.name} needs an estimator")
        if self.lag < 0:
            raise InputError(f"lag must be at least 0, not {self.lag}")
        if getattr(self.policy, "hide_trimmed", False) and self.lag != 1:
            raise InputError(
                f"{self.policy.name}:hide-trimmed knows what was trimmed of the block before: lag must be 1"
            )
        for name in ("overhead_ms", "overhead_us_per_req"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be finite and ≥ 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What the runs came to.

    Attributes:
        full: totals over the steps with every seat taken; of an open loop, while requests were still to be seated.
        whole: totals over the whole run, the start and the drain included.
        work, whole_work: what the engine did in the same two windows.
        clock_ms, idle_ms: each run's clock at the end, and how much of it went by without a step, `[runs]`.
        states: the estimators' final states, one per run.
        times: of each request.
        log: the steps of run 0, if asked for.
    """

    full: Totals
    whole: Totals
    work: Work
    whole_work: Work
    clock_ms: F64Array
    idle_ms: F64Array
    states: list[EstimatorState]
    times: RequestTimes
    log: StepLog | None


def simulate(
    pool: Pool,
    arm: Arm,
    sequences: IntArray,
    concurrency: int,
    truth: CostModel,
    *,
    arrivals: F64Array | None = None,
    belief: CostModel | None = None,
    states: Sequence[EstimatorState] | None = None,
    max_total_logits: int = NO_LOGIT_LIMIT,
    prompts: Prompts = "free",
    token_budget: int | None = None,
    chunked: bool = True,
    copies: int = 1,
    max_steps: int | None = None,
    first_position: int = 0,
    places: int | None = None,
    log: bool = False,
    engine: Engine = "auto",
) -> SimulationResult:
    """Serve request sequences until they are drained.

    Args:
        pool: the requests and their drafts.
        arm: policy, estimator, lag and the policy's own overhead.
        sequences: request indices in order of service, int `[runs, N]`, −1 past the end.
        concurrency: C, places. A closed loop keeps them taken: a request that ends is replaced by the next of the
            sequence. In an open loop it is max_num_seqs: whoever arrives beyond it waits.
        truth: the clock.
        arrivals: when the requests of each sequence arrive, ms, `[runs, N]`, rising; None for a closed loop.
        belief: the cost model that the policy reads; None for the truth. Oracles always read the truth.
        states: the estimator state to start from, one per run; None for a cold start.
        max_total_logits: see `StepBatch`.
        prompts: `free` charges nothing for prefill (token 0 of an output comes with it); `own-step` runs the
            prompts that enter as one forward pass before the next step; `scheduled` runs them beside the decoding
            requests, first come, first served, within the token budget.
        token_budget: max_num_batched_tokens of a step, drafts included as scheduled, before they are trimmed.
        chunked: whether a scheduled prompt may be split over steps.
        copies: serve every request as this many identical copies, which count as one row here. Only for policies
            that treat each request alone.
        max_steps: stop early.
        first_position: output position at which requests begin; those that are over before are left out.
        places: in an open loop, how many of the C places to begin with, which is faster where few are taken; begun
            again with twice as many where somebody would wait for one that is left out. The result is the same.
        log: keep every step of run 0.
        engine: `jit` runs a closed loop of the policies none, fixed and adaptive in compiled code (numba, which
            compiles for some seconds the first time), `numpy` never; `auto` does where numba is installed and the
            simulation is long. The numbers are the same, and whatever is not compiled for runs in NumPy.

    Raises:
        InputError: concurrency or copies below 1, copies with a policy that ranks across requests or in an open loop,
            a token budget that a step or an unsplit prompt cannot fit in, engine `jit` without numba.
    """
    _check(pool, arm, concurrency, prompts, token_budget, chunked, copies, arrivals, first_position)
    num_slots = arm.policy.depth(pool.num_slots)
    reader = truth if belief is None or arm.policy.uses_truth else belief
    prefills = prompts == "scheduled"
    tables = _tables(reader, pool, concurrency, num_slots, token_budget, prefills)
    limits = Limits(max_total_logits, prompts == "own-step", token_budget, chunked, copies)
    width = concurrency if arrivals is None or places is None else min(places, concurrency)
    while True:
        seats = Seats(pool, sequences, width, arrivals=arrivals, prefills=prefills, first_position=first_position)
        serving = Serving(seats, arm, truth, tables, limits, states, log)
        if serving.plain:
            serving.num_steps = take_steps(
                engine, seats, arm, truth, tables, serving.confidence, serving.tally, serving.log,
                max_total_logits=max_total_logits, max_steps=max_steps,
            )  # fmt: skip
        if serving.run(max_steps, all_places=width == concurrency):
            return _result(serving)
        width = min(2 * width, concurrency)


def _result(serving: Serving) -> SimulationResult:
    """Sum up; the first tokens of prompts that ran by themselves are in the whole run only."""
    seats, tally = serving.seats, serving.tally
    whole, whole_work = tally.whole()
    whole = replace(
        whole,
        ms=whole.ms + serving.prefill_ms,
        emitted=whole.emitted + serving.prefill_reqs,
        first_tokens=whole.first_tokens + serving.prefill_reqs,
    )
    full, work = tally.at_concurrency(seats.num_seats) if seats.arrivals is None else tally.loaded()
    states = serving.confidence.finish() if serving.confidence is not None else []
    return SimulationResult(full, whole, work, whole_work, seats.clock, seats.idle_ms, states, seats.times, serving.log)


def _check(
    pool: Pool,
    arm: Arm,
    concurrency: int,
    prompts: Prompts,
    token_budget: int | None,
    chunked: bool,
    copies: int,
    arrivals: F64Array | None,
    first_position: int,
) -> None:
    if concurrency < 1 or copies < 1:
        raise InputError(f"concurrency and copies must be at least 1, not {concurrency} and {copies}")
    if copies > 1 and not arm.policy.separable:
        raise InputError(f"copies > 1 would tie every ranking of policy {arm.policy.name}")
    if copies > 1 and (arrivals is not None or prompts == "scheduled"):
        raise InputError("copies > 1 is for a closed loop without scheduled prompts")
    if prompts == "own-step" and arrivals is not None:
        raise InputError("an open loop runs prompts free or scheduled, not in steps of their own")
    if prompts == "scheduled" and first_position:
        raise InputError("requests with a scheduled prompt begin at their first token; first_position must be 0")
    if token_budget is None:
        return
    least = 1 + arm.policy.depth(pool.num_slots)
    if token_budget < least:
        raise InputError(f"a token budget of {token_budget} cannot hold one request's {least} tokens")
    longest = int(pool.prompt_len.max())
    if prompts == "scheduled" and not chunked and longest > token_budget:
        raise InputError(
            f"a prompt of {longest} tokens never fits a token budget of {token_budget}; raise it or allow chunks"
        )


def _tables(
    model: CostModel, pool: Pool, concurrency: int, num_slots: int, token_budget: int | None, prefills: bool
) -> CostTables:
    """Tabulate the model as far as a step can go."""
    kv = float((pool.prompt_len + pool.output_len / 2).mean())
    longest = int(pool.prompt_len.max()) if prefills and token_budget is None else 0
    tokens = max(concurrency * max(num_slots + 1, longest), token_budget or 0)
    return model.tables(concurrency, tokens, kv_tokens_per_req=kv, depth=num_slots)
