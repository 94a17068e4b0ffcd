"""Logistic regression on several features: its sums against the full design, scikit-learn, and bayes-logistic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from avsim.errors import InputError
from avsim.estimators import BayesLogistic, MultiLogistic
from avsim.estimators.base import MEMORY
from avsim.testing import Stream, drive, make_stream
from avsim.testing.stream import grade, log_loss
from avsim.types import F64Array, Features, Observations

NAMES = ("log_odds", "entropy", "margin")


def entropy_stream(num_steps: int = 300, seed: int = 0) -> Stream:
    """Return a stream whose logit falls with the drafter's entropy: σ(0.5 f + 0.5 − 1.5 (√entropy − 1) − 0.2 k)."""
    base = make_stream(NAMES, num_steps=num_steps, num_reqs=16, trimmed=False, seed=seed)
    slot = np.arange(base.num_slots)[:, None, None]
    root = np.sqrt(base.features["entropy"].astype(float)) - 1
    probability = expit(0.5 * base.features["log_odds"] + 0.5 - 1.5 * root - 0.2 * slot)
    drawn = np.random.default_rng([seed, 1]).random(probability.shape) < probability
    return Stream(
        base.features, probability, base.num_drafted, base.num_admitted, np.cumprod(drawn, axis=0).sum(axis=0)
    )


def design(features: Features, observed: np.ndarray, level: bool = True) -> F64Array:
    """Return (f, √entropy − 1, √margin / 2 − 1, [u, last,] [1,] one-hot slot) of the observed slots, one row each."""
    slot, row = np.nonzero(observed)
    f, entropy, margin = (features[name].astype(float)[slot, row] for name in NAMES)
    kept = [features[MEMORY][line][row] for line in (0, 2)] if MEMORY in features else []
    ones = [np.ones(len(f))] if level else []
    return np.stack(
        [f, np.sqrt(entropy) - 1, np.sqrt(margin) / 2 - 1, *kept, *ones, *np.eye(len(observed))[:, slot]], axis=1
    )


@pytest.mark.parametrize("history", [False, True])
def test_a_refit_is_the_newton_step_of_the_full_design(history: bool) -> None:
    estimator = MultiLogistic(history=history, half_life=np.inf)
    stream = make_stream(NAMES, num_steps=20)
    features = stream.rows(NAMES)
    if history:
        features[MEMORY] = np.random.default_rng(1).random((3, int(stream.active.sum())), dtype=np.float32)
    params = estimator.init(5)
    p = estimator.predict(params, features, (5, int(stream.active.sum())))
    seen = grade(stream, features, p)
    x = design(features, seen.observed)
    expected, label = p[seen.observed].astype(float), seen.accepted[seen.observed]
    assert expected == pytest.approx(expit(x @ params["mean"]), abs=1e-6)
    information = (x.T * (expected * (1 - expected))) @ x
    step = np.linalg.solve(params["precision"] + information, x.T @ (label - expected))
    new, cleared = estimator.refit(params, estimator.accumulate(estimator.zero_stats(5), seen))
    assert np.abs(step).max() < 1
    assert new["mean"] == pytest.approx(params["mean"] + step, abs=1e-6)
    assert new["precision"] == pytest.approx(params["precision"] + information, rel=1e-5, abs=1e-5)
    assert not any(value.any() for value in cleared.values())


def test_passes_over_the_same_data_approach_the_unpenalised_fit() -> None:
    estimator = MultiLogistic(history=False, half_life=np.inf)
    stream = entropy_stream()
    features = stream.rows(NAMES)
    params = estimator.init(5)
    for _ in range(200):
        p = estimator.predict(params, features, (5, int(stream.active.sum())))
        seen = grade(stream, features, p)
        params, _ = estimator.refit(params, estimator.accumulate(estimator.zero_stats(5), seen))
    fit = LogisticRegression(C=1e10, fit_intercept=False, tol=1e-10, max_iter=1000)
    fit.fit(design(features, seen.observed, level=False), seen.accepted[seen.observed])
    ours = np.concatenate([params["mean"][:3], params["mean"][3] + params["mean"][4:]])
    assert ours == pytest.approx(fit.coef_[0], abs=0.01)


def test_with_log_odds_alone_it_is_bayes_logistic_without_drift() -> None:
    stream = make_stream(num_steps=200)
    multi = drive(MultiLogistic(logits=False, history=False), stream)
    bayes = drive(BayesLogistic(level_half_life=np.inf), stream)
    assert multi.confidence == pytest.approx(bayes.confidence, abs=1e-5)
    assert multi.state.params["precision"] == pytest.approx(bayes.state.params["precision"], rel=1e-5, abs=1e-5)


