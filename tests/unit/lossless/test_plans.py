"""A draft depth chosen on old values keeps the output exact, and one chosen on the drafts themselves is caught."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from avsim.estimators import OnlineLogistic
from avsim.lossless.cases import Case, Settings
from avsim.lossless.check import check_case
from avsim.policies import DraftPlan, FixedDepth, StepBatch
from avsim.types import IntArray

SMALL = Settings(models=200)


@dataclass(frozen=True)
class GoodOmen(FixedDepth):
    """Drafts all slots after a block that looked good, else one; or stops after one where this block looks bad."""

    name: ClassVar[str] = "good-omen"
    uses_confidence: ClassVar[bool] = True

    peeks: bool = False

    @property
    def plans(self) -> bool:
        return not self.peeks

    def plan(self, plan: DraftPlan) -> IntArray:
        return np.where(plan.sizing.min(axis=(0, 2)) > 0.4, self.k, 1)

    def admit(self, step: StepBatch) -> IntArray:
        if not self.peeks:
            return step.num_drafted.copy()
        good = step.live.min(axis=(0, 2)) > 0.4
        return np.where(good[:, None], step.num_drafted, 0)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_depth_planned_on_old_confidences_is_exact_at_any_lag(lag: int) -> None:
    row = check_case(Case(GoodOmen(2), OnlineLogistic(), lag=lag), SMALL)
    assert row["passed"], row
    assert row["largest_total_variation"] < 1e-12


def test_the_same_rule_on_the_drafts_at_hand_is_not() -> None:
    row = check_case(Case(GoodOmen(2, peeks=True), OnlineLogistic()), SMALL)
    assert row["expected"]["exact"]
    assert not row["passed"]
    assert row["largest_total_variation"] > 1e-3
