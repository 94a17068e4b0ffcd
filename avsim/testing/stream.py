"""Synthetic draft blocks with a known law, and the smallest loop that runs an estimator over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from avsim.costs.base import CostTables
from avsim.estimators.base import MEMORY, Estimator, EstimatorState, advance
from avsim.policies.base import Policy, StepBatch
from avsim.types import BoolArray, F32Array, F64Array, Features, IntArray, Observations, observe

__all__ = ["Driven", "Stream", "drive", "fresh_memory", "grade", "log_loss", "make_stream"]


@dataclass(frozen=True, slots=True)
class Stream:
    """Draft blocks of S steps over R request rows; a row that drafts nothing takes no part in its step.

    Attributes:
        features: per-slot columns, float32 `[K, S, R]`.
        probability: P(slot accepted given the slots before it), the law itself, float64 `[K, S, R]`.
        num_drafted, num_admitted: int64 `[S, R]`.
        num_accepted: the verdict at full admission, int64 `[S, R]`.
    """

    features: dict[str, F32Array]
    probability: F64Array
    num_drafted: IntArray
    num_admitted: IntArray
    num_accepted: IntArray

    @property
    def active(self) -> BoolArray:
        return self.num_drafted > 0

    @property
    def num_slots(self) -> int:
        return len(self.probability)

    def __len__(self) -> int:
        return len(self.num_drafted)

    def steps(self, start: int, stop: int) -> Stream:
        """Return a view of some steps."""
        part = slice(start, stop)
        return Stream(
            {name: column[:, part] for name, column in self.features.items()},
            self.probability[:, part],
            self.num_drafted[part],
            self.num_admitted[part],
            self.num_accepted[part],
        )

    def rows(self, names: Sequence[str]) -> dict[str, F32Array]:
        """Return copies of the named columns for the active rows, float32 `[K, rows]`, sorted by step."""
        return {name: self.features[name][:, self.active] for name in names}

    def inputs(self, estimator: Estimator) -> dict[str, F32Array]:
        """Return what an estimator reads of the active rows: its features, and the memory of requests just begun."""
        return self.rows(estimator.features) | fresh_memory(estimator, int(self.active.sum()))


def fresh_memory(estimator: Estimator, rows: int) -> dict[str, F32Array]:
    """Return what an estimator keeps of requests that have just begun, keyed as it reads it; {} if it keeps nothing."""
    size = estimator.memory_size
    return {MEMORY: np.zeros((size, rows), dtype=np.float32)} if size else {}


def make_stream(
    features: Sequence[str] = ("log_odds",),
    *,
    num_steps: int = 350,
    num_reqs: int = 6,
    num_slots: int = 5,
    slope: float = 0.8,
    intercepts: Sequence[float] | None = None,
    trimmed: bool = True,
    seed: int = 0,
) -> Stream:
    """Draw a stream in which slot k is accepted with probability σ(slope·f + b_k), f its log-odds.

    Every requested column is made: `log_odds`, `log_odds_f32` (which reads 40 above 15.94), `label` (1 where the
    slot is accepted at full admission), `confidence` (σ of the log-odds), `draft_logprob` (of the drafter's most likely
    token), `entropy` and `margin` (noise above 0); NaN where no verdict reaches: `alpha` (the probability itself) and
    `accept_prob` (P(accepted) given the drawn token too, one of two values around it); any other name is standard
    normal noise.

    Args:
        features: names of the columns.
        num_steps, num_reqs, num_slots: S, R, K.
        slope, intercepts: the law; b_k falls from 0.5 by 0.2 a slot unless given.
        trimmed: rows draft 0 … K slots and a random part of them is admitted; otherwise all K, all admitted.
        seed: of the random numbers.

    >>> make_stream(num_steps=2, num_reqs=3, num_slots=4).features["log_odds"].shape
    (4, 2, 3)
    """
    rng = np.random.default_rng(seed)
    shape = (num_slots, num_steps, num_reqs)
    levels = np.asarray(0.5 - 0.2 * np.arange(num_slots) if intercepts is None else intercepts, dtype=np.float64)
    log_odds = np.clip(rng.normal(1.5, 2.5, shape), -40, 40).astype(np.float32)
    probability = _sigmoid(slope * log_odds.astype(np.float64) + levels[:, None, None])
    accepted = np.cumprod(rng.random(shape) < probability, axis=0)
    drafted = np.full(shape[1:], num_slots)
    admitted = drafted.copy()
    if trimmed:
        drafted = rng.integers(0, num_slots + 1, shape[1:])
        admitted = rng.integers(0, drafted + 1)
    num_accepted = np.minimum(accepted.sum(axis=0), drafted)
    slot = np.arange(num_slots)[:, None, None]
    columns = {
        "log_odds": log_odds,
        "log_odds_f32": np.where(log_odds > 15.94, np.float32(40), log_odds),
        "label": (slot < num_accepted).astype(np.float32),
        "confidence": _sigmoid(log_odds.astype(np.float64)).astype(np.float32),
        "draft_logprob": np.log(np.maximum(_sigmoid(log_odds.astype(np.float64)), 1e-17)).astype(np.float32),
    }
    reached = slot <= num_accepted
    noise = rng.random((4, *shape))
    columns["alpha"] = np.where(reached, probability, np.nan).astype(np.float32)
    # One of two values around p, drawn given the verdict so that the verdict has just that probability given it.
    spread = 0.8 * np.minimum(probability, 1 - probability)
    is_high = np.where(
        slot < num_accepted,
        (probability + spread) / np.maximum(2 * probability, 1e-300),
        (1 - probability - spread) / np.maximum(2 * (1 - probability), 1e-300),
    )
    of_token = probability + np.where(noise[0] < is_high, spread, -spread)
    columns["accept_prob"] = np.where(reached, of_token, np.nan).astype(np.float32)
    columns["entropy"] = (3 * noise[1]).astype(np.float32)
    columns["margin"] = (5 * noise[2]).astype(np.float32)
    for name in features:
        if name not in columns:
            columns[name] = rng.normal(size=shape).astype(np.float32)
    return Stream({name: columns[name] for name in features}, probability, drafted, admitted, num_accepted)


def grade(
    stream: Stream, features: Features, confidence: F32Array, num_admitted: IntArray | None = None
) -> Observations:
    """Return the observations of a stream's active rows, for confidences `[K, rows]`."""
    active = stream.active
    admitted = (stream.num_admitted if num_admitted is None else num_admitted)[active]
    accepted = np.minimum(stream.num_accepted[active], admitted)
    starts = np.concatenate(([0], active.sum(axis=1).cumsum()))
    return Observations.grade(features, confidence, admitted, accepted, starts)