def test_it_learns_what_entropy_says() -> None:
    stream = entropy_stream()
    estimator = MultiLogistic(history=False)
    driven = drive(estimator, stream)
    assert driven.state.params["mean"][:3] == pytest.approx([0.5, -1.5, 0], abs=0.25)  # the prior holds some of it back
    without = drive(replace(estimator, logits=False), stream)
    assert log_loss(stream, driven) < 0.99 * log_loss(stream, without)


def test_history_pays_where_requests_differ() -> None:
    base = make_stream(NAMES, num_steps=300, num_reqs=40, trimmed=False)
    rng = np.random.default_rng(1)
    probability = expit(np.log(base.probability / (1 - base.probability)) + rng.normal(0, 0.8, 40))
    accepted = np.cumprod(rng.random(probability.shape) < probability, axis=0).sum(axis=0)
    stream = Stream(base.features, probability, base.num_drafted, base.num_admitted, accepted)
    with_history, without = (log_loss(stream, drive(MultiLogistic(history=h), stream)) for h in (True, False))
    assert with_history < 0.985 * without


def test_the_options_choose_what_is_read_and_kept() -> None:
    assert MultiLogistic().features == MultiLogistic(history=False).features == NAMES
    assert MultiLogistic(logits=False).features == ("log_odds",)
    assert [MultiLogistic(history=h).memory_size for h in (True, False)] == [3, 0]
    sizes = [len(MultiLogistic(logits=a, history=b).init(4)["mean"]) for a in (True, False) for b in (True, False)]
    assert sizes == [10, 8, 8, 6]


def test_the_last_verified_block_is_remembered() -> None:
    """2A/M − 1: all, a third and none accepted of those verified; a block without verified slots leaves it alone."""
    estimator = MultiLogistic(logits=False)
    memory = np.zeros((3, 4), dtype=np.float32)
    memory[2, 3] = 0.5
    features = {"log_odds": np.zeros((4, 4), dtype=np.float32), MEMORY: memory}
    params = estimator.init(4)
    p = estimator.predict(params, features, (4, 4))
    admitted, accepted = np.array([4, 3, 1, 0]), np.array([4, 1, 0, 0])
    kept = estimator.remember(params, Observations.grade(features, p, admitted, accepted, np.array([0, 4])))
    assert kept[2] == pytest.approx([1, 2 / 3 - 1, -1, 0.5])
    assert kept[0, 0] > 0 > kept[0, 2]
    cold = estimator.predict(params, features | {MEMORY: kept}, (4, 4))
    assert cold == pytest.approx(np.broadcast_to(expit(kept[0] - 0.2), (4, 4)), abs=1e-6)
    params = params | {"mean": np.array([0.0, 2.0, 1.0, 0, 0, 0, 0, 0])}
    moved = estimator.predict(params, features | {MEMORY: kept}, (4, 4))
    assert moved == pytest.approx(np.broadcast_to(expit(2 * kept[0] + kept[2]), (4, 4)), abs=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"weight_sd": 0.0},
        {"level_sd": float("inf")},
        {"slot_sd": float("nan")},
        {"half_life": 0.0},
        {"request_sd": -1.0},
        {"request_half_life": 0.0},
        {"refit_interval": 0},
    ],
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="multi-logistic"):
        MultiLogistic(**options)  # type: ignore[arg-type]


def test_a_drafter_that_leaves_one_token_possible_is_no_trouble() -> None:
    """Its margin is infinite; the other rows of the step must still be learned from."""
    estimator = MultiLogistic(history=False)
    features = {name: np.zeros((1, 2), dtype=np.float32) for name in NAMES}
    features["log_odds"][:], features["margin"][:] = [[40.0, 1.0]], [[np.inf, 1.0]]
    p = estimator.predict(estimator.init(1), features, (1, 2))
    assert p == pytest.approx(expit([[19.8, 0.3]]), abs=1e-6)
    one, none = np.array([1, 1]), np.array([0, 0])
    seen = Observations.grade(features, p, one, none, np.array([0, 2]))
    params, _ = estimator.refit(estimator.init(1), estimator.accumulate(estimator.zero_stats(1), seen))
    assert np.isfinite(params["mean"]).all()
    assert (params["mean"] != estimator.init(1)["mean"]).any()
