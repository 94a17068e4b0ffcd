"""An estimator's kernels and its NumPy form side by side, each operation from common inputs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from learn_bounds import (
    U32,
    U64,
    arrowhead_tolerance,
    laplace_tolerance,
    magnitudes,
    memory_tolerance,
    sums_tolerance,
)
from numpy.typing import NDArray

from avsim import estimators
from avsim.estimators.base import MEMORY, EstimatorState
from avsim.kernels import device_estimator
from avsim.testing.kernel_stream import graded

torch.set_num_threads(1)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
Rng = np.random.Generator
Ints = NDArray[np.int64]


@dataclass
class Batch:
    slots: Ints
    sampled: Ints
    rejected: Ints

    def tensors(self) -> tuple[torch.Tensor, ...]:
        arrays = (self.slots, self.sampled, self.rejected)
        return tuple(torch.from_numpy(array.astype(np.int32)).to(DEVICE) for array in arrays)


NOBODY = Batch(*(np.zeros(0, dtype=np.int64) for _ in range(3)))


@dataclass
class Beside:
    """An estimator on the device and in NumPy: tables of features, predictions and memory by persistent slot."""

    spec: str
    num_slots: int = 3
    max_num_reqs: int = 6
    interval: int = 4
    worst: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        joint = "," if ":" in self.spec else ":"
        self.estimator = estimators.make(f"{self.spec}{joint}refit_interval={self.interval}")
        self.kernels = device_estimator(self.estimator, self.max_num_reqs, self.num_slots, DEVICE)
        self.state = self.estimator.start(self.num_slots)
        shape = (self.max_num_reqs, self.num_slots)
        self.features = np.zeros((len(self.estimator.features), *shape), dtype=np.float32)
        self.p = np.zeros(shape, dtype=np.float32)
        self.memory = np.zeros((self.estimator.memory_size, self.max_num_reqs), dtype=np.float32)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        columns = self.features[:, batch.slots].transpose(0, 2, 1)
        found = dict(zip(self.estimator.features, columns, strict=True)) | {"confidence": self.p[batch.slots].T}
        return found | ({MEMORY: self.memory[:, batch.slots]} if self.estimator.memory_size else {})

    def draft(self, rng: Rng, slots: Ints, spread: float = 2.5) -> None:
        """Draw features of requests and predict from them in NumPy."""
        shape = (len(slots), self.num_slots)
        drawn = {"entropy": 3 * rng.random(shape), "margin": 5 * rng.random(shape)}
        for place, name in enumerate(self.estimator.features):
            values = drawn.get(name, np.clip(rng.normal(1.0, spread, shape), -40, 40))
            self.features[place, slots] = values.astype(np.float32)
        whole = Batch(slots, slots, slots)
        read = {name: np.ascontiguousarray(value) for name, value in self.inputs(whole).items() if name != "confidence"}
        self.p[slots] = self.estimator.predict(self.state.params, read, (self.num_slots, len(slots))).T

    def put(self) -> None:
        """Write NumPy's tables into the device's."""
        self.kernels.features.copy_(torch.from_numpy(self.features))
        self.kernels.predictions.copy_(torch.from_numpy(self.p))
        if self.kernels.memory is not None:
            self.kernels.memory.copy_(torch.from_numpy(self.memory.T.copy()))

    def run(self, batch: Batch) -> EstimatorState:
        with np.errstate(all="ignore"):  # a compiled kernel divides by zero without a word
            self.kernels.step(*batch.tensors())
        return self.kernels.state()

    def compare(self, what: str, ours: Any, theirs: Any, tolerance: Any) -> None:
        ours, theirs = (np.asarray(side, dtype=np.float64) for side in (ours, theirs))
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(same, 0, np.abs(ours - theirs) / np.broadcast_to(tolerance, ours.shape))
        assert (share <= 1).all(), f"{self.spec}: {what}: {share}\nNumPy {ours}\nkernel {theirs}"
        self.worst[what] = max(self.worst.get(what, 0.0), float(share.max(initial=0.0)))

    def learn(self, batch: Batch) -> None:
        """One step on both sides from NumPy's state: sums, then memory; no refit."""
        inputs = self.inputs(batch)
        seen = graded(self.estimator, inputs, batch.sampled, batch.rejected)
        self.put()
        self.kernels.load(replace(self.state, steps_since_refit=-1))
        found = self.run(batch).stats
        with np.errstate(all="ignore"):
            stats = dict(self.estimator.accumulate(self.state.stats, seen))
        self._compare_sums(seen, stats, found)
        if self.estimator.memory_size:
            with np.errstate(all="ignore"):
                kept = self.estimator.remember(self.state.params, seen)
            self._compare_memory(batch, seen, kept)
            self.memory[:, batch.slots] = kept
        self.state = replace(self.state, stats=stats)

    def refit(self) -> None:
        """A refit on both sides from the same statistics."""
        self.kernels.load(replace(self.state, steps_since_refit=self.interval - 1))
        found = self.run(NOBODY)
        with np.errstate(all="ignore"):
            params, left = self.estimator.refit(self.state.params, self.state.stats)
        before, stats = dict(self.state.params), dict(self.state.stats)
        assert found.refits == self.state.refits + 1
        assert found.steps_since_refit == 0
        for name, value in left.items():
            np.testing.assert_array_equal(found.stats[name], value)
        if self.estimator.name == "online-logistic":
            slope, intercepts = arrowhead_tolerance(self.estimator, before, stats)
            self.compare("slope", params["slope"], found.params["slope"], slope)
            self.compare("intercepts", params["intercepts"], found.params["intercepts"], intercepts)
            if INTERPRETED:
                assert_same_arrays(params, found.params)
        else:
            mean, precision = laplace_tolerance(self.estimator, before, stats)
            self.compare("mean", params["mean"], found.params["mean"], mean)
            self.compare("precision", params["precision"], found.params["precision"], precision)
            self._compare_law(params, found.params, mean)
            if "coefficients" in params:
                np.testing.assert_array_equal(found.params["coefficients"], found.params["mean"])
                np.testing.assert_array_equal(found.params["refits"], params["refits"])
        self.state = EstimatorState(params, left, 0, self.state.refits + 1)

    def _compare_sums(self, seen: Any, stats: dict[str, Any], found: Any) -> None:
        single = self.estimator.name == "online-logistic" and self.estimator.sums == "float32"
        if single and INTERPRETED:
            assert_same_arrays(stats, found)
            return
        columns = [seen.features[self.estimator.features[0]].astype(np.float64)]
        for name in self.estimator.features[1:]:
            scale = 0.5 if name == "margin" else 1.0
            with np.errstate(invalid="ignore"):
                columns.append(scale * np.sqrt(np.maximum(seen.features[name].astype(np.float64), 0)) - 1)
        if self.estimator.name == "multi-logistic" and self.estimator.history:
            columns += [np.broadcast_to(seen.features[MEMORY][row], columns[0].shape) for row in (0, 2)]
        with np.errstate(all="ignore"):
            p = seen.confidence.astype(np.float64)
            added = magnitudes(self.estimator, np.stack(columns), p, seen.observed, seen.accepted)
            # Terms that NumPy rounds to float32 are at most a little larger than these.
            tolerance = sums_tolerance(dict(self.state.stats), added, seen.observed, U32 if single else U64)
        for name, value in stats.items():
            self.compare(name, value, found[name], tolerance[name])

    def _compare_memory(self, batch: Batch, seen: Any, kept: Any) -> None:
        memory = self.kernels.memory.cpu().numpy().T
        sd, life = self.estimator.request_sd, self.estimator.request_half_life
        taken = seen.survived.sum(axis=0)
        with np.errstate(invalid="ignore"):
            p = seen.confidence.astype(np.float64)
            tolerance = memory_tolerance(seen.features[MEMORY], p, seen.observed, taken, sd, life)
        self.compare("memory", kept[:2], memory[:2, batch.slots], tolerance)
        np.testing.assert_array_equal(kept[2:], memory[2:, batch.slots])
        others = np.setdiff1d(np.arange(self.max_num_reqs), batch.slots)
        np.testing.assert_array_equal(memory[:, others], self.memory[:, others])

    def _compare_law(self, params: Any, found: Any, tolerance: Any) -> None:
        """The law is the float32 rounding of the device's own mean, to the bit, and so near to NumPy's."""
        law, shared = self.kernels.law, len(found["mean"]) - 1 - self.num_slots
        own, names = found["mean"].astype(np.float32), len(self.estimator.features)
        np.testing.assert_array_equal(law.weights.cpu().numpy(), own[:names])
        np.testing.assert_array_equal(law.intercepts.cpu().numpy(), own[shared] + own[shared + 1 :])
        if shared > names:
            np.testing.assert_array_equal(law.memory_weights.cpu().numpy(), [own[names], 0, own[names + 1]])
        elif law.memory_weights is not None:
            np.testing.assert_array_equal(law.memory_weights.cpu().numpy(), [1, 0])
        mean = params["mean"]
        level, offset = mean[shared], mean[shared + 1 :]
        expected = mean.astype(np.float32)[shared] + mean.astype(np.float32)[shared + 1 :]
        room = tolerance[shared] + tolerance[shared + 1 :]
        room = room + 2 * U32 * 1.01 * (np.abs(level) + np.abs(offset) + np.abs(level + offset) + room)
        self.compare("law", expected, law.intercepts.cpu().numpy(), room)


def assert_same_arrays(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert theirs[name].dtype == value.dtype, name
        np.testing.assert_array_equal(theirs[name], value, err_msg=name)


def draw_batch(beside: Beside, rng: Rng, size: int | None = None, rate: float | None = None) -> Batch:
    """Draw requests, and verdicts that follow another law than the estimator's; some are within their prompt."""
    count = int(rng.integers(1, beside.max_num_reqs + 1)) if size is None else size
    slots = rng.permutation(beside.max_num_reqs)[:count]
    chance = 1 / (1 + np.exp(-(0.3 + 0.9 * beside.features[0, slots]))) if rate is None else rate
    would = np.cumprod(rng.random((count, beside.num_slots)) < chance, axis=1).sum(axis=1)
    admitted = rng.integers(0, beside.num_slots + 1, count) if rate is None else np.full(count, beside.num_slots)
    prompt = rng.random(count) < (0.15 if rate is None else 0.0)
    accepted = np.where(prompt, 0, np.minimum(would, admitted))
    return Batch(slots, np.where(prompt, 0, accepted + 1), np.where(prompt, 0, admitted - accepted))
