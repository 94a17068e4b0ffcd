"""vLLM's estimator with avsim's kernels: `online-logistic`, with float32 or float64 sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from avsim.estimators.base import Arrays
from avsim.estimators.online_logistic import OnlineLogistic
from avsim.kernels.device.base import DeviceEstimator
from avsim.kernels.device.state import copy_in, copy_out
from avsim.kernels.laws import LinearLaw
from avsim.kernels.ops.arrowhead import add_logistic_sums, solve_arrowhead

__all__ = ["DeviceOnlineLogistic"]

_SUMS = ("a", "b", "c", "g0", "g1", "n")


class DeviceOnlineLogistic(DeviceEstimator):
    """`online-logistic` on a device: p_k = σ(w·f + b_k), refitted in float32 as vLLM and NumPy refit it.

    Attributes:
        slope, intercepts: w and b, float32 `[1]` and `[K]`.
        sums: a, b, c, g0, g1 and n of each slot, `[6, K]` in the estimator's own precision.
    """

    estimator: OnlineLogistic

    def _build(self) -> None:
        slots = self.num_speculative_steps
        kind = torch.float32 if self.estimator.sums == "float32" else torch.float64
        self.slope = torch.zeros(1, dtype=torch.float32, device=self.device)
        self.intercepts = torch.zeros(slots, dtype=torch.float32, device=self.device)
        self.sums = torch.zeros((len(_SUMS), slots), dtype=kind, device=self.device)
        # The refit is float32 throughout, its constants included.
        self._l2, self._damping = float(np.float32(self.estimator.l2)), float(np.float32(self.estimator.damping))
        self._law = LinearLaw(self.estimator.features, self.slope, self.intercepts)

    @property
    def law(self) -> LinearLaw:
        return self._law

    def _accumulate(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        add_logistic_sums(self.sums, self.features, self.predictions, idx_mapping, num_sampled, num_rejected)

    def _refit(self) -> None:
        solve_arrowhead(self.slope, self.intercepts, self.sums, self._l2, self._damping)

    def _load(self, params: Arrays, stats: Arrays) -> None:
        name = self.estimator.name
        copy_in(self.slope, params, "slope", name)
        copy_in(self.intercepts, params, "intercepts", name)
        for number, key in enumerate(_SUMS):
            copy_in(self.sums[number], stats, key, name)

    def _read(self) -> tuple[Arrays, Arrays]:
        params = {"slope": copy_out(self.slope), "intercepts": copy_out(self.intercepts)}
        return params, dict(zip(_SUMS, copy_out(self.sums), strict=True))
