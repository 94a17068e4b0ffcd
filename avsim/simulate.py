"""The simulator: requests walk a dense trace through an engine under one policy, many runs in lockstep.

    observe last step → plan → predict → size → allocate → verify → advance → clock

Runs are independent replicates (bootstrap samples, say) of the same arm and load; they share nothing but the
array operations. All arrays of a step are `[runs, reqs]`, per-slot arrays `[K, runs, reqs]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from avsim.confidence import ClosedLoopConfidence
from avsim.costs.base import CostModel, CostTables, StepShape
from avsim.costs.cliff import padding
from avsim.errors import InputError
from avsim.estimators.base import Estimator, EstimatorState
from avsim.policies.base import NO_LOGIT_LIMIT, DraftPlan, Policy, StepBatch, StepOutcome
from avsim.seats import Schedule, Seats
from avsim.sizing import Sizing
from avsim.tally import RequestTimes, StepLog, StepSums, Tally, Totals, Work
from avsim.types import F32Array, F64Array, IntArray
from avsim.workload import Pool, keyed_uniform

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

    Raises:
        InputError: concurrency or copies below 1, copies with a policy that ranks across requests or in an open loop,
            a token budget that a step or an unsplit prompt cannot fit in.
    """
    _check(pool, arm, concurrency, prompts, token_budget, chunked, copies, arrivals, first_position)
    num_slots = arm.policy.depth(pool.num_slots)
    reader = truth if belief is None or arm.policy.uses_truth else belief
    prefills = prompts == "scheduled"
    tables = _tables(reader, pool, concurrency, num_slots, token_budget, prefills)
    width = concurrency if arrivals is None or places is None else min(places, concurrency)
    while True:
        seats = Seats(pool, sequences, width, arrivals=arrivals, prefills=prefills, first_position=first_position)
        result = _serve(
            seats, arm, truth, tables, states=states, max_total_logits=max_total_logits, own_step=prompts == "own-step",
            token_budget=token_budget, chunked=chunked, copies=copies, max_steps=max_steps, log=log,
            all_places=width == concurrency,
        )  # fmt: skip
        if result is not None:
            return result
        width = min(2 * width, concurrency)


def _serve(
    seats: Seats,
    arm: Arm,
    truth: CostModel,
    tables: CostTables,
    *,
    states: Sequence[EstimatorState] | None,
    max_total_logits: int,
    own_step: bool,
    token_budget: int | None,
    chunked: bool,
    copies: int,
    max_steps: int | None,
    log: bool,
    all_places: bool,
) -> SimulationResult | None:
    """Run the loop; None where somebody waits for a seat though more could be had."""
    pool, num_slots, prefills = seats.pool, arm.policy.depth(seats.pool.num_slots), seats.prefills
    runs, concurrency = seats.active.shape
    confidence = None
    if arm.policy.uses_confidence and arm.estimator is not None:
        start = states or [arm.estimator.start(num_slots)] * runs
        confidence = ClosedLoopConfidence(arm.estimator, pool, start, num_slots, concurrency, arm.uncensored)
    uneven = prefills or token_budget is not None
    sizing = Sizing(arm.lag, (num_slots, runs, concurrency), steady=not (uneven or arm.policy.plans))
    unread = np.broadcast_to(np.float32(1), (num_slots, runs, concurrency))
    memory = np.repeat(arm.policy.fresh_memory(num_slots)[:, None], runs, axis=1)
    remembers = len(memory) > 0
    last_admitted = np.full((runs, concurrency), num_slots)
    tally, prefill = Tally(runs, copies, padding(truth)), np.zeros((2, runs))
    nothing, idle, step = np.zeros(runs, dtype=np.int64), np.zeros(runs), np.zeros(runs, dtype=np.int64)
    depth, everyone = np.full(runs, num_slots), np.ones(runs, dtype=bool)
    charged = arm.overhead_ms > 0 or arm.overhead_us_per_req > 0
    kept = StepLog() if log else None
    while seats.any_left and (max_steps is None or step[0] < max_steps):
        idled = seats.wake()
        if not all_places and seats.somebody_waits:
            return None
        if own_step and seats.somebody_enters:
            prefill += (entered := _prefill(truth, seats, copies))
            seats.prefilled(entered[0])
        if seats.somebody_enters:
            last_admitted = np.where(seats.entering, num_slots, last_admitted)
        rows = seats.rows
        live = confidence.predict(rows, seats.age == 0) if confidence is not None else unread
        old = sizing.read(live, seats)
        verdicts = (pool.num_accepted[rows], seats.remaining) if arm.policy.uses_truth else (None, None)
        if arm.policy.plans:
            depth = arm.policy.plan(
                _draft_plan(old, seats, tables, memory if remembers else None, verdicts, max_total_logits)
            )
        plan = seats.schedule(rows, depth[:, None], token_budget, chunked)
        decoding = plan.decoding.sum(axis=1) if uneven else seats.num_active
        num_reqs = plan.scheduled.sum(axis=1) if uneven else decoding
        first_tokens = plan.ends_prompt.sum(axis=1) if prefills else nothing
        prompt_tokens = plan.prompt_tokens.sum(axis=1) if prefills else nothing
        sampling, target_tokens = decoding + first_tokens, decoding + prompt_tokens
        batch = StepBatch(
            live,
            old,
            plan.num_drafted,
            num_reqs,
            sampling,
            target_tokens,
            tables,
            verdicts[0],
            verdicts[1],
            max_total_logits,
            keyed_uniform(rows, seats.turn) if arm.policy.explores else None,
            memory if remembers else None,
            last_admitted,
        )
        sizing.record(live, seats, depth)
        admitted = arm.policy.admit(batch)
        accepted = np.minimum(pool.num_accepted[rows], admitted)  # 0 in an empty seat, which admits nothing
        emitted = np.where(plan.decoding, np.minimum(accepted + 1, seats.last - seats.position), 0)
        verified, drafted = admitted.sum(axis=1), plan.num_drafted.sum(axis=1)
        tokens = target_tokens + verified
        shape = StepShape(
            num_reqs * copies,
            tokens * copies,
            seats.kv_tokens(plan.scheduled) * copies if truth.uses_kv else idle,
            prompt_tokens * copies,
            depth,
            (sampling + verified) * copies,
            step,
            seats.clock,
        )
        ms = truth.step_ms(shape, drafting=arm.policy.drafts)
        if charged:
            ms = ms + arm.overhead_ms + num_reqs * (arm.overhead_us_per_req * 1e-3)
        if not num_reqs.all():
            ms = np.where(num_reqs > 0, ms, 0.0)  # a run that is over
        tally.lines.append(
            StepSums(
                seats.num_active,
                num_reqs,
                decoding,
                drafted,
                verified,
                accepted.sum(axis=1),
                emitted.sum(axis=1) + first_tokens,
                first_tokens,
                tokens,
                target_tokens + drafted,
                prompt_tokens,
                everyone if seats.arrivals is None else (num_reqs > 0) & (seats.taken < seats.length),
                ms,
                idle if idled is None else idled,
            )
        )
        if kept is not None and num_reqs[0]:
            read = live if confidence is not None else None
            _keep(kept, seats, rows, plan, admitted, accepted, emitted, read, depth, ms)
        if confidence is not None:
            confidence.record(rows, admitted, plan.decoding)
        if remembers:
            outcome = StepOutcome(live, plan.num_drafted, admitted, accepted, emitted, depth, num_reqs, ms)
            memory = arm.policy.remember(memory, outcome)
        sizing.recording = plan.scheduled
        last_admitted = np.where(plan.decoding, admitted, last_admitted) if uneven else admitted
        itl, tpot = seats.advance(plan, emitted, ms, kept is not None)
        if kept is not None and len(itl):
            kept.itl_ms.append(itl)
        if kept is not None and len(tpot):
            kept.tpot_ms.append(tpot)
        step = step + 1
    whole, whole_work = tally.whole()
    with_prompts = prefill[1].astype(np.int64)
    whole = replace(
        whole,
        ms=whole.ms + prefill[0],
        emitted=whole.emitted + with_prompts,
        first_tokens=whole.first_tokens + with_prompts,
    )
    full, work = tally.at_concurrency(concurrency) if seats.arrivals is None else tally.loaded()
    final = confidence.finish() if confidence is not None else []
    return SimulationResult(full, whole, work, whole_work, seats.clock, seats.idle_ms, final, seats.times, kept)


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


