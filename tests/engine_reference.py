"""A serving engine in plain Python, one request and one step at a time: slow, and independent of `avsim.simulate`.

Sizing follows vLLM's two host copies of the confidence table literally, rather than by the age of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from avsim.costs import CostModel, StepShape
from avsim.estimators import advance
from avsim.policies import NO_LOGIT_LIMIT, StepBatch
from avsim.simulate import Arm
from avsim.types import Observations
from avsim.workload import Pool, keyed_uniform


@dataclass
class Request:
    turn: int
    index: int
    output_len: int
    prompt_len: int
    prompt_left: int
    position: int = 0


@dataclass
class Served:
    """Each step as (start, ms, {turn: (prompt tokens, drafted, admitted, accepted, emitted)}), and what it sized on."""

    steps: list[tuple[float, float, dict[int, tuple[int, ...]]]] = field(default_factory=list)
    sizing: list[dict[int, list[float]]] = field(default_factory=list)
    seated: dict[int, float] = field(default_factory=dict)
    first_token: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    params: dict[str, list[float]] = field(default_factory=dict)
    idle_ms: float = 0.0


class TwoCopies:
    """vLLM's confidence table and its two copies on the host: budgets read the one before the last record."""

    def __init__(self) -> None:
        self.table: dict[int, Any] = {}
        self.read: dict[int, Any] = {}
        self.ready: dict[int, Any] = {}
        self.resets: list[int] = []

    def add(self, turn: int, ones: Any) -> None:
        self.table[turn] = self.read[turn] = ones
        self.resets.append(turn)

    def record(self, drafted: dict[int, Any], ones: Any) -> None:
        for turn in self.resets:
            self.ready[turn] = ones
        self.resets = []
        self.read = self.ready
        self.table = self.table | drafted
        self.ready = dict(self.table)


