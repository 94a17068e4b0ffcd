from __future__ import annotations

import math

import numpy as np
import pytest

from avsim.sources.summary import PositionCounts, wilson
from avsim.types import Blocks


def blocks(drafted: list[int], admitted: list[int], accepted: list[int], unfit: list[bool] | None = None) -> Blocks:
    count = np.arange(len(drafted))
    return Blocks(
        count,
        count,
        count,
        np.array(drafted),
        np.array(admitted),
        np.array(accepted),
        {},
        None if unfit is None else np.array(unfit),
    )


def test_each_denominator_by_hand() -> None:
    counts = PositionCounts.zero(3).add(blocks([3, 3, 2], [2, 1, 0], [1, 1, 0]))
    assert counts.drafted.tolist() == [3, 3, 2]
    assert counts.verified.tolist() == [2, 1, 0]
    assert counts.observed.tolist() == [2, 1, 0]
    assert counts.accepted.tolist() == [2, 0, 0]
    assert counts.acceptance_length == 1 + 2 / 3
    rate, low, high = counts.rates("per_drafted")
    assert rate.tolist() == [2 / 3, 0, 0]
    assert (low <= rate).all()
    assert (rate <= high).all()
    assert counts.to_json()["per_verified"]["rate"] == [1.0, 0.0, None]


def test_pieces_add_up_and_masked_blocks_are_left_out() -> None:
    whole = PositionCounts.zero(2).add(blocks([2, 2, 2], [2, 2, 2], [0, 2, 1], [False, True, False]))
    parts = PositionCounts.zero(2).add(blocks([2], [2], [0])).add(blocks([2], [2], [1]))
    assert whole.to_json() == parts.to_json()
    assert whole.num_blocks == 2
    assert math.isnan(PositionCounts.zero(2).acceptance_length)


@pytest.mark.parametrize(("successes", "trials", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0)])
def test_wilson_at_the_ends(successes: int, trials: int, low: float, high: float) -> None:
    _, found_low, found_high = wilson(np.array([successes]), np.array([trials]))
    assert found_low[0] == pytest.approx(low, abs=1e-4)
    assert found_high[0] == pytest.approx(high, abs=1e-4)
