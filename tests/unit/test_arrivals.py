"""Arrival processes: rates, spreads, the same times for every arm, and what is said of bad ones."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.arrivals import make
from avsim.errors import InputError

SEEDS = [[7, run] for run in range(8)]
SPECS = ("poisson:4", "bursty:4,cv=3", "bursty:4,cv=0.5", "ramp:1,to=8")


@pytest.mark.parametrize("spec", SPECS)
def test_times_rise_and_depend_on_seed_and_turn_alone(spec: str) -> None:
    process = make(spec)
    times = process.times_ms(50, SEEDS)
    assert times.shape == (8, 50)
    assert (np.diff(times, axis=1) >= 0).all()
    assert (times >= 0).all()
    np.testing.assert_array_equal(process.times_ms(50, SEEDS[3:4]), times[3:4])
    assert len(np.unique(times[:, 0])) == 8
    if not spec.startswith("ramp"):
        np.testing.assert_array_equal(process.times_ms(20, SEEDS), times[:, :20])


@pytest.mark.parametrize(("spec", "cv"), [("poisson:4", 1.0), ("bursty:4,cv=3", 3.0), ("bursty:4,cv=0.5", 0.5)])
def test_gaps_have_the_mean_and_the_spread_asked_for(spec: str, cv: float) -> None:
    gaps = np.diff(make(spec).times_ms(40_000, [[1]])[0])
    error = cv / np.sqrt(len(gaps))
    assert gaps.mean() == pytest.approx(250.0, rel=5 * error)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.08)


def test_bursty_with_a_spread_of_one_is_poisson() -> None:
    np.testing.assert_allclose(
        make("bursty:4,cv=1").times_ms(30, SEEDS), make("poisson:4").times_ms(30, SEEDS), rtol=1e-9
    )


@pytest.mark.parametrize(("start", "end"), [(1, 9), (9, 1), (5, 5)])
def test_a_ramp_goes_from_one_rate_to_the_other(start: int, end: int) -> None:
    num = 60_000
    times = make(f"ramp:{start},to={end}").times_ms(num, [[3]])[0] / 1e3
    span = 2 * num / (start + end)
    assert times[-1] == pytest.approx(span, rel=0.02)
    for at in (0.1, 0.5, 0.9):
        inside = (times > (at - 0.05) * span) & (times <= (at + 0.05) * span)
        assert inside.sum() / (0.1 * span) == pytest.approx(start + (end - start) * at, rel=0.06)


def test_recorded_arrivals_are_kept_scaled_and_repeated() -> None:
    recorded = np.array([1000.0, 1500.0, 4000.0])
    once = make("recorded").times_ms(3, [[0], [1]], recorded)
    np.testing.assert_array_equal(once, [[0, 500, 3000]] * 2)
    np.testing.assert_array_equal(make("recorded:scale=2").times_ms(5, [[0]], recorded)[0], [0, 250, 1500, 2250, 2500])
    assert make("recorded").rate_req_s(recorded) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("poison:4", "did you mean 'poisson'"),
        ("poisson", "poisson needs rate"),
        ("poisson:0", "above 0"),
        ("poisson:inf", "finite"),
        ("bursty:4,cv=0", "between 0.05 and 20"),
        ("ramp:4", "ramp needs to"),
        ("ramp:4,to=-1", "to is in requests per second"),
        ("recorded:scale=0", "above 0"),
    ],
)
def test_bad_specs_say_what_is_allowed(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make(spec)


@pytest.mark.parametrize("recorded", [None, np.array([0.0]), np.array([0.0, np.nan]), np.zeros(4)])
def test_recorded_arrivals_need_a_trace_that_has_them(recorded: np.ndarray | None) -> None:
    with pytest.raises(InputError, match="poisson:4"):
        make("recorded").times_ms(3, [[0]], recorded)
