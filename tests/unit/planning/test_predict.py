"""Predictions from a posterior: the word, the interval, the overhead, and what is compared with what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from avsim.errors import InputError
from avsim.planning.infer import Fit, Posterior, Priors
from avsim.planning.predict import Overhead, predict_adaptive, word_for
from avsim.planning.throughput_table import Point

DEPTH = 4
PRIORS = Priors.load()


def certain(loads: tuple[int, ...] = (4, 32), draws: int = 400) -> Posterior:
    """Return a posterior without doubt: every draw is the same, so intervals hold the cells' noise alone.

    It is the priors' mean, with tokens so dear that trimming pays.
    """
    arms = [("none", 0), ("fixed", 2), ("fixed", DEPTH)]
    points = [Point("", policy, d, c, c, 1.0) for c in loads for policy, d in arms]
    fit = Fit(points, PRIORS, DEPTH, None)
    theta = fit.mean.copy()
    theta[list(fit.mean).index(PRIORS.cost["log_per_token_ms"][0])] += 2.5
    return Posterior(fit, np.tile(theta, (draws, 1)), theta, 0.5)


def exact(posterior: Posterior, load: int, against: tuple[int, ...], overhead_ms: float = 0.0) -> float:
    """Return the ratio, worked out from single cells."""
    fit, theta = posterior.fit, posterior.best
    rivals = [point for point in fit.points if point.concurrency == load and point.depth in against]
    best = np.exp(replace(fit, points=rivals).predicted(theta[None])[0]).max()
    point = Point("", "adaptive", DEPTH, load, load, 1.0)
    return fit.adaptive(theta, fit.law(theta[None]).draw(0), point, overhead_ms)[0] / float(best)


def test_the_ratio_is_to_the_best_arm_of_the_load() -> None:
    posterior = certain(draws=8)
    for item in predict_adaptive(posterior, draws=8):
        assert item.ratio == pytest.approx(exact(posterior, item.concurrency, (0, 2, DEPTH)))
        assert item.against in ("none", "fixed:2", "fixed:4")
        assert item.workload == ""
        assert item.auc == pytest.approx(posterior.fit.auc(posterior.best, ""))
    assert [item.concurrency for item in predict_adaptive(posterior, draws=4)] == [4, 32]


def test_only_the_named_arms_are_compared_with() -> None:
    posterior = certain(draws=8)
    (low, high) = predict_adaptive(posterior, draws=8, against=["fixed:4"])
    assert (low.against, high.against) == ("fixed:4", "fixed:4")
    assert high.ratio == pytest.approx(exact(posterior, 32, (DEPTH,)))
    assert high.ratio >= predict_adaptive(posterior, draws=8)[1].ratio
    with pytest.raises(InputError, match=r"no cell to compare with at concurrency 4; named: fixed:9"):
        predict_adaptive(posterior, against=["fixed:9"])


def test_the_interval_is_that_of_a_measured_ratio() -> None:
    for item in predict_adaptive(certain(loads=(4,), draws=1500), overhead=Overhead(), draws=1500):
        noise = PRIORS.noise["throughput"] * np.sqrt(2)
        assert np.log(item.high / item.low) == pytest.approx(2 * 1.96 * noise, rel=0.09)
        assert np.log(item.high80 / item.low80) == pytest.approx(2 * 1.2816 * noise, rel=0.09)
        assert item.low < item.low80 < item.ratio < item.high80 < item.high


def test_overhead_is_charged_to_adaptive_alone() -> None:
    posterior = certain(draws=8)
    for item in predict_adaptive(posterior, overhead=Overhead(2.0), draws=8):
        assert item.ratio == pytest.approx(exact(posterior, item.concurrency, (0, 2, DEPTH), 2.0))
    for item in predict_adaptive(posterior, overhead=Overhead(1e4), draws=8):
        assert item.word == "loss"


def test_overheads_are_never_negative() -> None:
    drawn = Overhead(1.0, 1.0).draw(4000, 1)
    assert (drawn >= 0).all()
    assert (drawn == 0).mean() == pytest.approx(0.159, abs=0.03)
    assert np.median(drawn) == pytest.approx(1.0, abs=0.08)
    assert np.array_equal(Overhead(1.3).draw(5, 0), np.full(5, 1.3))


@pytest.mark.parametrize(
    ("centre", "charged", "word"),
    [
        (1.10, None, "gain"),
        (1.10, 1.05, "gain"),
        (1.10, 0.99, "gain withheld"),
        (1.01, 1.05, "not distinguishable"),
        (0.99, None, "not distinguishable"),
        (0.90, None, "loss"),
        (0.90, 0.80, "loss"),
    ],
)
def test_words(centre: float, charged: float | None, word: str) -> None:
    spread = np.linspace(-0.02, 0.02, 401)
    assert word_for(centre + spread, None if charged is None else charged + spread) == word


def test_unknown_overhead_withholds_a_gain_that_the_published_one_would_erase() -> None:
    words = {}
    for load in (16, 32):
        posterior = certain(loads=(load,), draws=100)
        assert exact(posterior, load, (DEPTH,)) > 1.05, "this test needs a gain to withhold"
        (unknown,) = predict_adaptive(posterior, against=["fixed:4"], draws=100)
        (free,) = predict_adaptive(posterior, against=["fixed:4"], draws=100, overhead=Overhead())
        assert free.word == "gain"
        assert unknown.ratio == free.ratio
        words[unknown.word] = exact(posterior, load, (DEPTH,), 1.3)
    assert words["gain withheld"] < 1.04 < words["gain"]


def test_the_same_seed_gives_the_same_prediction() -> None:
    posterior = certain(loads=(4,), draws=20)
    one, same, other = (predict_adaptive(posterior, draws=20, seed=seed)[0] for seed in (1, 1, 2))
    assert one == same
    assert one.to_json() != other.to_json()