def _draft_plan(
    sizing: F32Array,
    seats: Seats,
    tables: CostTables,
    memory: F64Array | None,
    verdicts: tuple[IntArray | None, IntArray | None],
    max_total_logits: int,
) -> DraftPlan:
    """Describe the step to come as it stands before drafting: every prompt in it counts with all that is left."""
    ready = seats.active & (seats.prompt_left == 0)
    tokens = (ready + np.where(seats.active, seats.prompt_left, 0)).sum(axis=1)
    return DraftPlan(
        sizing, ready, seats.num_active, seats.num_active, np.minimum(tokens, len(tables.verify) - 1), tables, memory,
        verdicts[0], verdicts[1], max_total_logits,
    )  # fmt: skip


def _prefill(truth: CostModel, seats: Seats, copies: int) -> F64Array:
    """Return `[2, runs]`: the time of running the prompts that enter, and the first tokens that come with it."""
    tokens = np.where(seats.entering, seats.prompt, 0).sum(axis=1) * copies
    reqs = seats.entering.sum(axis=1) * copies
    waiting = np.where(seats.active & ~seats.entering, seats.prompt + seats.position + 1, 0).sum(axis=1) * copies
    shape = StepShape(reqs, tokens, waiting.astype(np.float64), tokens, logits=reqs)
    return np.stack([np.where(reqs > 0, truth.step_ms(shape, drafting=False), 0.0), reqs.astype(np.float64)])


def _keep(
    log: StepLog,
    seats: Seats,
    rows: IntArray,
    plan: Schedule,
    admitted: IntArray,
    accepted: IntArray,
    emitted: IntArray,
    live: F32Array | None,
    depth: IntArray,
    ms: F64Array,
) -> None:
    log.rows.append(rows[0])
    log.request.append(seats.request[0].copy())
    log.turn.append(seats.turn[0].copy())
    log.prompt_tokens.append(plan.prompt_tokens[0])
    log.drafted.append(plan.num_drafted[0])
    log.admitted.append(admitted[0])
    log.accepted.append(accepted[0])
    log.active.append(plan.decoding[0])
    log.first.append(seats.age[0] == 0)
    log.emitted.append(emitted[0])
    log.start_ms.append(float(seats.clock[0]))
    log.ms.append(float(ms[0]))
    log.depth.append(int(depth[0]))
    if live is not None:
        log.confidence.append(live[:, 0].copy())
