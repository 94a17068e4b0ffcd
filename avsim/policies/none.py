"""Plain decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.policies.base import Policy, StepBatch
from avsim.types import IntArray

__all__ = ["NoDrafting"]


@dataclass(frozen=True)
class NoDrafting(Policy):
    """No drafting at all: one token per request and step, no draft cost."""

    name: ClassVar[str] = "none"
    drafts: ClassVar[bool] = False

    @property
    def separable(self) -> bool:
        return True

    def admit(self, step: StepBatch) -> IntArray:
        return np.zeros_like(step.num_drafted)
