"""Streams of draft blocks and verdicts that drive vLLM's estimator and avsim's side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.estimators import EstimatorState, OnlineLogistic, advance
from avsim.features import log_odds_f32
from avsim.types import Observations

F32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Rng = np.random.Generator


def gaussian(scale: float = 3.0, vocab: int = 60) -> Callable[[Rng, tuple[int, int]], F32]:
    return lambda rng, shape: rng.normal(0, scale, (*shape, vocab)).astype(np.float32)


def two_tokens(low: float, high: float) -> Callable[[Rng, tuple[int, int]], F32]:
    """Two tokens whose log-odds is uniform in [low, high]."""

    def logits(rng: Rng, shape: tuple[int, int]) -> F32:
        rows = np.zeros((*shape, 2), dtype=np.float32)
        rows[..., 1] = rng.uniform(low, high, shape)
        return rows

    return logits


def logistic(slope: float, intercept: float) -> Callable[[F32], NDArray[np.floating]]:
    """Acceptance probability σ(slope·f + intercept), with NaN features accepted half of the time."""
    return lambda feature: 1 / (1 + np.exp(-np.clip(slope * np.nan_to_num(feature) + intercept, -50, 50)))


@dataclass(frozen=True)
class Stream:
    """A random workload: how logits look, who is scheduled, how much is admitted, and what the target accepts."""

    num_slots: int = 4
    max_num_reqs: int = 8
    num_reqs: tuple[int, ...] = (4, 5, 3)
    num_steps: int = 12
    refit_interval: int = 4
    logits: Callable[[Rng, tuple[int, int]], F32] = field(default_factory=gaussian)
    accept: Callable[[F32], NDArray[np.floating]] = field(default_factory=lambda: logistic(0.7, 0.1))
    min_admitted: int = 0
    max_admitted: int | None = None
    temperature: tuple[float, ...] = (1.0,)
    prefill: float = 0.1
    one_pass: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Verdict:
    """What the target said about the blocks last drafted in these request slots."""

    slots: Ints
    admitted: Ints
    accepted: Ints
    sampled: NDArray[np.bool_]


class AvsimRun:
    """avsim's estimator fed as an engine feeds vLLM's: one step at a time, features and confidences per slot."""

    def __init__(self, estimator: OnlineLogistic, max_num_reqs: int, num_slots: int):
        self.estimator = estimator
        self.state: EstimatorState = estimator.start(num_slots)
        self.features = np.zeros((max_num_reqs, num_slots), dtype=np.float32)
        self.confidence = np.zeros((max_num_reqs, num_slots), dtype=np.float32)

    def step(self, verdict: Verdict) -> None:
        features = {self.estimator.feature: self.features[verdict.slots].T}
        starts = np.array([0, len(verdict.slots)])
        confidence = self.confidence[verdict.slots].T
        observations = Observations.grade(features, confidence, verdict.admitted, verdict.accepted, starts)
        # A step that is all prompt has nothing to observe, but it still brings the refit nearer.
        self.state = advance(self.estimator, self.state, observations if verdict.sampled.any() else None, 1)

    def predict(self, slots: Ints, logits: NDArray[Any], temperature: F32) -> F32:
        reqs, num_slots, vocab = logits.shape
        rows = logits.reshape(reqs * num_slots, vocab)
        feature = log_odds_f32(rows, np.repeat(temperature[slots], num_slots)).reshape(reqs, num_slots)
        self.features[slots] = feature
        columns = {self.estimator.feature: feature.T}
        self.confidence[slots] = self.estimator.predict(self.state.params, columns, (num_slots, reqs)).T
        return self.confidence[slots]


def draw_verdict(stream: Stream, rng: Rng, step: int, features: F32, drafted: NDArray[np.bool_]) -> Verdict:
    """Schedule some requests and grade what they drafted before; some are still in their prompt."""
    count = stream.num_reqs[step % len(stream.num_reqs)]
    slots = rng.permutation(stream.max_num_reqs)[:count]
    sampled = rng.random(count) >= stream.prefill
    deepest = stream.num_slots if stream.max_admitted is None else stream.max_admitted
    admitted = np.where(sampled & drafted[slots], rng.integers(stream.min_admitted, deepest + 1, count), 0)
    success = rng.random((count, stream.num_slots)) < stream.accept(features[slots])
    accepted = np.minimum(np.cumprod(success, axis=1).sum(axis=1), admitted)
    return Verdict(slots, admitted, accepted, sampled)


def draw_temperature(stream: Stream, rng: Rng) -> F32:
    return rng.choice(stream.temperature, stream.max_num_reqs).astype(np.float32)