def serve(
    pool: Pool,
    arm: Arm,
    order: list[int],
    num_seats: int,
    cost: CostModel,
    *,
    arrivals: list[float] | None = None,
    scheduled: bool = False,
    token_budget: int | None = None,
    chunked: bool = True,
    max_total_logits: int = NO_LOGIT_LIMIT,
) -> Served:
    """Serve requests in order, first come, first served; prompts are free unless `scheduled`."""
    slots = arm.policy.depth(pool.num_slots)
    kv = float(np.mean([p + o / 2 for p, o in zip(pool.prompt_len, pool.output_len, strict=True)]))
    longest = max(pool.prompt_len) if scheduled and token_budget is None else 0
    most = max(num_seats * max(slots + 1, int(longest)), token_budget or 0)
    tables = cost.tables(num_seats, most, kv_tokens_per_req=kv, depth=slots)
    out, copies, clock = Served(), TwoCopies(), 0.0
    ones = np.ones(slots, dtype=np.float32)
    waiting = list(enumerate(order))
    seats: list[Request | None] = [None] * num_seats
    state = arm.estimator.start(slots) if arm.estimator is not None else None

    def row_of(request: Request) -> int:
        if request.prompt_left == 0:
            return int(pool.start[request.index]) + request.position
        chance = keyed_uniform(np.array([request.index]), np.array([request.turn]))[0]
        return int(pool.start[request.index]) + int(float(chance) * max(request.output_len - 1, 1))

    def draft(request: Request) -> Any:
        assert arm.estimator is not None
        features = {name: pool.features[name][:slots, [row_of(request)]] for name in arm.estimator.features}
        return arm.estimator.predict(state.params, features, (slots, 1))[:, 0]

    while True:
        for place in range(num_seats):
            while seats[place] is None and waiting:
                turn, index = waiting[0]
                if arrivals is not None and arrivals[turn] > clock:
                    break
                waiting.pop(0)
                prompt = max(int(pool.prompt_len[index]), 1) if scheduled else int(pool.prompt_len[index])
                request = Request(turn, index, int(pool.output_len[index]), prompt, prompt if scheduled else 0)
                out.seated[turn] = clock
                if not scheduled:
                    out.first_token[turn] = clock
                    if request.output_len == 1:
                        out.end[turn] = clock
                        continue
                seats[place] = request
                copies.add(turn, ones)
                if not scheduled and arm.estimator is not None:
                    # Its prompt ran, and drafts were made, in the step before; that record finds the request at 1.
                    copies.table[turn] = copies.ready[turn] = draft(request)
                    copies.resets.remove(turn)
        taken = [request for request in seats if request is not None]
        if not taken:
            if not waiting:
                break
            out.idle_ms += max(arrivals[waiting[0][0]] - clock, 0.0)
            clock = max(clock, arrivals[waiting[0][0]])
            continue

        left = token_budget if token_budget is not None else 1 << 40
        plan: dict[int, tuple[int, int]] = {}
        stuck = False
        for request in sorted(taken, key=lambda request: request.turn):
            if request.prompt_left:
                tokens = min(request.prompt_left, left)
                if not chunked and (stuck or tokens < request.prompt_left):
                    stuck, tokens = True, 0
                plan[request.turn] = (tokens, 0)
                left -= tokens
            else:
                drafts = min(int(pool.num_drafted[row_of(request)]), slots)
                tokens = min(1 + drafts, left)
                plan[request.turn] = (0, max(tokens - 1, 0)) if tokens else (0, -1)
                left -= tokens
        decoding = [r for r in taken if r.prompt_left == 0 and plan[r.turn][1] >= 0]
        prefilling = [r for r in taken if plan[r.turn][0] > 0]
        num_reqs = len(decoding) + len(prefilling)
        sampling = len(decoding) + sum(plan[r.turn][0] == r.prompt_left for r in prefilling)
        prompt_tokens = sum(plan[r.turn][0] for r in prefilling)

        rows = [row_of(request) for request in taken]
        live = np.ones((slots, len(taken)), dtype=np.float32)
        sizing = live.copy()
        if arm.estimator is not None:
            live = np.stack([copies.table[r.turn] for r in taken], axis=1)
            sizing = np.stack([copies.read.get(r.turn, ones) for r in taken], axis=1)
        drafted = [plan[r.turn][1] if r in decoding else 0 for r in taken]
        truth = arm.policy.uses_truth
        batch = StepBatch(
            live[:, None], sizing[:, None], np.array([drafted]), np.array([num_reqs]), np.array([sampling]),
            np.array([len(decoding) + prompt_tokens]), tables,
            pool.num_accepted[[rows]] if truth else None,
            np.array([[r.output_len - 1 - r.position for r in taken]]) if truth else None, max_total_logits,
        )  # fmt: skip
        admitted = [int(m) for m in arm.policy.admit(batch)[0]]
        held = sum(
            r.prompt_len - r.prompt_left + (r.position + 1 if r in decoding else 0)
            for r in taken
            if r in decoding or r in prefilling
        )
        tokens = len(decoding) + prompt_tokens + sum(admitted)
        shape = StepShape(
            np.array([num_reqs]), np.array([tokens]), np.array([float(held)]), np.array([prompt_tokens]),
            np.array([slots]), np.array([sampling + sum(admitted)]),
        )  # fmt: skip
        ms = float(cost.step_ms(shape, drafting=arm.policy.drafts)[0])
        ms += arm.overhead_ms + num_reqs * arm.overhead_us_per_req / 1000
        done: dict[int, tuple[int, ...]] = {}
        start, clock = clock, clock + ms
        accepted = [min(int(pool.num_accepted[row]), m) for row, m in zip(rows, admitted, strict=True)]
        if arm.estimator is not None:
            known = [min(m, int(pool.num_recorded[row])) for row, m in zip(rows, admitted, strict=True)]
            pick = [column for column, r in enumerate(taken) if r in decoding]
            features = {
                name: pool.features[name][:slots, [rows[column] for column in pick]] for name in arm.estimator.features
            }
            seen = Observations.grade(
                features, live[:, pick], np.array([known[c] for c in pick], dtype=np.int64),
                np.array([min(accepted[c], known[c]) for c in pick], dtype=np.int64), np.array([0, len(pick)]),
            )  # fmt: skip
            state = advance(arm.estimator, state, seen, 1)
        for column, request in enumerate(taken):
            if request in prefilling:
                ran = plan[request.turn][0]
                request.prompt_left -= ran
                done[request.turn] = (ran, 0, 0, 0, 0)
                if request.prompt_left == 0:
                    out.first_token[request.turn] = clock
            elif request in decoding:
                emitted = min(accepted[column] + 1, request.output_len - 1 - request.position)
                request.position += emitted
                done[request.turn] = (0, drafted[column], admitted[column], accepted[column], emitted)
        out.steps.append((start, ms, done))
        out.sizing.append({r.turn: sizing[:, c].tolist() for c, r in enumerate(taken) if r in decoding})
        if arm.estimator is not None:
            again = {
                r.turn: draft(r) for r in taken if r.turn in done and r.position < r.output_len - 1 + r.prompt_left
            }
            copies.record(again, ones)
        for place, request in enumerate(seats):
            if request is not None and request.prompt_left == 0 and request.position >= request.output_len - 1:
                out.end[request.turn] = clock
                seats[place] = None
    if state is not None:
        out.params = {name: value.tolist() for name, value in state.params.items()}
    return out
