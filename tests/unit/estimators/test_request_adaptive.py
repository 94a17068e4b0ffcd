"""The random intercept of a request, against a numerical posterior, and on requests that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from avsim.errors import InputError
from avsim.estimators import BayesLogistic, RequestAdaptive
from avsim.estimators.base import MEMORY
from avsim.estimators.request_adaptive import track_request
from avsim.testing import Stream, drive, make_stream
from avsim.testing.stream import log_loss
from avsim.types import F32Array, F64Array, IntArray, Observations


def block(p: F64Array, num_admitted: IntArray, num_accepted: IntArray) -> Observations:
    """Grade one step of blocks with confidences `[K, rows]`."""
    starts = np.array([0, p.shape[1]])
    return Observations.grade({}, p.astype(np.float32), num_admitted, num_accepted, starts)


def unequal_requests(request_sd: float, seed: int = 0) -> Stream:
    """Return a stream whose requests, one per column, each have a level of their own."""
    base = make_stream(num_steps=300, num_reqs=40, trimmed=False, seed=seed)
    rng = np.random.default_rng([seed, 1])
    logit = np.log(base.probability / (1 - base.probability)) + rng.normal(0, request_sd, 40)
    probability = expit(logit)
    accepted = np.cumprod(rng.random(probability.shape) < probability, axis=0).sum(axis=0)
    return Stream(base.features, probability, base.num_drafted, base.num_admitted, accepted)


@pytest.mark.parametrize("u", [-1.0, 0.0, 0.7])
def test_the_intercept_is_that_of_a_numerical_posterior(u: float) -> None:
    """60 blocks of a request with intercept u; the rest of its logits is known."""
    rng = np.random.default_rng(4)
    grid = np.linspace(-3, 3, 2001)
    log = -((grid / 0.5) ** 2) / 2
    memory = np.zeros((2, 1), dtype=np.float32)
    for _ in range(60):
        rest = rng.normal(0.5, 1.0, (4, 1))
        accepted = np.cumprod(rng.random((4, 1)) < expit(rest + u), axis=0).sum(axis=0)
        observed = block(expit(rest + memory[0]), np.array([4]), accepted)
        memory = track_request(observed, memory, 0.5, np.inf)
        for slot in range(min(int(accepted[0]) + 1, 4)):
            eta = rest[slot, 0] + grid
            log += (slot < accepted[0]) * eta - np.logaddexp(0, eta)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    mean = grid @ weight
    sd = np.sqrt((grid - mean) ** 2 @ weight)
    assert memory[0, 0] == pytest.approx(mean, abs=0.35 * sd)
    assert 1 / np.sqrt(4 + memory[1, 0]) == pytest.approx(sd, rel=0.1)


def test_one_update_by_hand() -> None:
    """ρ = ½: precision 4 + 1 becomes 5 + ½, u moves by (1 − 1)/5.5, and then both go half-way back."""
    memory = np.array([[0.4, 0.0], [1.0, 0.0]], dtype=np.float32)
    p = np.full((3, 2), 0.5)
    after = track_request(block(p, np.array([2, 0]), np.array([1, 0])), memory, 0.5, 1.0)
    variance = 0.25 / 5.5 + 0.75 / 4
    assert after[:, 0] == pytest.approx([0.2, 1 / variance - 4])
    assert after[:, 1].tolist() == [0.0, 0.0]


def test_what_is_known_of_a_request_fades() -> None:
    memory = np.array([[1.5], [30.0]], dtype=np.float32)
    idle = block(np.full((3, 1), 0.5), np.array([0]), np.array([0]))
    for _ in range(8):
        memory = track_request(idle, memory, 0.5, 8.0)
    assert memory[0, 0] == pytest.approx(0.75)
    for _ in range(200):
        memory = track_request(idle, memory, 0.5, 8.0)
    assert memory[:, 0] == pytest.approx([0, 0], abs=1e-4)


@pytest.mark.parametrize("predictive", ["plug-in", "posterior"])
def test_memory_moves_the_logit_and_its_variance(predictive: Any) -> None:
    estimator, plain = RequestAdaptive(predictive=predictive), BayesLogistic(predictive="plug-in")
    f: F32Array = np.array([[-1.0, 0.0, 3.0]], dtype=np.float32)
    params, memory = plain.init(1), np.array([[0.0, 0.5, -0.5], [0.0, 2.0, 1e6]], dtype=np.float32)
    features = {"log_odds": f, MEMORY: memory}
    logit = 0.5 * f - 0.2 + memory[0]
    variance = plain.variance(params, features, f.shape) + 1 / (0.4**-2 + memory[1])
    assert estimator.variance(params, features, f.shape) == pytest.approx(variance)
    scale = np.sqrt(1 + np.pi / 8 * variance) if predictive == "posterior" else 1.0
    assert estimator.predict(params, features, f.shape) == pytest.approx(expit(logit / scale), abs=1e-6)


def test_it_wins_where_requests_differ_and_loses_little_where_they_do_not() -> None:
    for request_sd, low, high in ((0.8, 0.9, 0.985), (0.0, 0.99, 1.02)):
        stream = unequal_requests(request_sd)
        own, common = (log_loss(stream, drive(e, stream)) for e in (RequestAdaptive(), BayesLogistic()))
        assert low < own / common < high


def test_a_seat_that_changes_hands_starts_from_nothing() -> None:
    estimator = RequestAdaptive()
    stream = unequal_requests(1.0)
    first = drive(estimator, stream.steps(0, 100))
    assert np.abs(first.memory[0]).max() > 0.5
    fresh = drive(estimator, stream.steps(100, 101), state=first.state)
    common = drive(BayesLogistic(), stream.steps(100, 101), state=first.state)
    assert fresh.confidence.tolist() == common.confidence.tolist()


@pytest.mark.parametrize(
    "options",
    [{"request_sd": 0.0}, {"request_sd": float("nan")}, {"request_half_life": 0.0}, {"slope_sd": 0.0}],
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="request-adaptive"):
        RequestAdaptive(**options)  # type: ignore[arg-type]