@dataclass(frozen=True, slots=True)
class Driven:
    """What an estimator did on a stream.

    Attributes:
        confidence: `[K, S, R]`, 1 in rows without drafts.
        admitted: M, `[S, R]`.
        state: the final state.
        memory: what is kept of each request at the end, `[D, R]`.
    """

    confidence: F32Array
    admitted: IntArray
    state: EstimatorState
    memory: F32Array


def drive(
    estimator: Estimator,
    stream: Stream,
    *,
    state: EstimatorState | None = None,
    memory: F32Array | None = None,
    block_steps: int | None = None,
    policy: Policy | None = None,
) -> Driven:
    """Predict, admit, observe and learn over a stream, in blocks of steps that never cross a refit.

    Each of the stream's columns is one request; what an estimator keeps of it changes with every step, so one that
    keeps something goes step by step.

    Args:
        estimator, stream: what runs on what; the estimator sees its declared features only.
        state, memory: where to start; a cold start if None.
        block_steps: the most steps that are one array operation; all up to the next refit if None.
        policy: admits on the live confidences; if None, the stream's own `num_admitted` holds.
    """
    state = estimator.start(stream.num_slots) if state is None else state
    confidence = np.ones(stream.probability.shape, dtype=np.float32)
    admitted = stream.num_admitted.copy()
    if memory is None:
        memory = np.zeros((estimator.memory_size, stream.active.shape[1]), dtype=np.float32)
    else:
        memory = memory.copy()
    if estimator.memory_size:
        block_steps = 1
    start = 0
    while start < len(stream):
        left = estimator.refit_interval - state.steps_since_refit
        stop = min(len(stream), start + min(left, block_steps or left))
        part, live = stream.steps(start, stop), confidence[:, start:stop]
        seats = np.nonzero(part.active)[1]
        features = part.rows(estimator.features) | ({MEMORY: memory[:, seats]} if estimator.memory_size else {})
        rows = len(seats)
        live[:, part.active] = p = estimator.predict(state.params, features, (stream.num_slots, rows))
        if policy is not None:
            admitted[start:stop] = policy.admit(_decision(part, live))
        again = part.rows(estimator.features) | ({MEMORY: memory[:, seats]} if estimator.memory_size else {})
        observations = grade(part, again, p.copy(), admitted[start:stop])
        if estimator.memory_size:
            memory[:, seats] = estimator.remember(state.params, observations)
        state = advance(estimator, state, observations, stop - start)
        start = stop
    return Driven(confidence, admitted, state, memory)


def log_loss(stream: Stream, driven: Driven) -> float:
    """Return the mean log-loss over the observed slots, p clipped to [1e-7, 1 − 1e-7]."""
    admitted = np.where(stream.active, driven.admitted, 0).ravel()
    accepted = np.minimum(stream.num_accepted.ravel(), admitted)
    observed, label = observe(admitted, accepted, stream.num_slots)
    p = np.clip(driven.confidence.reshape(stream.num_slots, -1).astype(np.float64), 1e-7, 1 - 1e-7)
    return float(-np.log(np.where(label, p, 1 - p))[observed].mean())


def _sigmoid(x: F64Array) -> F64Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -700, 700))))


def _decision(stream: Stream, live: F32Array) -> StepBatch:
    num_reqs = stream.active.sum(axis=1)
    width = live.shape[2]
    sizes = np.arange(width * (stream.num_slots + 1) + 1)
    tables = CostTables(np.full(width + 1, 1.0), 5.0 + 0.25 * np.ceil(sizes / 4))
    return StepBatch(live, live, stream.num_drafted, num_reqs, num_reqs, num_reqs, tables)
