"""Observing verdicts."""

from __future__ import annotations

import numpy as np

from avsim.types import Blocks, observe, slot_sums


def test_only_the_accepted_slots_and_the_first_rejection_are_observed() -> None:
    observed, accepted = observe(np.array([4, 4, 2, 0]), np.array([2, 4, 2, 0]), 4)
    assert observed.T.tolist() == [
        [True, True, True, False],
        [True, True, True, True],
        [True, True, False, False],
        [False, False, False, False],
    ]
    assert accepted.T.tolist() == [
        [True, True, False, False],
        [True, True, True, True],
        [True, True, False, False],
        [False, False, False, False],
    ]


def test_unfit_rows_carry_no_label() -> None:
    observed, accepted = observe(np.array([2, 2]), np.array([1, 1]), 2, np.array([True, False]))
    assert observed.T.tolist() == [[False, False], [True, True]]
    assert accepted.T.tolist() == [[True, False], [True, False]]


def test_acceptance_length_is_one_plus_the_accepted_slots() -> None:
    accepted = np.array([0, 3, 1, 2])
    _, label = observe(np.full(4, 3), accepted, 3)
    assert 1 + label.sum() / 4 == 1 + accepted.mean()


def test_the_length_of_blocks_is_their_rows() -> None:
    column = np.zeros(3, dtype=np.int64)
    assert len(Blocks(column, column, None, column, column, column, {})) == 3


def test_slot_sums_leave_no_slot_short() -> None:
    """A slot without values, wherever it stands, takes nothing from its neighbours."""
    rng = np.random.default_rng(0)
    for counts in ([0, 0], [3, 0], [0, 3], [2, 0, 1], [0, 2, 0, 0, 4, 0], [1, 1, 1]):
        values = rng.random(sum(counts)).astype(np.float32)
        parts = np.split(values.astype(np.float64), np.cumsum(counts)[:-1])
        np.testing.assert_allclose(slot_sums(values, np.array(counts)), [part.sum() for part in parts], rtol=1e-15)
