"""A profile of a known law: what is recovered, what is marked, what is noticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from profile_cases import PLAN, MadeUp, draft_law, profile, verify_law

from avsim.costs.profile.measure import WARM_CALLS, measure
from avsim.costs.profile.plan import MIN_ROUNDS
from avsim.costs.profile.summary import fit_kv, mark_outliers, median_interval, watch_drift
from avsim.errors import InputError


def quiet(done: int, total: int, what: str) -> None:
    pass


def test_a_law_is_recovered_within_its_own_intervals() -> None:
    """Over many profiles, intervals of medians, of bases at an empty cache and of the KV term cover what they claim."""
    inside: dict[str, list[bool]] = {"median": [], "base": [], "kv": []}
    for seed in range(25):
        machine = MadeUp(sigma=0.05, seed=seed)
        measured = measure(machine, PLAN, machine, machine.clock, quiet)
        run_stats = [median_interval(ms) for ms in measured.ms]
        for cell, (low, high) in zip(measured.cells, run_stats, strict=True):
            law = (
                draft_law(cell.num_reqs, cell.depth, cell.context)
                if cell.depth
                else verify_law(cell.num_tokens, cell.num_reqs, cell.context)
            )
            inside["median"].append(low <= law <= high)
        rows = [index for index, cell in enumerate(measured.cells) if "single" in cell.spreads]
        term = fit_kv(measured, rows, seed)
        assert term.fits
        inside["kv"].append(term.low_ns <= 400 <= term.high_ns)
        for size, low, high in zip(term.sizes, term.low_ms, term.high_ms, strict=True):
            inside["base"].append(low <= verify_law(size, 0, 0) <= high)
    covered = {name: float(np.mean(found)) for name, found in inside.items()}
    # Order statistics cover 95 % at least; the percentile bootstrap a little less than it says.
    assert 0.93 <= covered["median"] <= 0.99
    assert 0.85 <= covered["base"] <= 1.0
    assert 0.80 <= covered["kv"] <= 1.0


def test_intervals_of_medians_against_the_binomial_law() -> None:
    rng = np.random.default_rng(0)
    for count in (6, 7, 20, 31):
        drawn = rng.exponential(size=(2500, count))
        hit = np.mean([low <= np.log(2) <= high for low, high in map(median_interval, drawn)])
        assert 0.945 <= hit <= 0.99


def test_planted_outliers_are_marked_and_nothing_else() -> None:
    # The first nine timings are the check of the first step; then come rounds of all cells.
    planted = {9 + 40: 3.0, 9 + 41: 1.6, 9 + 200: 0.5}
    machine = MadeUp(sigma=0.01, spoil=planted)
    measured = measure(machine, PLAN, machine, machine.clock, quiet)
    marked = mark_outliers(measured)
    assert sorted(measured.order[marked].tolist()) == [40, 41, 200]
    clean = MadeUp(sigma=0.01)
    again = measure(clean, PLAN, clean, clean.clock, quiet)
    assert not mark_outliers(again).any()
    np.testing.assert_allclose(np.median(measured.ms, axis=1), np.median(again.ms, axis=1), rtol=0.02)


def test_planted_drift_is_noticed_and_does_not_pose_as_a_slope() -> None:
    slower = profile(MadeUp(sigma=0.02, drift=lambda seconds: 1 + 0.02 * seconds))
    assert slower.drift.found
    assert slower.drift.trend_pct > 5
    assert slower.drift.repeat_pct > 5
    assert any(note.startswith("DRIFT: late rounds took +") for note in slower.notes)
    assert "DRIFT" in slower.tables[0].model.card.notes
    # Interleaved, all steps are slowed alike: ratios between them stay.
    verify = dict(slower.tables[0].model.verify)
    assert verify[16] / verify[1] == pytest.approx(verify_law(16, 0, 0) / verify_law(1, 0, 0), rel=0.03)
    # Noise alone is rarely taken for drift.
    steady = 0
    for seed in range(20):
        machine = MadeUp(sigma=0.05, seed=seed)
        steady += watch_drift(measure(machine, PLAN, machine, machine.clock, quiet)).found
    assert steady <= 2


def test_a_step_at_the_end_alone_tells_drift_of_the_last_moments() -> None:
    machine = MadeUp(sigma=0.01)
    measured = measure(machine, PLAN, machine, machine.clock, quiet)
    late = replace(measured, end_ms=measured.end_ms * 1.2)
    found = watch_drift(late)
    assert found.found
    assert abs(found.trend_pct) < 2
    assert not watch_drift(measured).found


def test_each_round_times_every_step_once_in_an_order_of_its_own() -> None:
    machine = MadeUp()
    measured = measure(machine, PLAN, machine, machine.clock, quiet)
    count = len(measured.cells)
    assert measured.ms.shape == (count, PLAN.repeats)
    assert sorted(measured.order.reshape(-1).tolist()) == list(range(count * PLAN.repeats))
    orders = {tuple(column) for column in (measured.order % count).T.tolist()}
    assert len(orders) == PLAN.repeats
    assert (measured.order // count == np.arange(PLAN.repeats)).all()
    assert machine.timed == count * PLAN.repeats + 18
    assert machine.calls == machine.timed + WARM_CALLS * count + count * PLAN.repeats + 2
    same = MadeUp()
    assert (measure(same, PLAN, same, same.clock, quiet).order == measured.order).all()
    other = MadeUp()
    assert (measure(other, replace(PLAN, seed=2), other, other.clock, quiet).order != measured.order).any()


def test_the_time_limit_leaves_whole_rounds_out() -> None:
    whole = MadeUp()
    full = measure(whole, PLAN, whole, whole.clock, quiet)
    machine = MadeUp()
    minutes = full.seconds / 60 / 2
    cut = measure(machine, replace(PLAN, minutes=minutes), machine, machine.clock, quiet)
    assert MIN_ROUNDS <= cut.num_rounds < PLAN.repeats
    assert cut.seconds <= 60 * minutes * 1.02
    assert cut.seconds > 60 * minutes * 0.8
    run = profile(MadeUp(), replace(PLAN, minutes=minutes))
    assert f"Stopped by --minutes after {run.measured.num_rounds} of 30 rounds" in run.notes
    short = MadeUp()
    with pytest.raises(InputError, match="is too short: 6 rounds of"):
        measure(short, replace(PLAN, minutes=minutes / 20), short, short.clock, quiet)
    assert short.timed == 0


def test_a_step_that_fails_is_named() -> None:
    class Failing(MadeUp):
        def verify(self, queries, context):  # type: ignore[no-untyped-def]
            if len(queries) == 16:
                raise RuntimeError("out of memory\nand more")
            return super().verify(queries, context)

    machine = Failing()
    with pytest.raises(InputError, match=r"16 tokens of 16 requests, 400 cached: cannot be run \(out of memory\);"):
        measure(machine, PLAN, machine, machine.clock, quiet)
    alone = MadeUp(draft=None)
    with pytest.raises(InputError, match="made-up machine has no drafter to measure"):
        measure(alone, PLAN, alone, alone.clock, quiet)
    broken = MadeUp(spoil={40: float("nan")})
    with pytest.raises(InputError, match="took nan ms"):
        measure(broken, PLAN, broken, broken.clock, quiet)
