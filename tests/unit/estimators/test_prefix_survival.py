"""prefix-survival: what it reads, the likelihood that it climbs, and what that buys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from avsim.errors import InputError
from avsim.estimators import PrefixSurvival
from avsim.estimators.base import Arrays
from avsim.testing.stream import drive, grade, make_stream
from avsim.types import Observations

SLOTS, ROWS = 4, 40


def blocks(seed: int = 0, rows: int = ROWS) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return features, M and A of random blocks whose drawn tokens are not always the most likely ones."""
    rng = np.random.default_rng(seed)
    f = rng.normal(1, 2, (SLOTS, rows))
    features = {
        "log_odds": f,
        "entropy": rng.uniform(0, 4, f.shape),
        "margin": rng.uniform(0, 25, f.shape),
        "draft_logprob": -np.log1p(np.exp(-f)) - rng.exponential(1, f.shape) * (rng.random(f.shape) < 0.5),
    }
    admitted = rng.integers(0, SLOTS + 1, rows)
    return (
        {name: column.astype(np.float32) for name, column in features.items()},
        admitted,
        rng.integers(0, admitted + 1),
    )


def reference_inputs(features: dict[str, np.ndarray], row: int, k: int) -> list[float]:
    """Return x_k of one block, from the docstring, slot by slot."""
    f = [float(value) for value in features["log_odds"][:, row]]
    drawn = 0.0
    if k:
        best = -np.log1p(np.exp(-f[k - 1]))
        drawn = min(0.0, max(-20.0, float(features["draft_logprob"][k - 1, row]) - best))
    entropy, margin = float(features["entropy"][k, row]), float(features["margin"][k, row])
    return [f[k], min(f[:k]) if k else 0.0, float(np.log(1 + 10 * entropy)), min(margin, 20.0), drawn]


def reference_p(theta: np.ndarray, features: dict[str, np.ndarray], row: int) -> list[float]:
    x = np.array([reference_inputs(features, row, k) for k in range(SLOTS)])
    return (1 / (1 + np.exp(-(x @ theta[:5] + theta[5:])))).tolist()


def reference_likelihood(
    theta: np.ndarray, features: dict[str, np.ndarray], admitted: np.ndarray, accepted: np.ndarray, share: float
) -> float:
    total = 0.0
    for row, (m, a) in enumerate(zip(admitted, accepted, strict=True)):
        p = reference_p(theta, features, row)
        for k in range(m):
            survival = float(np.prod(p[: k + 1]))
            total += (1 - share) * np.log(survival if k < a else 1 - survival)
            if k <= a:
                total += share * np.log(p[k] if k < a else 1 - p[k])
    return total


def some_params(estimator: PrefixSurvival, seed: int = 5) -> tuple[Arrays, np.ndarray]:
    theta = np.random.default_rng(seed).normal(0, 0.3, 5 + SLOTS)
    params = {**estimator.init(SLOTS), "weights": theta[:5], "intercepts": theta[5:]}
    return params, theta


def observed(
    estimator: PrefixSurvival, params: Arrays, features: Any, admitted: np.ndarray, accepted: np.ndarray
) -> Observations:
    rows = len(admitted)
    p = estimator.predict(params, features, (SLOTS, rows))
    return Observations.grade(features, p, admitted, accepted, np.array([0, rows]))


def gradient_of(sums: np.ndarray) -> np.ndarray:
    return np.concatenate([sums[:, -1, :-1].sum(axis=0), sums[:, -1, -1]])


