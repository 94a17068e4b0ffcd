"""The floor, and what is hidden behind the cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from planning import NUM_SLOTS, batch_for, cost_tables, outcome_of

from avsim.errors import InputError
from avsim.policies import Adaptive, StepBatch
from avsim.testing.steps import random_batches

LIVE = np.array([[0.9, 0.2, 0.8], [0.9, 0.2, 0.5], [0.9, 0.2, 0.5], [0.9, 0.2, 0.5]])
BATCH = batch_for(LIVE, cost_tables(3, draft=1, per_token=1.0))


def test_every_request_has_its_floor() -> None:
    assert Adaptive().admit(BATCH).tolist() == [[4, 0, 2]]
    assert Adaptive(floor=1).admit(BATCH).tolist() == [[4, 1, 2]]
    assert Adaptive(floor=2).admit(BATCH).tolist() == [[4, 2, 2]]
    assert Adaptive(floor=9).admit(BATCH).tolist() == [[4, 4, 4]]
    ragged = replace(BATCH, num_drafted=np.array([[4, 1, 0]]))
    assert Adaptive(floor=2).admit(ragged).tolist() == [[4, 1, 0]]


def test_the_floor_gives_way_to_the_logit_limit_slot_by_slot() -> None:
    admitted = [Adaptive(floor=2).admit(replace(BATCH, max_total_logits=3 + room))[0].tolist() for room in range(7)]
    assert admitted == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2]]


def test_with_a_floor_the_budget_is_the_best_of_those_that_hold_it() -> None:
    """Against every admission that holds the floor, by expected tokens per ms."""
    for batch in random_batches(Adaptive(), num_reqs=3):
        chosen = Adaptive(floor=1).admit(replace(batch, live=batch.sizing))
        for step in range(1, len(chosen), 5):
            every = product(*(range(min(1, count), count + 1) for count in batch.num_drafted[step].tolist()))
            best = max(expected_rate(batch, step, np.array(admitted)) for admitted in every)
            assert expected_rate(batch, step, chosen[step]) == pytest.approx(best)


def expected_rate(batch: StepBatch, step: int, admitted: np.ndarray) -> float:
    survivals = np.cumprod(batch.sizing[:, step].astype(np.float64), axis=0)
    prefix = np.concatenate((np.zeros((1, 3)), np.cumsum(survivals, axis=0)))
    tokens = batch.num_sampling[step] + prefix[admitted, np.arange(3)].sum()
    verify = batch.tables.verify[batch.num_target_tokens[step] + admitted.sum()]
    return float(tokens / (batch.tables.draft[batch.num_reqs[step]] + verify))


def test_what_was_drafted_behind_the_cut_is_not_sized_on() -> None:
    policy = Adaptive(hide_trimmed=True)
    memory = np.concatenate((np.full(NUM_SLOTS, 0.1), np.full(NUM_SLOTS, 50.0)))[:, None]
    sure = batch_for(np.full((4, 1), 0.99), cost_tables(1, draft=1, per_token=3.0), memory)
    assert policy.admit(sure).tolist() == [[4]]
    assert policy.admit(replace(sure, sizing_admitted=np.array([[2]]))).tolist() == [[2]]
    tampered = sure.sizing.copy()
    tampered[2:] = 0.5
    cut = replace(sure, sizing_admitted=np.array([[2]]), sizing=tampered)
    assert policy.admit(cut).tolist() == [[2]]


def test_in_its_place_stands_the_mean_of_what_was_trimmed() -> None:
    policy = Adaptive(hide_trimmed=True)
    memory = policy.fresh_memory(NUM_SLOTS)[:, None]
    live = np.array([[0.9, 0.8], [0.6, 0.4], [0.5, 0.1], [0.3, 0.2]])
    seen = replace(outcome_of(live, 4, 0), num_admitted=np.array([[1, 2]]))
    after = policy.remember(memory, seen)[:, 0]
    assert after[:NUM_SLOTS].tolist() == pytest.approx([0, 0.6, 0.3, 0.25])
    assert after[NUM_SLOTS:].tolist() == [0, 1, 2, 2]


def test_a_batch_keeps_its_mean_when_what_is_trimmed_is_hidden() -> None:
    rng = np.random.default_rng(1)
    live, admitted = rng.random((NUM_SLOTS, 500)), rng.integers(0, NUM_SLOTS + 1, (1, 500))
    policy = Adaptive(hide_trimmed=True)
    seen = replace(outcome_of(live, NUM_SLOTS, 0), num_admitted=admitted)
    memory = policy.remember(policy.fresh_memory(NUM_SLOTS)[:, None], seen)
    batch = replace(batch_for(live, cost_tables(500, draft=1, per_token=1), memory), sizing_admitted=admitted)
    shown = policy._visible(batch)
    assert shown.mean(axis=2)[:, 0] == pytest.approx(live.mean(axis=1), abs=1e-6)
    assert not np.array_equal(shown, batch.sizing)


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="floor counts slots"):
        Adaptive(floor=-1)
    with pytest.raises(ValueError, match="sizing_admitted"):
        Adaptive(hide_trimmed=True).admit(BATCH)
    assert Adaptive().memory_size(7) == 0


def test_a_limit_among_the_slots_past_the_floor_is_held_by_the_best_budget_below_it() -> None:
    """Four slots are worth a long step and two are not, so room for two means one."""
    tables = replace(BATCH.tables, verify=np.array([10.0, 10, 10, 17, 17, 17]), draft=np.zeros(2))
    step = batch_for(np.full((4, 1), 0.99), tables)
    assert Adaptive(floor=1).admit(step).tolist() == [[4]]
    assert Adaptive(floor=1).admit(replace(step, max_total_logits=3)).tolist() == [[1]]
