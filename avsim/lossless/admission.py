"""Real estimators and real policies on toy models: what is admitted in every joint outcome."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from avsim.costs.base import CostTables
from avsim.estimators.base import MEMORY, Arrays, Estimator
from avsim.lossless.enumerate import Outcomes, choices
from avsim.lossless.models import ToyLaws, feature_columns
from avsim.policies import DraftPlan, Policy, StepBatch
from avsim.testing.steps import lived_memory
from avsim.testing.stream import drive, grade, make_stream
from avsim.types import F32Array, IntArray

__all__ = ["Surroundings", "admit", "confidences", "random_surroundings", "trained"]

_MOST_PREFILL = 16
_SLOPES, _TRAINING_STEPS = (0.3, 0.8, 1.5), 200
_ENDLESS = 1 << 20


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a decision depends on besides the drafts; fixed before they are drawn.

    Attributes:
        tables: what the policy believes steps cost.
        before: confidences of the requests' blocks before, float32 `[K, N, R]`.
        num_admitted: leading slots of those blocks that were admitted, int `[N, R]`.
        num_prefill: prompt tokens in each model's step, which move it along the tables, int `[N]`.
        chance: the random numbers of policies that explore, float32 `[N, R]`.
    """

    tables: CostTables
    num_prefill: IntArray
    chance: F32Array
    before: F32Array
    num_admitted: IntArray


def random_surroundings(rng: np.random.Generator, num_models: int, num_reqs: int, num_slots: int) -> Surroundings:
    """Draw step costs with flat stretches and jumps, so large that some budgets pay, after a past of new requests."""
    num_tokens = num_reqs * (num_slots + 1) + _MOST_PREFILL
    jumps = rng.uniform(0.1, 0.8, num_tokens) * (rng.random(num_tokens) < 0.4)
    verify = np.exp(np.cumsum(np.log1p(np.concatenate(([0.0], jumps)))))
    draft = np.sort(rng.uniform(0, 0.5, num_reqs + 1))
    tables = CostTables(draft, verify, draft * np.linspace(0, 1, num_slots + 1)[:, None])
    prefill = rng.integers(_MOST_PREFILL + 1, size=num_models)
    chance = rng.random((num_models, num_reqs), dtype=np.float32)
    new = np.ones((num_slots, num_models, num_reqs), dtype=np.float32)
    return Surroundings(tables, prefill, chance, new, np.full((num_models, num_reqs), num_slots))


def admit(policy: Policy, outcomes: Outcomes, live: F32Array, sizing: F32Array, surroundings: Surroundings) -> IntArray:
    """Let a policy decide every joint outcome of every model, each as a step of its own.

    Args:
        policy: decides.
        outcomes: of each request.
        live, sizing: confidences in each outcome of a request, float32 `[K, N, R, O]`.
        surroundings: all else.

    Returns:
        M, int `[N, O^R, R]`, in the order of `choices`; −1 where a joint outcome never happens.
    """
    slots, models, reqs, count = live.shape
    chosen = choices(count, reqs)

    def joint(values: np.ndarray) -> np.ndarray:
        return np.stack([values[..., request, at] for request, at in enumerate(chosen)], axis=-1)

    happens = joint(outcomes.weight).all(axis=2)
    model = np.nonzero(happens)[0]
    every = np.full(len(model), reqs)
    tokens = every + surroundings.num_prefill[model]
    depth = np.full(len(model), policy.depth(slots))
    accepted = remaining = memory = None
    if policy.uses_truth:
        assert outcomes.accepted is not None
        accepted = joint(np.broadcast_to(outcomes.accepted, (models, reqs, count)))[happens]
        remaining = np.full_like(accepted, _ENDLESS)
    if policy.memory_size(slots):
        memory = lived_memory(policy, models, slots)[:, model]
    if policy.plans:
        before, ready = surroundings.before[:, model], np.ones((len(model), reqs), dtype=bool)
        plan = DraftPlan(before, ready, every, every, tokens, surroundings.tables, memory, accepted, remaining)
        depth = np.minimum(policy.plan(plan), depth)
    drafted = np.repeat(depth[:, None], reqs, axis=1)
    step = StepBatch(
        joint(live)[:, happens],
        joint(sizing)[:, happens],
        drafted,
        num_reqs=every,
        num_sampling=every,
        num_target_tokens=tokens,
        tables=surroundings.tables,
        num_accepted=None if accepted is None else np.minimum(accepted, drafted),
        num_remaining=remaining,
        chance=surroundings.chance[model] if policy.explores else None,
        memory=memory,
        sizing_admitted=surroundings.num_admitted[model],
    )
    admitted = np.full((*happens.shape, reqs), -1)
    admitted[happens] = policy.admit(step)
    return admitted


def trained(estimator: Estimator, num_slots: int, seed: int) -> list[tuple[Arrays, F32Array]]:
    """Return parameters, and what is kept of requests, after a few short synthetic streams of different laws."""
    found = []
    for number, slope in enumerate(_SLOPES):
        stream = make_stream(
            estimator.features,
            num_steps=min(2 * estimator.refit_interval, _TRAINING_STEPS),
            num_slots=num_slots,
            slope=slope,
            intercepts=np.linspace(-0.5, -1, num_slots).tolist(),
            seed=seed + number,
        )
        if estimator.offline:
            rows = int(stream.active.sum())
            unread = np.ones((num_slots, rows), dtype=np.float32)
            params = estimator.fit(num_slots, grade(stream, stream.inputs(estimator), unread))
            found.append((params, np.zeros((estimator.memory_size, 1), dtype=np.float32)))
        else:
            driven = drive(estimator, stream)
            found.append((driven.state.params, driven.memory))
    return found


def confidences(estimator: Estimator, params: Arrays, memory: F32Array, laws: ToyLaws, outcomes: Outcomes) -> F32Array:
    """Return an estimator's confidences in each outcome, float32 `[K, N, R, O]`; requests share the memory columns."""
    shape = (laws.num_slots, *outcomes.weight.shape)
    columns = feature_columns(laws, [name for name in estimator.features if name != "label"])
    columns = {name: values[..., outcomes.draft] for name, values in columns.items()}
    if outcomes.accepted is not None:
        label = np.arange(laws.num_slots)[:, None] < outcomes.accepted
        columns["label"] = np.broadcast_to(label[:, None, None], shape).astype(np.float32)
    rows = {name: columns[name].reshape(laws.num_slots, -1) for name in estimator.features}
    if estimator.memory_size:
        kept = memory[:, np.arange(shape[1] * shape[2]) % memory.shape[1]]
        rows[MEMORY] = kept.repeat(shape[3], axis=1)
    return estimator.predict(params, rows, (laws.num_slots, int(np.prod(shape[1:])))).reshape(shape)
