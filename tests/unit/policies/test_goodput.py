"""SmartSpec's rule against its closed form, and what probing is for."""

from __future__ import annotations

import numpy as np
import pytest
from planning import NUM_SLOTS, cost_tables, outcome_of, plan_for, serve

from avsim.errors import InputError
from avsim.policies import Goodput

LIVE = np.ones((NUM_SLOTS, 8))


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("per_token", [0.01, 0.3, 1.0])
def test_one_rate_maximises_smartspecs_goodput(rate: float, per_token: float) -> None:
    """goodput(k) = R (1 − α^{k+1}) / (1 − α) / time(k), the paper's formula written out."""
    tables = cost_tables(8, draft=4, per_token=per_token)
    lengths = [(1 - rate ** (k + 1)) / (1 - rate) for k in range(NUM_SLOTS + 1)]
    times = [k / NUM_SLOTS * 4 + 10 + per_token * 8 * (k + 1) for k in range(NUM_SLOTS + 1)]
    expected = int(np.argmax([8 * length / time for length, time in zip(lengths, times, strict=True)]))
    memory = np.array([[rate], [100.0], [0.0]])
    assert Goodput().plan(plan_for(tables, 8, memory)).tolist() == [expected]


def test_rates_per_slot_see_a_drafter_that_fails_late() -> None:
    """Two slots right and the third wrong, always: a single rate of 2/3 is taken for every slot alike."""
    tables = cost_tables(8, draft=4, per_token=0.05)
    assert serve(Goodput(rates="per-slot"), tables, 8, LIVE, 2, 40)[-1] == 2
    assert serve(Goodput(), tables, 8, LIVE, 2, 40)[-1] > 2


def test_rates_are_means_over_verdicts() -> None:
    policy = Goodput()
    memory = policy.remember(policy.fresh_memory(NUM_SLOTS)[:, None], outcome_of(LIVE, 4, 1))
    # 0.7 worth ten verdicts, then 8 accepted and 8 rejected slots.
    assert memory[:, 0].tolist() == pytest.approx([(7 + 8) / 26, 26, 1])
    full = policy.remember(policy.fresh_memory(NUM_SLOTS)[:, None], outcome_of(LIVE, 4, 4))
    assert full[:2, 0].tolist() == pytest.approx([(7 + 32) / 42, 42])


def test_without_probing_a_bad_stretch_ends_drafting_for_good() -> None:
    tables = cost_tables(8, draft=4, per_token=0.3)
    for probe, expected in ((0, 0), (10, 4)):
        policy = Goodput(probe=probe, horizon=100)
        memory = policy.fresh_memory(NUM_SLOTS)[:, None]
        for step in range(400):
            depth = int(policy.plan(plan_for(tables, 8, memory))[0])
            memory = policy.remember(memory, outcome_of(LIVE, depth, 0 if step < 50 else 4))
        assert depth == expected


def test_a_probe_drafts_one_slot_in_one_step_of_several() -> None:
    found = serve(Goodput(probe=10), cost_tables(8, draft=4, per_token=1), 8, LIVE, 0, 60)
    assert found[20:] == ([0] * 9 + [1]) * 4
    with pytest.raises(InputError, match="horizon"):
        Goodput(horizon=0)
