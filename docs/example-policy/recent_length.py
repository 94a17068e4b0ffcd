from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.policies import Policy


@dataclass(frozen=True)
class RecentLength(Policy):
    """An example: draft as deep as was lately accepted, and `margin` slots more."""

    name: ClassVar[str] = "recent-length"
    margin: int = 1
    half_life: float = 20.0  # drafted steps after which a step counts half

    def __post_init__(self):
        if self.margin < 1 or not self.half_life > 0:
            raise InputError(f"{self.name}: margin must be at least 1 and half_life > 0")

    @property
    def plans(self):
        return True

    def memory_size(self, num_speculative_tokens):
        return 1

    def fresh_memory(self, num_speculative_tokens):
        return np.array([float(num_speculative_tokens)])

    def plan(self, plan):
        depth = np.ceil(plan.memory[0]).astype(np.int64) + self.margin
        return np.minimum(depth, len(plan.sizing))

    def admit(self, step):
        return step.num_drafted.copy()

    def remember(self, memory, outcome):
        reqs = (outcome.num_drafted > 0).sum(axis=1)
        mean = outcome.num_accepted.sum(axis=1) / np.maximum(reqs, 1)
        fade = np.where(reqs > 0, 0.5 ** (1 / self.half_life), 1.0)
        return fade * memory + (1 - fade) * mean
