"""What an acceptance estimator is: init → predict → accumulate → refit, with explicit state.

The split is that of vLLM's three kernels, and it is what makes replay fast: predictions can change only at a
refit, so every step between two refits is one array operation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from avsim.errors import InputError
from avsim.types import F32Array, Features, Observations

__all__ = ["MEMORY", "Arrays", "Estimator", "EstimatorState", "advance"]

Arrays = Mapping[str, NDArray[Any]]
"""Named arrays; an estimator's parameters and its statistics are each one such mapping, never mutated."""

MEMORY = "memory"
"""The key under which `predict`, `accumulate` and `remember` find what is kept of each request, float32 `[D, rows]`."""


@dataclass(frozen=True, slots=True)
class EstimatorState:
    """All that an estimator knows: parameters, statistics since the last refit, and where it is in the cycle.

    `params` are what `predict` reads. `stats` are sums over observations. `steps_since_refit` and `refits` count
    sampling steps and completed refits.
    """

    params: Arrays
    stats: Arrays
    steps_since_refit: int = 0
    refits: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dict; floats round-trip exactly."""
        return {
            "params": {name: _array_to_json(value) for name, value in self.params.items()},
            "stats": {name: _array_to_json(value) for name, value in self.stats.items()},
            "steps_since_refit": self.steps_since_refit,
            "refits": self.refits,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EstimatorState:
        """Rebuild a state from `to_json`.

        Raises:
            InputError: a key is missing or an array is malformed.
        """
        try:
            return cls(
                {name: _array_from_json(value) for name, value in data["params"].items()},
                {name: _array_from_json(value) for name, value in data["stats"].items()},
                int(data["steps_since_refit"]),
                int(data["refits"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"estimator state: {error!r}; it must be what EstimatorState.to_json writes") from error


@dataclass(frozen=True)
class Estimator(ABC):
    """Base of every acceptance estimator; subclasses are frozen dataclasses of hyper-parameters.

    A subclass sets `name`, and may override `features` (the columns it may read; the harness passes no others)
    and `refit_interval`. All four methods are pure: they return new arrays and mutate nothing.
    """

    name: ClassVar[str]
    refit_interval: int = field(default=100, kw_only=True)

    uses_truth: ClassVar[bool] = False
    """True for bounds that read the verdict itself; no engine can run them."""
    uses_drawn_token: ClassVar[bool] = False
    """True where p_k depends on the token drawn in slot k: lossy with sampled drafts (DESIGN §3)."""
    cumulative: ClassVar[bool] = False
    """True where it learns from the label k < A of every verified slot, and so reads features past a rejection."""
    offline: ClassVar[bool] = False
    """True where parameters come from `fit` on graded blocks kept apart, and serving does not change them."""

    def __post_init__(self) -> None:
        if self.refit_interval < 1:
            raise InputError(f"{self.name}: refit_interval must be at least 1 step, not {self.refit_interval}")

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the feature columns that `predict` and `accumulate` read."""
        return ()

    @property
    def memory_size(self) -> int:
        """D, the numbers kept of each request from block to block: 0 when its first block is drafted."""
        return 0

    @abstractmethod
    def init(self, num_speculative_tokens: int) -> Arrays:
        """Return the parameters of a cold start for K slots."""

    @abstractmethod
    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        """Return confidences in [0, 1], float32 `[K, n]`, for features of that shape."""

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        """Return the statistics of no observations at all."""
        return {}

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        """Return the statistics with some graded blocks added; sums, so that any split gives the same result."""
        return stats

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        """Return `(new parameters, statistics to go on with)`."""
        return params, stats

    def remember(self, params: Arrays, observations: Observations) -> F32Array:
        """Return what to keep of each request after one step, float32 `[D, rows]`.

        Called once per step, whose blocks belong to different requests, with the parameters that predicted it;
        `observations.features[MEMORY]` is what was kept before.
        """
        return observations.features[MEMORY]

    def fit(self, num_speculative_tokens: int, observations: Observations) -> Arrays:
        """Return parameters fitted to graded blocks; only where `offline`.

        Raises:
            InputError: the estimator learns online.
        """
        raise InputError(f"{self.name} learns while serving; it has no offline fit")

    def start(self, num_speculative_tokens: int) -> EstimatorState:
        """Return the state of a cold start."""
        return EstimatorState(self.init(num_speculative_tokens), self.zero_stats(num_speculative_tokens))


def advance(
    estimator: Estimator, state: EstimatorState, observations: Observations | None, num_steps: int
) -> EstimatorState:
    """Fold `num_steps` graded steps into a state, refitting when the interval is reached.

    `observations` may be None for steps without drafts (prefill-only steps count as well). The steps must not
    reach beyond the next refit, because predictions may change there.

    Raises:
        ValueError: the steps cross a refit boundary (a defect of the caller).
    """
    steps = state.steps_since_refit + num_steps
    if steps > estimator.refit_interval:
        raise ValueError(f"{num_steps} steps cross a refit boundary after {state.steps_since_refit}")
    stats = state.stats if observations is None else estimator.accumulate(state.stats, observations)
    if steps < estimator.refit_interval:
        return EstimatorState(state.params, stats, steps, state.refits)
    params, stats = estimator.refit(state.params, stats)
    return EstimatorState(params, stats, 0, state.refits + 1)


def _array_to_json(array: NDArray[Any]) -> dict[str, Any]:
    array = np.asarray(array)
    return {"dtype": array.dtype.name, "shape": list(array.shape), "values": array.ravel().tolist()}


def _array_from_json(data: Mapping[str, Any]) -> NDArray[Any]:
    return np.array(data["values"], dtype=np.dtype(data["dtype"])).reshape(data["shape"])
