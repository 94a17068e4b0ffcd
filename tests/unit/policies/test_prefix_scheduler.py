"""DSpark's Algorithm 1 on the example of its appendix A."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.costs import CostTables
from avsim.policies import PrefixScheduler, StepBatch
from avsim.policies.budget import objective, ranked_survival


def appendix_a(second: float) -> StepBatch:
    """One request, two slots, a₁ = 0.8; 1.0, 0.5 and 0.45 steps/s at 1, 2 and 3 tokens."""
    confidence = np.array([0.8, second], dtype=np.float32).reshape(2, 1, 1)
    one = np.array([1])
    tables = CostTables(np.zeros(2), np.array([1.0, 1 / 1.0, 1 / 0.5, 1 / 0.45]))
    return StepBatch(confidence, confidence, np.array([[2]]), one, one, one, tables)


def values(second: float) -> list[float]:
    batch = appendix_a(second)
    ranked = ranked_survival(batch.live, batch.num_drafted)
    return objective(ranked, batch.num_sampling, batch.num_reqs, batch.num_target_tokens, batch.tables)[0].tolist()


def test_the_objective_of_appendix_a() -> None:
    assert values(0.9) == pytest.approx([1.0, 0.9, 1.134], abs=1e-6)


@pytest.mark.parametrize("second", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_early_stop_admits_nothing_whatever_the_second_confidence_is(second: float) -> None:
    assert PrefixScheduler().admit(appendix_a(second)).tolist() == [[0]]


@pytest.mark.parametrize(("second", "admitted"), [(0.9, 2), (0.53, 2), (0.52, 0), (0.1, 0)])
def test_a_global_maximum_depends_on_the_token_drawn_in_the_first_slot(second: float, admitted: int) -> None:
    """Admitting slot 1 hangs on c₂, which is a function of the token drawn in slot 1: that is the leak."""
    policy = PrefixScheduler(early_stop=False)
    assert policy.admit(appendix_a(second)).tolist() == [[admitted]]


def test_only_the_global_maximum_is_lossy() -> None:
    assert PrefixScheduler().lossy(0) is None
    assert "global argmax" in (PrefixScheduler(early_stop=False).lossy(1) or "")
