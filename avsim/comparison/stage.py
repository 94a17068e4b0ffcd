"""A trace made ready for comparing: its blocks, and the walks through them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from avsim import estimators, policies
from avsim.comparison.config import CompareConfig
from avsim.comparison.scoring import fit_walk, score
from avsim.comparison.walk import Table, Walk, full_walk, recorded_walk, simulated_walk
from avsim.costs import CostModel, load
from avsim.costs.linear import step_counter
from avsim.errors import InputError
from avsim.estimators.base import Estimator, EstimatorState
from avsim.simulate import Arm
from avsim.sources.base import Trace
from avsim.study import max_total_logits
from avsim.types import BoolArray
from avsim.what_if import check_match
from avsim.workload import Pool, request_sequences, split_units

__all__ = ["Stage", "admission", "learn_from", "stage"]

_MOST_OFFSETS = 8


@dataclass(frozen=True, slots=True)
class Stage:
    """A trace made ready: its blocks, the walks through them, and how they were admitted."""

    trace: Trace
    table: Table
    walks: list[Walk]
    second_half: BoolArray = field(repr=False)
    cost: CostModel | None
    foreign: bool


def stage(trace: Trace, config: CompareConfig, features: Iterable[str]) -> Stage:
    """Load a trace and walk it.

    Dense: a closed loop of `concurrency` requests, once for each starting offset, so that every output position is
    visited about equally often and easy ones do not weigh more. On-policy: the engine's own steps.

    Raises:
        InputError: the trace lacks a feature, or the step costs are missing or of another model.
    """
    names = sorted(set(features))
    arm, cost, foreign = admission(trace, config)
    if arm is not None and arm.estimator is not None:
        names = sorted({*names, *arm.estimator.features})
    if trace.card.kind == "on-policy":
        table, walk = recorded_walk(trace, names, config.num_slots)
        walks = [walk]
    else:
        pool = Pool.from_trace(trace, names, num_slots=config.num_slots)
        table = Table.of_pool(pool, trace)
        sequence = request_sequences([np.arange(len(pool.start))], 8 * config.concurrency, [[config.seed]])[0]
        clock = cost or step_counter()
        limit = max_total_logits(config.vocab or clock.card.vocab_size or trace.card.vocab_size)
        walks = [
            full_walk(pool, sequence, config.concurrency, offset)
            if arm is None
            else simulated_walk(pool, arm, sequence, config.concurrency, clock, offset, limit)
            for offset in _offsets(config.offsets, pool)
        ]
    _, second = split_units(np.unique(table.unit), config.seed)
    return Stage(trace, table, walks, np.isin(table.unit, second), cost, foreign)


def _offsets(count: int | None, pool: Pool) -> list[int]:
    most = min(pool.num_slots + 1, int(pool.output_len.max()) - 1)  # a request is over at its last token
    count = min(count or _MOST_OFFSETS, most)
    return [number * most // count for number in range(count)]


def admission(trace: Trace, config: CompareConfig) -> tuple[Arm | None, CostModel | None, bool]:
    """Return the arm that admits (None: all is verified), the step costs that it reads, and whether these are foreign.

    Raises:
        InputError: it cannot admit on this trace, or its step costs are missing or of another model.
    """
    if config.admission == "full":
        return None, None, False
    if trace.card.kind == "on-policy":
        raise InputError(
            f"{trace.path}: an on-policy trace was admitted as recorded; --admission {config.admission} needs a dense "
            "trace"
        )
    policy = policies.make(config.admission)
    if not policy.drafts:
        raise InputError(f"admission {config.admission} drafts nothing, so nothing would be labelled")
    arm = Arm(policy, estimators.make_online(config.admission_estimator) if policy.uses_confidence else None)
    if policy.separable:
        return arm, None, False
    if config.cost is None:
        raise InputError(f"admission {policy.name} needs step costs: pass --cost (see `avsim list costs`)")
    cost = load(config.cost)
    return arm, cost, check_match(trace, cost, config.what_if)


def learn_from(estimator: Estimator, stages: Sequence[Stage]) -> EstimatorState:
    """Return what an estimator knows after serving some traces in turn; of an offline one, the last fit."""
    state = estimator.start(stages[0].table.num_slots)
    for item in stages:
        if estimator.offline:
            state = fit_walk(estimator, item.table, item.walks[0])
        else:
            found = score(estimator, item.table, item.walks[:1], start=state, detailed=False).state
            assert found is not None
            state = found
    return state
