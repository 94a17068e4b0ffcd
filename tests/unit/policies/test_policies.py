"""What the simple policies promise beyond the contract."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from avsim import policies, registry
from avsim.costs import CostTables
from avsim.errors import InputError
from avsim.policies import Adaptive, FixedDepth, NoDrafting, Oracle, StepBatch
from avsim.testing.steps import COST_SHAPES, random_batch

TWO = np.array([2])
LIVE = np.full((3, 1, 2), 0.5, dtype=np.float32)
STEP = StepBatch(
    LIVE, LIVE, np.array([[3, 1]]), TWO, TWO, TWO, CostTables(np.zeros(3), np.ones(9)), num_accepted=np.array([[2, 1]])
)


def test_fixed_depth_needs_a_trace_that_is_deep_enough() -> None:
    assert FixedDepth(3).depth(5) == 3
    with pytest.raises(InputError, match="fixed:4 needs 4 draft slots, but the trace holds K = 3; use k ≤ 3"):
        FixedDepth(4).depth(3)
    with pytest.raises(InputError, match="plain decoding is the policy 'none'"):
        FixedDepth(0)


def test_what_each_policy_drafts() -> None:
    assert NoDrafting().depth(7) == 0
    assert Adaptive().depth(7) == 7
    assert FixedDepth(2).admit(STEP).tolist() == [[2, 1]]
    assert NoDrafting().admit(STEP).tolist() == [[0, 0]]


def test_oracles_need_the_verdict() -> None:
    assert Oracle("exact").admit(STEP).tolist() == [[2, 1]]
    # Costs are flat, so every slot that will be accepted is worth it, and none beyond.
    assert Oracle().admit(STEP).tolist() == [[2, 1]]
    with pytest.raises(ValueError, match="num_accepted"):
        Oracle().admit(replace(STEP, num_accepted=None))


def test_the_oracle_counts_only_tokens_that_the_output_still_needs() -> None:
    # One token to come is the bonus token; two leave room for one draft.
    step = replace(STEP, num_remaining=np.array([[1, 2]]))
    assert Oracle().admit(step).tolist() == [[0, 1]]


@pytest.mark.parametrize("cost", COST_SHAPES)
def test_no_admission_emits_more_per_ms_than_the_oracle(cost: str) -> None:
    """Against every possible admission of every step."""
    batch = random_batch(cost, num_steps=30, num_reqs=3, num_slots=3, seed=11)
    assert batch.num_accepted is not None
    assert batch.num_remaining is not None
    useful = np.minimum(batch.num_accepted, batch.num_remaining - 1)
    chosen = Oracle().admit(batch)
    for step, drafted in enumerate(batch.num_drafted.tolist()):

        def value(admitted: np.ndarray, step: int = step) -> float:
            tokens = batch.num_sampling[step] + np.minimum(useful[step], admitted).sum()
            verify = batch.tables.verify[batch.num_target_tokens[step] + admitted.sum()]
            return float(tokens / (batch.tables.draft[batch.num_reqs[step]] + verify))

        every = product(*(range(count + 1) for count in drafted))
        assert value(chosen[step]) == max(value(np.array(admitted)) for admitted in every)


def test_adaptive_is_exact_only_on_old_confidences() -> None:
    assert "global argmax on live confidences" in (Adaptive().lossy(0) or "")
    assert Adaptive().lossy(1) is None


def test_every_registered_policy_has_a_spec() -> None:
    needed = {"fixed": ":2", "threshold": ":0.5", "slo": ":30", "batch-schedule": ":1-8:3/9-:0"}
    for name in policies.BUILTIN:
        made = policies.make(name + needed.get(name, ""))
        assert made.name == name
        assert policies.make(registry.format_spec(made)) == made
