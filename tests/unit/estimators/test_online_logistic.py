"""The online logistic estimator: its refit against a dense solve, and its guards."""

from __future__ import annotations

import numpy as np
import pytest

from avsim.errors import InputError
from avsim.estimators import OnlineLogistic
from avsim.estimators.base import Arrays
from avsim.testing import drive, make_stream

NAMES = ("a", "b", "c", "g0", "g1", "n")


def stats_of(**columns: list[float]) -> Arrays:
    return {name: np.array(columns[name], dtype=np.float64) for name in NAMES}


def test_the_refit_solves_the_arrowhead_system() -> None:
    """One damped Newton step on (slope, b_0 … b_3), against a dense float64 solve of the same normal equations."""
    rng = np.random.default_rng(0)
    num_slots, rows, l2, damping = 4, 400, 1e-3, 50.0
    f = rng.normal(1, 2, (num_slots, rows))
    y = rng.random((num_slots, rows)) < 1 / (1 + np.exp(-0.8 * f))
    estimator = OnlineLogistic()
    params = estimator.init(num_slots)
    p = 1 / (1 + np.exp(-(0.5 * f - 0.2)))
    w, r = p * (1 - p), y - p
    stats = stats_of(
        a=(w * f * f).sum(1), b=(w * f).sum(1), c=w.sum(1), g0=(r * f).sum(1), g1=r.sum(1), n=[rows] * num_slots
    )
    matrix = np.zeros((5, 5))
    matrix[0, 0] = stats["a"].sum()
    matrix[0, 1:] = matrix[1:, 0] = stats["b"]
    matrix[1:, 1:] = np.diag(stats["c"])
    full = np.linalg.solve(matrix + l2 * np.eye(5), np.concatenate([[stats["g0"].sum()], stats["g1"]]))
    total = rows * num_slots
    step = full[0] * total / (total + damping)
    deltas = (stats["g1"] - stats["b"] * step) / (stats["c"] + l2) * rows / (rows + damping)
    new, cleared = estimator.refit(params, stats)
    assert new["slope"] == pytest.approx([0.5 + step], rel=1e-5)
    assert new["intercepts"] == pytest.approx(-0.2 + deltas, rel=1e-4, abs=1e-5)
    assert all(not value.any() for value in cleared.values())


def test_a_slope_that_would_turn_negative_is_kept() -> None:
    stats = stats_of(a=[10.0], b=[0.0], c=[10.0], g0=[-1000.0], g1=[5.0], n=[100.0])
    new, _ = OnlineLogistic().refit(OnlineLogistic().init(1), stats)
    assert new["slope"].tolist() == [0.5]
    assert new["intercepts"] == pytest.approx([-0.2 + 5 / 10.001 * 100 / 150], rel=1e-5)


def test_statistics_that_give_nan_change_nothing() -> None:
    stats = stats_of(a=[np.nan], b=[np.nan], c=[1.0], g0=[1.0], g1=[1.0], n=[1.0])
    params = OnlineLogistic().init(1)
    new, _ = OnlineLogistic().refit(params, stats)
    assert {name: value.tolist() for name, value in new.items()} == {
        name: value.tolist() for name, value in params.items()
    }


def test_a_refit_without_observations_changes_nothing() -> None:
    for estimator in (OnlineLogistic(), OnlineLogistic(damping=0.0)):
        params = estimator.init(3)
        new, _ = estimator.refit(params, estimator.zero_stats(3))
        assert new["slope"].tolist() == params["slope"].tolist()
        assert new["intercepts"].tolist() == params["intercepts"].tolist()


def test_it_recovers_slope_and_intercepts() -> None:
    intercepts = [0.4, -0.3, 0.1, -0.6]
    stream = make_stream(num_steps=1200, num_reqs=64, num_slots=4, slope=0.9, intercepts=intercepts, trimmed=False)
    params = drive(OnlineLogistic(refit_interval=300), stream).state.params
    assert params["slope"] == pytest.approx([0.9], abs=0.03)
    assert params["intercepts"] == pytest.approx(intercepts, abs=0.08)


def test_both_summations_learn_the_same() -> None:
    stream = make_stream(num_steps=500)
    wide, kernel = (drive(OnlineLogistic(sums=sums), stream).state.params for sums in ("float64", "float32"))
    for name, value in wide.items():
        assert kernel[name] == pytest.approx(value, abs=1e-5)


def test_kernel_sums_are_float32_and_step_by_step() -> None:
    stream = make_stream(num_steps=50)
    stats = drive(OnlineLogistic(sums="float32"), stream).state.stats
    assert {value.dtype for value in stats.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    "options",
    [
        {"l2": 0.0},
        {"l2": -1.0},
        {"l2": float("nan")},
        {"damping": -1.0},
        {"slope": -0.1},
        {"slope": float("inf")},
        {"intercept": float("nan")},
        {"refit_interval": 0},
    ],
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="online-logistic"):
        OnlineLogistic(**options)  # type: ignore[arg-type]
