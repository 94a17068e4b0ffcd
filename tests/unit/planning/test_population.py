"""Drawn blocks: marginals exactly as given, the spread that an AUC asks for, and what the policy reads."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logit
from sklearn.metrics import roc_auc_score

from avsim.errors import InputError
from avsim.planning.population import Latents, Population, Spread, spread_for_auc

CONDITIONAL = np.array([0.75, 0.6, 0.85, 0.7])
LATENTS = Latents.draw(4, 40, 50, 3)


@pytest.mark.parametrize("sd", [0.0, 0.5, 1.5, 3.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.98])
def test_acceptance_given_those_before_is_exact(sd: float, share: float) -> None:
    found = Population.make(CONDITIONAL, Spread(sd, share), LATENTS)
    reach = np.concatenate([np.ones((1, 40, 50)), found.survival[:-1]])
    assert (reach * found.acceptance).sum(axis=(1, 2)) / reach.sum(axis=(1, 2)) == pytest.approx(CONDITIONAL, abs=1e-9)
    assert found.survival.mean(axis=(1, 2)) == pytest.approx(np.cumprod(CONDITIONAL), abs=1e-9)


def test_without_spread_all_slots_are_alike_and_independent() -> None:
    found = Population.make(CONDITIONAL, Spread(0.0), LATENTS)
    assert found.acceptance == pytest.approx(np.broadcast_to(CONDITIONAL[:, None, None], (4, 40, 50)), abs=1e-9)
    assert found.live == pytest.approx(found.acceptance, abs=1e-6)
    assert found.sizing == pytest.approx(found.acceptance, abs=1e-6)


def test_a_small_spread_tends_to_none() -> None:
    found = Population.make(CONDITIONAL, Spread(1e-4), LATENTS)
    assert np.abs(found.acceptance - CONDITIONAL[:, None, None]).max() < 1e-3
    assert found.auc() == pytest.approx(np.full(4, 0.5), abs=0.01)


@pytest.mark.parametrize("auc", [0.6, 0.8, 0.92])
@pytest.mark.parametrize("acceptance", [0.3, 0.7, 0.9])
def test_the_spread_for_an_auc_gives_it_at_slot_0(auc: float, acceptance: float) -> None:
    spread = Spread(spread_for_auc(auc, acceptance))
    found = Population.make(np.array([acceptance]), spread, Latents.draw(1, 200, 100, 1))
    assert found.auc()[0] == pytest.approx(auc, abs=0.006)


def test_the_auc_is_that_of_drawn_labels() -> None:
    found = Population.make(CONDITIONAL, Spread(1.2, 0.3, slope=0.8, offset=0.4), Latents.draw(4, 300, 100, 2))
    rng = np.random.default_rng(0)
    labels = rng.random(found.acceptance.shape) < found.acceptance
    reached = np.concatenate([np.ones_like(labels[:1]), np.logical_and.accumulate(labels, axis=0)[:-1]])
    for slot, auc in enumerate(found.auc()):
        drawn = roc_auc_score(labels[slot][reached[slot]], found.live[slot][reached[slot]])
        assert auc == pytest.approx(drawn, abs=0.012), slot


def test_slope_and_offset_bend_only_what_is_read() -> None:
    plain = Population.make(CONDITIONAL, Spread(1.0, 0.2), LATENTS)
    bent = Population.make(CONDITIONAL, Spread(1.0, 0.2, slope=0.5, offset=0.3), LATENTS)
    assert np.array_equal(plain.acceptance, bent.acceptance)
    assert plain.live == pytest.approx(plain.acceptance, abs=1e-6)
    assert logit(bent.live.astype(np.float64)) == pytest.approx(0.5 * logit(plain.acceptance) + 0.3, abs=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.4, 0.9])
def test_the_block_before_shares_as_much_as_the_request_does(share: float) -> None:
    found = Population.make(np.array([0.7, 0.7]), Spread(1.0, share, 0.05), Latents.draw(2, 200, 100, 4))
    live, before = (logit(x.astype(np.float64)).reshape(2, -1) for x in (found.live, found.sizing))
    assert np.corrcoef(live[0], before[0])[0, 1] == pytest.approx(share, abs=0.03)
    assert np.corrcoef(live[0], live[1])[0, 1] == pytest.approx(share + 0.05, abs=0.03)


def test_the_same_seed_draws_the_same_blocks() -> None:
    one, same, other = (Population.make(CONDITIONAL, Spread(1.0), Latents.draw(4, 5, 6, seed)) for seed in (7, 7, 8))
    assert np.array_equal(one.live, same.live)
    assert not np.array_equal(one.live, other.live)


@pytest.mark.parametrize(
    "options",
    [{"sd": -1.0}, {"sd": np.nan}, {"sd": 1.0, "request_share": 0.99}, {"sd": 1.0, "request_share": -0.1},
     {"sd": 1.0, "slope": 0.0}, {"sd": 1.0, "offset": np.inf}],
)  # fmt: skip
def test_impossible_spreads_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="spread: "):
        Spread(**options)


@pytest.mark.parametrize(("auc", "acceptance"), [(0.5, 0.7), (1.0, 0.7), (0.8, 0.0), (0.8, 1.0)])
def test_impossible_aucs_are_refused(auc: float, acceptance: float) -> None:
    with pytest.raises(InputError, match="between"):
        spread_for_auc(auc, acceptance)
