"""Censoring, slot by slot."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from avsim.types import observe


@st.composite
def blocks(draw):
    num_slots = draw(st.integers(1, 6))
    rows = draw(st.lists(st.integers(0, num_slots), min_size=1, max_size=8))
    accepted = [draw(st.integers(0, admitted)) for admitted in rows]
    unfit = draw(st.none() | st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    return num_slots, rows, accepted, unfit


@given(blocks())
def test_a_slot_is_observed_if_accepted_or_the_first_rejection(block):
    num_slots, admitted, accepted, unfit = block
    mask = None if unfit is None else np.array(unfit)
    observed, label = observe(np.array(admitted), np.array(accepted), num_slots, mask)
    for row, (m, a) in enumerate(zip(admitted, accepted, strict=True)):
        for slot in range(num_slots):
            reached = slot < m and all(label[before, row] for before in range(slot))
            assert observed[slot, row] == (reached and not (unfit and unfit[row]))
            assert label[slot, row] == (slot < a)
