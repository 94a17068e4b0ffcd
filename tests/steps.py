"""A policy that remembers what it was shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from avsim.policies import Policy, StepBatch
from avsim.types import IntArray


@dataclass(frozen=True)
class _Recording(Policy):
    name: ClassVar[str] = "recording"
    uses_confidence: ClassVar[bool] = True

    seen: list[StepBatch] = field(default_factory=list)

    def admit(self, step: StepBatch) -> IntArray:
        self.seen.append(step)
        return np.minimum(step.num_drafted, 1)


def recording_policy() -> tuple[Policy, list[StepBatch]]:
    """Return a policy that admits one slot per request, and the list it writes to."""
    policy = _Recording()
    return policy, policy.seen
