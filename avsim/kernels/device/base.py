"""What an estimator is on the device: vLLM's `OnlineAcceptanceEstimator`, with a reset and a state that can be loaded.

    step(verdicts of the last step) → accumulate → remember → refit, every so many steps
    predict(draft logits)           → features → confidence, inside the captured drafting graph

The meaning of every operation is the NumPy estimator's own; `avsim.testing.kernel_parity` holds the two together.
Nothing here waits for the device or allocates after the first call of each kind, and kernels are chosen by shapes
alone, so that all ranks of a tensor-parallel group compute the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from avsim.estimators.base import Arrays, Estimator, EstimatorState
from avsim.kernels.laws import GridLaw, LinearLaw
from avsim.kernels.ops.predict import Predictor

__all__ = ["DeviceEstimator"]


class DeviceEstimator(ABC):
    """One estimator in the memory of a device; rows of its tables are the engine's persistent request slots.

    Args:
        estimator: what it means, with its options.
        max_num_reqs: R, persistent slots.
        num_speculative_steps: K.
        device: where its tables lie.

    Attributes:
        features: of the newest draft in each slot, float32 `[F, R, K]`, in the order of `law.features`.
        predictions: p as predicted at draft time, float32 `[R, K]`.
        memory: what is kept of each request, float32 `[R, D]`; None where D is 0.
    """

    def __init__(self, estimator: Estimator, max_num_reqs: int, num_speculative_steps: int, device: torch.device):
        self.estimator = estimator
        self.num_speculative_steps = num_speculative_steps
        self.device = device
        shape = (max_num_reqs, num_speculative_steps)
        self.features = torch.zeros((len(estimator.features), *shape), dtype=torch.float32, device=device)
        self.predictions = torch.zeros(shape, dtype=torch.float32, device=device)
        size = estimator.memory_size
        self.memory = torch.zeros((max_num_reqs, size), dtype=torch.float32, device=device) if size else None
        self._predictor = Predictor(device)
        self._steps_since_refit = 0
        self._refits = 0
        self._build()
        self.load(estimator.start(num_speculative_steps))

    @property
    @abstractmethod
    def law(self) -> LinearLaw | GridLaw:
        """The form of its predictions; always the same tensors."""

    @abstractmethod
    def _build(self) -> None:
        """Allocate coefficients and statistics."""

    @abstractmethod
    def _accumulate(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        """Add one step's labelled slots to the statistics."""

    @abstractmethod
    def _refit(self) -> None:
        """Turn the statistics into new coefficients, in place."""

    @abstractmethod
    def _load(self, params: Arrays, stats: Arrays) -> None:
        """Copy a NumPy state into the tensors."""

    @abstractmethod
    def _read(self) -> tuple[Arrays, Arrays]:
        """Return parameters and statistics as NumPy has them; waits for the device."""

    def _remember(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        """Update the memory of the requests in a step; only asked where there is one."""
        raise NotImplementedError(f"{self.estimator.name} has a memory and must say how it is kept")

    def step(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        """Learn from the verdicts of one step.

        Args:
            idx_mapping: persistent slot of each request in the batch, integers `[B]` (vLLM has int64).
            num_sampled: tokens that it emitted, accepted drafts and the bonus, int32 `[B]`; 0 within a prompt.
            num_rejected: admitted drafts that were rejected, int32 `[B]`.
        """
        self._accumulate(idx_mapping, num_sampled, num_rejected)
        if self.memory is not None:
            self._remember(idx_mapping, num_sampled, num_rejected)
        self._steps_since_refit += 1
        if self._steps_since_refit == self.estimator.refit_interval:
            self._steps_since_refit = 0
            self._refit()
            self._refits += 1

    def predict(self, logits: Any, idx_mapping: Any, draft_step: Any, confidence_probs: Any, temperature: Any) -> None:
        """Turn draft logits into confidences; may be captured in a graph.

        Args:
            logits: before temperature, `[rows, vocab]` of float32, float16 or bfloat16; the last stride is 1.
            idx_mapping: persistent slot of each row, integers `[rows]`; −1 in rows that pad a graph, which are
                left alone.
            draft_step: the slot k of all rows, an integer tensor without dimensions; or of each row, `[rows]`, where
                a request owns K rows one after the other.
            confidence_probs: takes p at `[row of the batch, k]`, float32.
            temperature: by persistent slot, float32; 0 counts as 1.
        """
        self._predictor(
            logits, idx_mapping, draft_step, confidence_probs, temperature, self.law, self.features, self.predictions
        )

    def reset(self, slot: int) -> None:
        """Forget the request that had this slot; the engine reuses slots."""
        if self.memory is not None:
            self.memory[slot].zero_()

    def load(self, state: EstimatorState) -> None:
        """Go on from a state that the NumPy estimator has reached, in a replay say."""
        self._load(state.params, state.stats)
        self._steps_since_refit, self._refits = state.steps_since_refit, state.refits

    def state(self) -> EstimatorState:
        """Return the state as the NumPy estimator has it; waits for the device."""
        return EstimatorState(*self._read(), self._steps_since_refit, self._refits)
