"""The step law against hand arithmetic, and its tables against its own costs."""

from __future__ import annotations

import numpy as np
import pytest
from laws import law_of

from avsim.planning.law import NUM_BUMPS, StepLaw

FULL = law_of(
    fixed=8.0, saturating=0.6, knee=40.0, per_token=0.02, per_req=0.03, draft_fixed=1.5, draft_per_req=0.01,
    draft_per_slot=0.004, prompt_per_output=0.005, cliff=30.0, limit=100, bumps=np.linspace(0, 0.1, NUM_BUMPS),
)  # fmt: skip


def test_a_straight_law_by_hand() -> None:
    law = law_of(fixed=10.0, per_token=0.5, per_req=0.25, draft_fixed=2.0, draft_per_req=0.1, draft_per_slot=0.05)
    assert law.verify_ms(4, 16) == pytest.approx(10 + 8 + 1)
    assert law.draft_ms(4, 3) == pytest.approx(2 + 0.4 + 0.6)
    assert law.draft_ms(4, 0) == 0.0


def test_the_saturating_term_ends_at_its_share() -> None:
    law = law_of(fixed=10.0, saturating=0.5, knee=20.0)
    assert law.verify_ms(1, 20) == pytest.approx(10 * (1 + 0.5 * (1 - np.exp(-1))))
    assert law.verify_ms(1, 1e6) == pytest.approx(15.0)


def test_bumps_are_the_logarithm_at_powers_of_two_and_linear_between() -> None:
    bumps = np.zeros(NUM_BUMPS)
    bumps[3:5] = 0.2, -0.1
    law = law_of(fixed=10.0, per_req=1.0, bumps=bumps)
    assert law.verify_ms(2, 8) == pytest.approx(10 * np.exp(0.2) + 2)
    assert law.verify_ms(2, 16) == pytest.approx(10 * np.exp(-0.1) + 2)
    assert law.verify_ms(0, 8 * np.sqrt(2)) == pytest.approx(10 * np.exp(0.05))
    assert law.verify_ms(0, 2) == pytest.approx(10.0)
    assert np.isfinite(law.verify_ms(0, 1 << 20))


def test_the_cliff_begins_past_the_limit() -> None:
    law = law_of(fixed=10.0, cliff=25.0, limit=64)
    assert law.verify_ms(1, [64, 65]).tolist() == [10.0, 35.0]


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_throughput_in_closed_form(depth: int) -> None:
    reqs, length = 12, 1.0 if depth == 0 else 2.4
    n = reqs * (1 + depth)
    bump = np.interp(np.log2(n), np.arange(NUM_BUMPS), FULL.bumps)
    verify = (8 * (1 + 0.6 * (1 - np.exp(-n / 40))) + 0.02 * n) * np.exp(bump) + 0.03 * reqs
    draft = 1.5 + 0.01 * reqs + 0.004 * reqs * depth if depth else 0.0
    emitted = reqs * length
    expected = emitted / (verify + draft + 0.005 * emitted) * 1e3
    assert FULL.throughput_tok_s(reqs, length, depth) == pytest.approx(expected)


def test_tables_hold_the_laws_own_costs() -> None:
    reqs, slots = 24, 6
    tables = FULL.tables(reqs, slots)
    assert tables.by_depth is not None
    assert len(tables.verify) == reqs * (slots + 1) + 1
    for r in (1, 9, 24):
        for depth in (1, 4, 6):
            for n in (r, r * (depth + 1)):
                whole = FULL.verify_ms(r, n) + FULL.draft_ms(r, depth)
                assert tables.by_depth[depth, r] + tables.verify[n] == pytest.approx(float(whole))
        assert tables.by_depth[0, r] + tables.verify[r] == pytest.approx(float(FULL.verify_ms(r, r)))
    assert np.array_equal(tables.draft, tables.by_depth[slots])


def test_tables_keep_the_running_maximum() -> None:
    bumps = np.zeros(NUM_BUMPS)
    bumps[4] = -0.3  # cheaper at 16 tokens than at 8
    law = law_of(fixed=10.0, per_token=0.01, bumps=bumps)
    assert law.verify_ms(0, 16) < law.verify_ms(0, 8)
    verify = law.tables(8, 3).verify
    assert verify[16] == pytest.approx(float(law.verify_ms(0, np.arange(1, 17)).max()))
    assert (np.diff(verify) >= 0).all()


def test_one_of_several_draws_is_the_law_of_its_parameters() -> None:
    fixed, bumps = np.array([5.0, 9.0]), np.array([[0.1] * NUM_BUMPS, [0.2] * NUM_BUMPS])
    both = law_of(fixed=fixed, per_token=np.array([0.1, 0.2]), bumps=bumps)
    one = both.draw(1)
    assert isinstance(one, StepLaw)
    assert one.verify_ms(3, 7) == pytest.approx((9 + 0.2 * 7) * np.exp(0.2))
    assert both.verify_ms(3, 7) == pytest.approx([(5 + 0.1 * 7) * np.exp(0.1), (9 + 0.2 * 7) * np.exp(0.2)])
