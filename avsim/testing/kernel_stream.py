"""An engine's side of a parity run: requests that come and go, their logits, and verdicts with a law of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.estimators.base import MEMORY, Estimator, EstimatorState, advance
from avsim.types import F32Array, IntArray, Observations

__all__ = ["FreeRun", "KernelStream", "graded"]


class KernelStream:
    """Requests in persistent slots; the batch of a step is a part of them, in another order each time.

    Attributes:
        batch: persistent slots of the present step's requests, int64 `[B]`.
        temperature: by persistent slot, float32 `[R]`; 0 in every third.
        requests: how many have begun.
    """

    def __init__(self, rng: np.random.Generator, max_num_reqs: int, num_slots: int) -> None:
        self._rng = rng
        self._shape = (max_num_reqs, num_slots)
        self._drafted = np.zeros(max_num_reqs, dtype=bool)
        self._sharpness = np.ones(max_num_reqs)
        self.temperature = np.zeros(max_num_reqs, dtype=np.float32)
        self.batch: IntArray = np.zeros(0, dtype=np.int64)
        self.requests = 0

    def next_batch(self) -> list[int]:
        """Draw who is in the next step, and return the slots in which a request begins."""
        rng, (slots, _) = self._rng, self._shape
        ended = np.flatnonzero(self._drafted & (rng.random(slots) < 0.1))
        self._drafted[ended] = False
        # Now and then nobody, now and then everybody.
        size = int(rng.choice(np.array([0, slots, rng.integers(1, slots + 1)]), p=[0.05, 0.15, 0.8]))
        self.batch = rng.permutation(slots)[:size].astype(np.int64)
        new = [int(slot) for slot in self.batch if not self._drafted[slot]]
        for slot in new:
            self._drafted[slot] = True
            self._sharpness[slot] = rng.uniform(1, 12)
            self.temperature[slot] = (0.0, 1.0, rng.uniform(0.4, 1.6))[self.requests % 3]
            self.requests += 1
        return new

    def logits(self, vocab: int) -> F32Array:
        """Return drafter logits of the batch, `[B, K, vocab]`: from flat to nearly certain, some tokens impossible."""
        rng, num_slots = self._rng, self._shape[1]
        z = rng.normal(0, 1, (len(self.batch), num_slots, vocab)).astype(np.float32)
        best = rng.integers(0, vocab, z.shape[:2])
        lift = rng.exponential(self._sharpness[self.batch][:, None], best.shape).astype(np.float32)
        np.put_along_axis(z, best[..., None], lift[..., None], axis=2)
        if vocab > 8:
            z[..., : vocab // 8] = -np.inf
            np.put_along_axis(z, np.maximum(best, vocab // 8)[..., None], lift[..., None], axis=2)
        return z

    def verdicts(self, predictions: F32Array) -> tuple[IntArray, IntArray]:
        """Return `num_sampled` and `num_rejected` of the batch's last drafts, `[B]`; those without were in a prompt.

        Args:
            predictions: p by persistent slot, `[R, K]`; requests accept somewhat more or less often than that.
        """
        rng, (_, num_slots) = self._rng, self._shape
        batch = self.batch
        bias = 0.5 * np.sin(batch + 1.0)
        p = np.clip(predictions[batch].astype(np.float64), 1e-6, 1 - 1e-6)
        p = 1 / (1 + np.exp(-(np.log(p / (1 - p)) + bias[:, None])))
        would = np.cumprod(rng.random(p.shape) < p, axis=1).sum(axis=1)
        admitted = rng.integers(0, num_slots + 1, len(batch))
        accepted = np.minimum(would, admitted)
        prompt = rng.random(len(batch)) < 0.1
        admitted, accepted = np.where(prompt, 0, admitted), np.where(prompt, 0, accepted)
        sampled = np.where(prompt & (rng.random(len(batch)) < 0.5), 0, accepted + 1)
        return sampled.astype(np.int64), (admitted - accepted).astype(np.int64)


class FreeRun:
    """The NumPy estimator by itself: it learns from its own predictions, never from the device's state."""

    def __init__(self, estimator: Estimator, start: EstimatorState, max_num_reqs: int, num_slots: int) -> None:
        self.estimator, self.state = estimator, start
        self.confidence = np.zeros((max_num_reqs, num_slots), dtype=np.float32)
        self.memory = np.zeros((estimator.memory_size, max_num_reqs), dtype=np.float32)
        self._features = np.zeros((len(estimator.features), max_num_reqs, num_slots), dtype=np.float32)

    def step(self, batch: IntArray, sampled: IntArray, rejected: IntArray) -> None:
        """Learn from the verdicts of a step."""
        inputs = self._inputs(batch) | {"confidence": self.confidence[batch].T}
        observations = graded(self.estimator, inputs, sampled, rejected)
        params = self.state.params
        self.state = advance(self.estimator, self.state, observations, 1)
        if self.estimator.memory_size:
            self.memory[:, batch] = self.estimator.remember(params, observations)

    def predict(self, batch: IntArray, features: F32Array) -> None:
        """Predict from features `[F, R, K]`."""
        self._features[:, batch] = features[:, batch]
        shape = (self.confidence.shape[1], len(batch))
        self.confidence[batch] = self.estimator.predict(self.state.params, self._inputs(batch), shape).T

    def _inputs(self, batch: IntArray) -> dict[str, NDArray[Any]]:
        held = self._features[:, batch].transpose(0, 2, 1)
        found: dict[str, NDArray[Any]] = dict(zip(self.estimator.features, held, strict=True))
        return found | ({MEMORY: self.memory[:, batch]} if self.estimator.memory_size else {})


def graded(
    estimator: Estimator, inputs: Mapping[str, NDArray[Any]], sampled: IntArray, rejected: IntArray
) -> Observations:
    """Return one step as the estimator sees it: A = max(num_sampled − 1, 0), M = A + num_rejected."""
    accepted = np.maximum(sampled - 1, 0)
    names = (*estimator.features, *((MEMORY,) if estimator.memory_size else ()))
    starts = np.array([0, len(sampled)])
    read = {name: np.ascontiguousarray(inputs[name]) for name in names}
    return Observations.grade(read, np.ascontiguousarray(inputs["confidence"]), accepted + rejected, accepted, starts)