def test_predictions_are_those_of_the_formula() -> None:
    features, _, _ = blocks()
    estimator = PrefixSurvival()
    params, theta = some_params(estimator)
    p = estimator.predict(params, features, (SLOTS, ROWS))
    expected = np.array([reference_p(theta, features, row) for row in range(ROWS)]).T
    np.testing.assert_allclose(p, expected, atol=2e-6)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_gradient_is_that_of_the_likelihood(share: float) -> None:
    features, admitted, accepted = blocks()
    estimator = PrefixSurvival(conditional_share=share)
    params, theta = some_params(estimator)
    seen = observed(estimator, params, features, admitted, accepted)
    found = gradient_of(estimator.accumulate(estimator.zero_stats(SLOTS), seen)["sums"])
    steps = 1e-5 * np.eye(len(theta))
    expected = [
        reference_likelihood(theta + step, features, admitted, accepted, share)
        - reference_likelihood(theta - step, features, admitted, accepted, share)
        for step in steps
    ]
    np.testing.assert_allclose(found, np.array(expected) / 2e-5, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_curvature_is_the_fisher_information_within_slots(share: float) -> None:
    features, admitted, accepted = blocks()
    estimator = PrefixSurvival(conditional_share=share)
    params, theta = some_params(estimator)
    seen = observed(estimator, params, features, admitted, accepted)
    found = estimator.accumulate(estimator.zero_stats(SLOTS), seen)["sums"][:, :-1]
    expected = np.zeros_like(found)
    for row, (m, a) in enumerate(zip(admitted, accepted, strict=True)):
        p = reference_p(theta, features, row)
        for j in range(m):
            x = np.array([*reference_inputs(features, row, j), 1.0])
            for k in range(j, m):
                survival = float(np.prod(p[: k + 1]))
                slope = (1 - p[j]) * x  # d ln S_k / d(w, b_j)
                expected[j] += (1 - share) * survival / (1 - survival) * np.outer(slope, slope)
            if j <= a:
                expected[j] += share * p[j] * (1 - p[j]) * np.outer(x, x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_with_conditional_terms_alone_it_ends_at_scikit_learns_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    features, _, _ = blocks(1, 3000)
    estimator = PrefixSurvival(conditional_share=1.0, half_life=np.inf, precision=0.01)
    _, theta = some_params(estimator)
    rng = np.random.default_rng(2)
    law = np.array([reference_p(theta, features, row) for row in range(3000)]).T
    accepted = np.cumprod(rng.random(law.shape) < law, axis=0).sum(axis=0)
    admitted = np.full(3000, SLOTS)
    params: Arrays = estimator.init(SLOTS)
    for _ in range(30):
        seen = observed(estimator, params, features, admitted, accepted)
        params, _ = estimator.refit(params, estimator.accumulate(estimator.zero_stats(SLOTS), seen))
        params = {**params, "precision": estimator.init(SLOTS)["precision"]}
    picked = np.argwhere(seen.observed)
    design = [[*reference_inputs(features, row, k), *(np.arange(SLOTS) == k)] for k, row in picked]
    model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=1000)
    model.fit(np.array(design), seen.accepted[seen.observed])
    np.testing.assert_allclose(np.concatenate([params["weights"], params["intercepts"]]), model.coef_[0], atol=1e-3)


def test_a_slots_own_token_and_later_ones_are_not_read() -> None:
    features, _, _ = blocks()
    estimator = PrefixSurvival()
    params, _ = some_params(estimator)
    assert not estimator.uses_drawn_token
    before = estimator.predict(params, features, (SLOTS, ROWS))
    for slot in range(SLOTS):
        drawn = features["draft_logprob"].copy()
        drawn[slot] -= 1.5
        after = estimator.predict(params, features | {"draft_logprob": drawn}, (SLOTS, ROWS))
        assert np.array_equal(after[: slot + 1], before[: slot + 1])
        assert slot == SLOTS - 1 or (after[slot + 1] != before[slot + 1]).any()


def test_later_slots_do_not_reach_back_through_any_feature() -> None:
    features, _, _ = blocks()
    other, _, _ = blocks(7)
    estimator = PrefixSurvival()
    params, _ = some_params(estimator)
    before = estimator.predict(params, features, (SLOTS, ROWS))
    for slot in range(1, SLOTS):
        mixed = {name: np.concatenate([features[name][:slot], other[name][slot:]]) for name in features}
        after = estimator.predict(params, mixed, (SLOTS, ROWS))
        assert np.array_equal(after[:slot], before[:slot])
        assert (after[slot] != before[slot]).any()


def test_with_greedy_drafts_the_drawn_tokens_say_nothing() -> None:
    stream = make_stream(PrefixSurvival().features)
    with_tokens, without = drive(PrefixSurvival(), stream), drive(PrefixSurvival(drawn=False), stream)
    np.testing.assert_allclose(with_tokens.confidence, without.confidence, atol=1e-5)


def cumulative_loss(estimator: PrefixSurvival, seed: int) -> float:
    """Return the late log-loss of survivals where a token's own q(d) decides about its acceptance."""
    rng = np.random.default_rng(seed)
    stream = make_stream(estimator.features, num_steps=600, num_reqs=32, num_slots=3, trimmed=False, seed=seed)
    shape = stream.probability.shape
    f = rng.normal(1, 1, shape)
    likely = rng.random(shape) < 0.6
    drawn = -np.log1p(np.exp(-f)) - np.where(likely, 0, 4.0)
    accepted = np.cumprod(rng.random(shape) < np.where(likely, 0.95, 0.2), axis=0)
    columns = {"log_odds": f.astype(np.float32), "draft_logprob": drawn.astype(np.float32)}
    stream.features.update({name: columns[name] for name in stream.features})
    stream.num_accepted[:] = accepted.sum(axis=0)
    survival = np.cumprod(drive(estimator, stream).confidence.astype(np.float64), axis=0)[:, 300:]
    return float(-np.log(np.where(accepted[:, 300:], survival, 1 - survival)).mean())


def test_drawn_tokens_of_earlier_slots_sharpen_survivals() -> None:
    only = {"entropy": False, "margin": False}
    blind = cumulative_loss(PrefixSurvival(drawn=False, **only), 0)
    survival = cumulative_loss(PrefixSurvival(conditional_share=0.0, **only), 0)
    conditional = cumulative_loss(PrefixSurvival(conditional_share=1.0, **only), 0)
    assert survival < 0.9 * blind
    # Given that slot k is reached, the tokens before it say nothing here: only cumulative labels teach their weight.
    assert conditional == pytest.approx(blind, rel=0.01)


def test_a_saturated_confidence_still_learns() -> None:
    estimator = PrefixSurvival()
    features = {name: np.full((2, 5), 40, dtype=np.float32) for name in estimator.features}
    features["draft_logprob"][:] = 0
    params = {**estimator.init(2), "intercepts": np.full(2, 30.0)}
    p = estimator.predict(params, features, (2, 5))
    assert (p == 1).all()
    rejected = Observations.grade(features, p, np.full(5, 2), np.zeros(5, dtype=np.int64), np.array([0, 5]))
    sums = estimator.accumulate(estimator.zero_stats(2), rejected)["sums"]
    assert np.isfinite(sums).all()
    assert sums[0, -1, -1] < -3


def test_sums_do_not_depend_on_rows_that_were_not_verified() -> None:
    stream = make_stream(PrefixSurvival().features, num_steps=1, num_reqs=30)
    estimator = PrefixSurvival()
    features = stream.inputs(estimator)
    p = estimator.predict(estimator.init(stream.num_slots), features, (stream.num_slots, int(stream.active.sum())))
    seen = grade(stream, features, p)
    none = Observations.grade(features, p, 0 * seen.num_admitted, 0 * seen.num_admitted, seen.step_starts)
    assert estimator.accumulate(estimator.zero_stats(stream.num_slots), seen)["sums"].any()
    assert not estimator.accumulate(estimator.zero_stats(stream.num_slots), none)["sums"].any()


@pytest.mark.parametrize("interval", [25, 100])
def test_what_is_forgotten_becomes_the_priors_again(interval: int) -> None:
    estimator = PrefixSurvival(half_life=100.0, refit_interval=interval)
    params: Arrays = {**estimator.init(2), "intercepts": np.array([1.8, -0.2])}
    params, _ = estimator.refit(params, estimator.zero_stats(2))
    # Prior and posterior are equally wide here, so the share that is forgotten is the share of the way back.
    assert params["intercepts"] == pytest.approx([1.8 - 2.0 * (1 - 0.5 ** (interval / 100)), -0.2])
    np.testing.assert_allclose(params["precision"], np.eye(len(params["precision"])), atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"slope": np.inf},
        {"intercept": np.nan},
        {"precision": 0.0},
        {"precision": np.inf},
        {"half_life": 0.0},
        {"half_life": np.nan},
        {"conditional_share": -0.1},
        {"conditional_share": 1.1},
        {"conditional_share": np.nan},
    ],
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="prefix-survival"):
        PrefixSurvival(**options)


def test_each_column_can_be_left_out() -> None:
    assert PrefixSurvival().features == ("log_odds", "entropy", "margin", "draft_logprob")
    assert PrefixSurvival(entropy=False, margin=False, drawn=False).features == ("log_odds",)
