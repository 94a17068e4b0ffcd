"""Step laws with few terms, and the avsim cost model that charges exactly what a law says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from avsim.costs import CostCard, CostModel
from avsim.costs.base import StepShape
from avsim.planning.law import NUM_BUMPS, StepLaw
from avsim.types import F64Array

CARD = CostCard("law", "none", "none", "synthetic", "a step law, for tests")


def law_of(**terms: Any) -> StepLaw:
    """Return a law whose other terms are 0."""
    names = (
        "fixed", "saturating", "per_token", "per_req", "draft_fixed", "draft_per_req", "draft_per_slot",
        "prompt_per_output", "cliff",
    )  # fmt: skip
    values = dict.fromkeys(names, 0.0) | {"knee": 60.0, "bumps": np.zeros(NUM_BUMPS)} | terms
    return StepLaw(**values)


@dataclass(frozen=True)
class LawCost(CostModel):
    """A step law as the clock of a simulation; its prompts are free."""

    name: ClassVar[str] = "law"

    law: StepLaw

    @property
    def draft_depends_on_depth(self) -> bool:
        return True

    def verify_ms(self, shape: StepShape) -> F64Array:
        return np.asarray(self.law.verify_ms(shape.num_reqs, shape.num_tokens))

    def draft_ms(self, shape: StepShape) -> F64Array:
        assert shape.draft_depth is not None
        return np.asarray(self.law.draft_ms(shape.num_reqs, shape.draft_depth))

    def outside(self, num_reqs: int, num_tokens: int) -> str | None:
        return None

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError("only for tests")
