"""Fits to throughputs: priors, what a parameter vector says of a point, and a known law found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from avsim import policies
from avsim.errors import InputError
from avsim.planning.expected import expected_step
from avsim.planning.infer import Fit, Priors, fit_points
from avsim.planning.population import Latents, Population, spread_for_auc
from avsim.planning.throughput_table import Point

PRIORS = Priors.load()
DEPTH = 4


def table(loads: tuple[int, ...] = (2, 16), workloads: tuple[str, ...] = ("",)) -> list[Point]:
    """Return cells of some arms, with throughputs still to be filled in."""
    arms = [("none", 0), ("fixed", 2), ("fixed", DEPTH)]
    return [Point(w, policy, d, c, c, 1.0) for w in workloads for c in loads for policy, d in arms]


def filled(points: list[Point], theta: np.ndarray, limit: int | None = None) -> list[Point]:
    rate, length = np.exp(Fit(points, PRIORS, DEPTH, limit).predicted(theta[None]))[:, 0]
    return [
        replace(p, throughput_tok_s=r, acceptance_length=x if p.depth else None)
        for p, r, x in zip(points, rate.tolist(), length.tolist(), strict=True)
    ]


def test_every_prior_has_a_mean_and_a_width() -> None:
    for part in (PRIORS.cost, PRIORS.acceptance, PRIORS.confidence):
        assert all(np.isfinite(mean) and sd > 0 for mean, sd in part.values())
    assert all(value > 0 for value in PRIORS.noise.values())


def test_a_known_auc_replaces_the_prior_of_the_spread_alone() -> None:
    found = PRIORS.with_auc(0.85, 0.04)
    mean, sd = found.confidence["log_sd"]
    assert np.exp(mean) == pytest.approx(spread_for_auc(0.85, 0.7))
    assert np.exp(mean + sd) == pytest.approx(spread_for_auc(0.89, 0.7))
    assert found.confidence["offset"] == PRIORS.confidence["offset"]
    assert (found.cost, found.acceptance, found.noise) == (PRIORS.cost, PRIORS.acceptance, PRIORS.noise)


def test_a_parameter_vector_says_what_law_and_acceptance_say() -> None:
    fit = Fit(table(workloads=("chat", "code")), PRIORS, DEPTH, 32)
    rng = np.random.default_rng(1)
    theta = fit.mean + fit.sd * rng.standard_normal((3, len(fit.mean)))
    rate, length = np.exp(fit.predicted(theta))
    chat, code = fit.conditional(theta, "chat"), fit.conditional(theta, "code")
    assert not np.allclose(chat, code)
    for row in range(3):
        law = fit.law(theta[row : row + 1]).draw(0)
        for i, point in enumerate(fit.points):
            conditional = (chat if point.workload == "chat" else code)[row]
            al = 1 + np.cumprod(conditional)[: point.depth].sum()
            assert length[row, i] == pytest.approx(al)
            assert rate[row, i] == pytest.approx(float(law.throughput_tok_s(point.num_reqs, al, point.depth)))


def test_an_adaptive_cell_is_the_policy_on_drawn_blocks() -> None:
    fit = Fit(table(), PRIORS, DEPTH, None)
    theta = fit.mean.copy()
    law, point = fit.law(theta[None]).draw(0), Point("", "adaptive", DEPTH, 16, 15.5, 1.0)
    rate, length = fit.adaptive(theta, law, point)
    blocks = Population.make(fit.conditional(theta[None], "")[0], fit.spread(theta), Latents.draw(DEPTH, 64, 16, 0))
    step = expected_step(policies.make("adaptive"), blocks, law.tables(16, DEPTH))
    emitted = 16 + step.accepted
    ms = law.verify_ms(16, 16 + step.admitted) + law.draft_ms(16, DEPTH) + law.prompt_per_output * emitted
    assert 0 < step.admitted.mean() < 16 * DEPTH
    assert length == pytest.approx(emitted.sum() / (64 * 16))
    assert rate == pytest.approx(emitted.sum() / ms.sum() * 1e3 * 15.5 / 16)


def test_overhead_makes_every_step_longer() -> None:
    fit = Fit(table(), PRIORS, DEPTH, None)
    law, point = fit.law(fit.mean[None]).draw(0), Point("", "adaptive", DEPTH, 16, 16, 1.0)
    free, charged = (fit.adaptive(fit.mean, law, point, ms) for ms in (0.0, 2.0))
    assert charged[1] == free[1]
    emitted = free[1] * 16
    assert emitted / charged[0] * 1e3 - emitted / free[0] * 1e3 == pytest.approx(2.0)


def test_residuals_are_in_units_of_the_noise() -> None:
    points = filled(table(loads=(8,)), Fit(table(loads=(8,)), PRIORS, DEPTH, None).mean)
    off = [
        replace(points[0], throughput_tok_s=points[0].throughput_tok_s * np.exp(0.028)),
        replace(points[1], throughput_tok_s=points[1].throughput_tok_s * np.exp(-0.05), noise_pct=4.8),
        replace(points[2], acceptance_length=points[2].acceptance_length * np.exp(0.02)),
    ]
    fit = Fit(off, PRIORS, DEPTH, None)
    found = fit.residuals((fit.mean + fit.sd)[None] * 0 + fit.mean)[0]
    assert PRIORS.noise == {"throughput": 0.014, "acceptance_length": 0.01}, "the numbers below are made for these"
    assert found[:3] == pytest.approx([-2.0, 1.0, 0.0], abs=1e-6)
    assert found[3:-2] == pytest.approx(np.zeros(len(fit.mean)), abs=1e-6)
    assert found[-2:] == pytest.approx([0.0, -2.0], abs=1e-6)
    assert fit.log_density(fit.mean[None]) == pytest.approx(-0.5 * (4 + 1 + 4))


@pytest.mark.parametrize(
    "points", [[], [Point("", "fixed", 3, 4, 4, 100.0)], [Point("", "none", 0, c, c, 100.0) for c in (1, 2)]]
)
def test_a_fit_needs_two_cells_and_one_that_drafts(points: list[Point]) -> None:
    with pytest.raises(InputError, match="at least two cells, and one that drafts"):
        fit_points(points, PRIORS, limit=None, seed=0)


def test_a_known_law_is_found_again() -> None:
    """Noise-free cells of a law drawn from the priors: cells, acceptance and cells left out come out right."""
    points = table(loads=(1, 8, 32))
    left_out = [Point("", "fixed", 3, 8, 8, 1.0), Point("", "fixed", 3, 32, 32, 1.0)]
    fit = Fit(points, PRIORS, DEPTH, None)
    truth = fit.mean + 0.7 * fit.sd * np.random.default_rng(5).standard_normal(len(fit.mean))
    known = filled(points, truth)
    found = fit_points(known, PRIORS, limit=None, seed=0, sweeps=200)
    assert np.abs(found.errors_pct()).max() < 1.5
    length = 1 + fit.conditional(found.draws, "").cumprod(axis=1).sum(axis=1)
    assert np.median(length) == pytest.approx(1 + fit.conditional(truth[None], "")[0].cumprod().sum(), rel=0.015)
    other = replace(found.fit, points=left_out)
    rate, expected = other.predicted(found.draws)[0], other.predicted(truth[None])[0][0]
    low, high = np.percentile(rate, [1, 99], axis=0)
    assert ((low <= expected) & (expected <= high)).all()
    assert np.median(rate, axis=0) == pytest.approx(expected, abs=0.03)
    # What no cell shows keeps its prior: the spread of confidences.
    slot = list(fit.mean).index(PRIORS.confidence["log_sd"][0])
    assert found.draws[:, slot].std() == pytest.approx(PRIORS.confidence["log_sd"][1], rel=0.35)
