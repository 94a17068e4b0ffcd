"""What a planner knows: acceptance, step costs, and how good confidences are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from avsim.costs.base import CostModel
from avsim.errors import InputError
from avsim.planning.acceptance import Acceptance
from avsim.planning.population import BLOCK_SHARE
from avsim.policies import NO_LOGIT_LIMIT

__all__ = ["PlanInput", "check_quality"]


@dataclass(frozen=True)
class PlanInput:
    """What is known; whatever is None is drawn from the shipped priors (`avsim/planning/priors.toml`).

    Attributes:
        acceptance: per position, taken as exact.
        cost: step costs of target and drafter.
        context_tokens: cached tokens of a request, on average.
        auc, auc_sd: AUC of the confidences, mean over slots, and how sure that is.
        calibration_slope, calibration_offset: the policy reads σ(slope · logit p + offset); 1 and 0 are calibrated.
        request_share: see `Spread`.
        cost_sd: of the logarithm of drafting and of verification costs; None: by the kind of the cost card.
        overhead_ms: adaptive verification's own cost per step; None: unknown, charged as nothing, and gains that the
            published size would erase are withheld.
        max_total_logits: see `StepBatch`.
        draws: of everything that is not known.
    """

    acceptance: Acceptance
    cost: CostModel
    context_tokens: float = 1024.0
    auc: float | None = None
    auc_sd: float = 0.04
    calibration_slope: float | None = None
    calibration_offset: float | None = None
    request_share: float | None = None
    cost_sd: float | None = None
    overhead_ms: float | None = None
    max_total_logits: int = NO_LOGIT_LIMIT
    draws: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_quality(self.auc, self.auc_sd, self.calibration_slope, self.calibration_offset)
        if self.draws < 40:
            raise InputError(f"draws must be at least 40 for a 95 % interval, not {self.draws}")
        if not 0 <= self.context_tokens < float("inf"):
            raise InputError(f"context must be finite and ≥ 0 tokens, not {self.context_tokens}")
        if self.cost_sd is not None and not 0 <= self.cost_sd < 2:
            raise InputError(f"cost uncertainty is a sd of the logarithm from 0 to 2, not {self.cost_sd}")
        if self.request_share is not None and not 0 <= self.request_share <= 1 - BLOCK_SHARE:
            raise InputError(f"request share lies between 0 and {1 - BLOCK_SHARE:g}, not {self.request_share}")
        if self.overhead_ms is not None and not 0 <= self.overhead_ms < float("inf"):
            raise InputError(f"av overhead must be finite and ≥ 0 ms, not {self.overhead_ms}")


def check_quality(auc: float | None, auc_sd: float, slope: float | None, offset: float | None) -> None:
    """Refuse a quality of confidences that no confidences have.

    Raises:
        InputError: which, and what is allowed.
    """
    if auc is not None and not 0.5 < auc <= 0.97:
        raise InputError(f"auc must be above 0.5 (no better than chance) and at most 0.97, not {auc:g}")
    if not 0 <= auc_sd <= 0.2:
        raise InputError(f"auc sd must lie between 0 and 0.2, not {auc_sd:g}")
    if slope is not None and not 0.1 <= slope <= 10:
        raise InputError(f"calibration slope must lie between 0.1 and 10 (1: calibrated), not {slope:g}")
    if offset is not None and not (np.isfinite(offset) and abs(offset) <= 5):
        raise InputError(f"calibration offset must lie between -5 and 5 (0: calibrated), not {offset:g}")
