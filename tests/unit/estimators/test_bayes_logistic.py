"""The Bayesian logistic estimator, against numerical posteriors, scikit-learn and river."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from avsim.errors import InputError
from avsim.estimators import Arrays, BayesLogistic
from avsim.testing import Stream, drive, make_stream
from avsim.types import BoolArray, F32Array, F64Array, Observations

STATIC = {"half_life": np.inf, "level_half_life": np.inf}


def learn(
    estimator: BayesLogistic, params: Arrays, f: F32Array, accepted: BoolArray, observed: BoolArray | None = None
) -> Arrays:
    """Predict some slots `[K, n]`, then refit on them; all are observed unless said otherwise."""
    num_slots, rows = f.shape
    features = {estimator.feature: f}
    p = estimator.predict(params, features, f.shape)
    seen = np.ones(f.shape, dtype=bool) if observed is None else observed
    whole = np.full(rows, num_slots)
    observations = Observations(features, p, seen, accepted, np.array([0, rows]), whole)
    return estimator.refit(params, estimator.accumulate(estimator.zero_stats(num_slots), observations))[0]


def logit_of(params: Arrays) -> F64Array:
    """Return (slope, intercept of each slot) of the posterior mean."""
    mean = params["mean"]
    return np.concatenate([mean[:1], mean[1] + mean[2:]])


def data(num_slots: int, rows: int, seed: int = 0) -> tuple[F32Array, BoolArray]:
    """Draw features and labels of p = σ(0.8 f + 0.4 − 0.3 k)."""
    rng = np.random.default_rng(seed)
    f = rng.normal(1.0, 2.0, (num_slots, rows)).astype(np.float32)
    law = expit(0.8 * f + 0.4 - 0.3 * np.arange(num_slots)[:, None])
    return f, rng.random(f.shape) < law


def grid_posterior(
    f: F64Array, y: F64Array, means: tuple[float, float], sds: tuple[float, float]
) -> tuple[F64Array, F64Array, F64Array]:
    """Integrate the posterior of (w, b) on a fine grid; returns mean `[2]`, covariance `[2, 2]`, and E σ(2w + b)."""
    w, b = (np.linspace(m - 3.5 * s, m + 3.5 * s, 281) for m, s in zip(means, sds, strict=True))
    w, b = (axis.ravel() for axis in np.meshgrid(w, b, indexing="ij"))
    log = -(((w - means[0]) / sds[0]) ** 2 + ((b - means[1]) / sds[1]) ** 2) / 2
    for x, label in zip(f, y, strict=True):
        eta = w * x + b
        log += label * eta - np.logaddexp(0, eta)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    mean = np.array([w @ weight, b @ weight])
    centred = np.stack([w, b]) - mean[:, None]
    return mean, (centred * weight) @ centred.T, expit(2 * w + b) @ weight


@pytest.mark.parametrize(("rows", "off_sds", "off_variance"), [(50, 0.4, 0.3), (400, 0.25, 0.12)])
def test_the_posterior_of_a_level_is_the_numerical_one(rows: int, off_sds: float, off_variance: float) -> None:
    """One dimension: f = 0, so the logit is the intercept alone, N(−0.2, level_sd² + slot_sd²) before any data."""
    estimator = BayesLogistic(level_sd=0.8, slot_sd=0.6, **STATIC)
    labels = np.random.default_rng(3).random((1, rows)) < 0.8
    params = estimator.init(1)
    for part in np.split(labels, rows // 10, axis=1):
        params = learn(estimator, params, np.zeros(part.shape, dtype=np.float32), part)
    mean, covariance, _ = grid_posterior(np.zeros(rows), labels[0].astype(float), (0.5, -0.2), (0.01, 1.0))
    sd = np.sqrt(covariance[1, 1])
    at_zero = {"log_odds": np.zeros((1, 1), dtype=np.float32)}
    assert logit_of(params)[1] == pytest.approx(mean[1], abs=off_sds * sd)
    assert estimator.variance(params, at_zero, (1, 1))[0, 0] == pytest.approx(covariance[1, 1], rel=off_variance)


@pytest.mark.parametrize(("rows", "off_variance"), [(100, 0.35), (1000, 0.2)])
def test_the_posterior_of_slope_and_level_is_the_numerical_one(rows: int, off_variance: float) -> None:
    f, accepted = data(1, rows)
    estimator = BayesLogistic(slope_sd=0.5, level_sd=0.8, slot_sd=0.6, predictive="posterior", **STATIC)
    params = estimator.init(1)
    for start in range(0, rows, 10):
        params = learn(estimator, params, f[:, start : start + 10], accepted[:, start : start + 10])
    labels = accepted[0].astype(float)
    mean, covariance, predictive = grid_posterior(f[0].astype(float), labels, (0.5, -0.2), (0.5, 1.0))
    assert (np.abs(logit_of(params) - mean) < 0.35 * np.sqrt(covariance.diagonal())).all()
    at_two = {"log_odds": np.full((1, 1), 2, dtype=np.float32)}
    expected = covariance[1, 1] + 4 * covariance[0, 1] + 4 * covariance[0, 0]
    assert estimator.variance(params, at_two, (1, 1))[0, 0] == pytest.approx(expected, rel=off_variance)
    assert estimator.predict(params, at_two, (1, 1))[0, 0] == pytest.approx(predictive, abs=0.012)


def one_hot_design(f: F32Array, level: bool) -> F64Array:
    """Return rows (f, [1,] one-hot slot) of `[K, n]` features, slot after slot."""
    num_slots, rows = f.shape
    slots = np.repeat(np.eye(num_slots), rows, axis=0)
    ones = [np.ones((f.size, 1))] if level else []
    return np.hstack([f.reshape(-1, 1), *ones, slots])


def test_passes_over_the_same_data_approach_the_unpenalised_fit() -> None:
    f, accepted = data(3, 500)
    estimator = BayesLogistic(**STATIC)
    params = estimator.init(3)
    for _ in range(300):
        params = learn(estimator, params, f, accepted)
    fit = LogisticRegression(C=1e10, fit_intercept=False, tol=1e-10, max_iter=1000)
    fit.fit(one_hot_design(f, level=False), accepted.ravel())
    assert logit_of(params) == pytest.approx(fit.coef_[0], abs=0.01)


def test_newton_steps_from_the_prior_end_at_the_ridge_fit() -> None:
    """C = sd² matches the prior; sums taken away from the prior's mean are brought back to it."""
    f, accepted = data(3, 200)
    estimator = BayesLogistic(slope=0.0, level=0.0, slope_sd=0.6, level_sd=0.6, slot_sd=0.6, **STATIC)
    prior = estimator.init(3)
    coefficients = prior["mean"]
    for _ in range(10):
        coefficients = learn(estimator, {**prior, "coefficients": coefficients}, f, accepted)["mean"]
    fit = LogisticRegression(C=0.36, fit_intercept=False, tol=1e-10, max_iter=1000)
    fit.fit(one_hot_design(f, level=True), accepted.ravel())
    assert coefficients == pytest.approx(fit.coef_[0], abs=1e-4)


def test_rivers_online_logistic_learns_the_same_law() -> None:
    linear_model = pytest.importorskip("river.linear_model", reason="river is a development tool, a cross-check only")
    optim = pytest.importorskip("river.optim", reason="river is a development tool, a cross-check only")
    f, accepted = data(3, 3000)
    model = linear_model.LogisticRegression(optimizer=optim.SGD(optim.schedulers.InverseScaling(0.3, 0.4)))
    estimator = BayesLogistic(**STATIC)
    params = estimator.init(3)
    losses = np.zeros(2)
    for start in range(0, 3000, 50):
        part = slice(start, start + 50)
        p = estimator.predict(params, {"log_odds": f[:, part]}, (3, 50))
        losses[0] -= np.log(np.where(accepted[:, part], p, 1 - p)).sum()
        params = learn(estimator, params, f[:, part], accepted[:, part])
        for row in range(start, start + 50):
            for slot in range(3):
                x, label = {"f": float(f[slot, row]), f"slot{slot}": 1.0}, bool(accepted[slot, row])
                losses[1] -= np.log(model.predict_proba_one(x)[label])
                model.learn_one(x, label)
    ours = expit(logit_of(params)[0] + logit_of(params)[1:])
    theirs = [model.predict_proba_one({"f": 1.0, f"slot{slot}": 1.0})[True] for slot in range(3)]
    assert ours == pytest.approx(theirs, abs=0.05)
    assert ours == pytest.approx(expit(0.8 + 0.4 - 0.3 * np.arange(3)), abs=0.03)
    assert 0.97 < losses[0] / losses[1] < 1.0


def test_a_starved_slot_moves_with_the_level_and_a_thin_one_towards_it() -> None:
    estimator = BayesLogistic(**STATIC)
    f = np.zeros((3, 2000), dtype=np.float32)
    accepted = np.random.default_rng(5).random(f.shape) < np.array([[0.8], [0.0], [0.5]])
    observed = np.ones_like(accepted)
    observed[1, 10:] = observed[2] = False
    params = estimator.init(3)
    for start in range(0, 2000, 100):
        part = slice(start, start + 100)
        params = learn(estimator, params, f[:, part], accepted[:, part], observed[:, part])
    known, thin, starved = logit_of(params)[1:]
    assert known == pytest.approx(np.log(4), abs=0.15)
    assert starved == pytest.approx(params["mean"][1])
    assert starved > 0.5
    assert starved - 0.8 < thin < starved - 0.2  # ten rejections in ten
    wide = estimator.variance(params, {"log_odds": f[:, :1]}, (3, 1))[:, 0]
    assert wide[0] < 0.1 * wide[1] < 0.1 * wide[2]


def test_without_data_the_prior_comes_back() -> None:
    estimator = BayesLogistic(half_life=50.0, level_half_life=25.0)
    f, accepted = data(2, 500)
    params = learn(estimator, estimator.init(2), f, accepted)
    cold = estimator.init(2)
    wide = np.linalg.inv(cold["precision"]).diagonal()
    assert (np.linalg.inv(params["precision"]).diagonal() < 0.9 * wide).all()
    for _ in range(80):
        params, _ = estimator.refit(params, estimator.zero_stats(2))
        assert (np.linalg.inv(params["precision"]).diagonal() <= wide * (1 + 1e-9)).all()
    assert params["mean"] == pytest.approx(cold["mean"], abs=1e-3)
    assert params["precision"] == pytest.approx(cold["precision"], abs=1e-3)


def test_the_level_goes_half_way_back_in_its_half_life() -> None:
    estimator = BayesLogistic(refit_interval=10, half_life=np.inf, level_half_life=10.0)
    params = estimator.init(2) | {"mean": np.array([0.9, 1.0, 0.3, -0.1])}
    params["coefficients"] = params["mean"]
    after, _ = estimator.refit(params, estimator.zero_stats(2))
    assert after["mean"] == pytest.approx([0.9, 0.4, 0.3, -0.1])


def test_the_variance_is_that_of_the_full_covariance() -> None:
    f, accepted = data(2, 60)
    estimator = BayesLogistic()
    params = learn(estimator, estimator.init(2), f, accepted)
    covariance = np.linalg.inv(params["precision"])
    assert abs(covariance[0, 1]) > 0.1 * np.sqrt(covariance[0, 0] * covariance[1, 1])
    rows = np.stack([f, np.ones_like(f), *np.broadcast_to(np.eye(2)[:, :, None], (2, 2, 60))])
    expected = np.einsum("ikn,ij,jkn->kn", rows, covariance, rows)
    assert estimator.variance(params, {"log_odds": f}, f.shape) == pytest.approx(expected, rel=1e-4)


def shifted(first: Stream, second: Stream) -> Stream:
    """Return one stream after another."""
    return Stream(
        {name: np.concatenate([column, second.features[name]], axis=1) for name, column in first.features.items()},
        np.concatenate([first.probability, second.probability], axis=1),
        *(
            np.concatenate([getattr(first, name), getattr(second, name)])
            for name in ("num_drafted", "num_admitted", "num_accepted")
        ),
    )


def test_a_drifting_level_follows_a_jump() -> None:
    before = make_stream(num_steps=600, num_reqs=16, intercepts=[1.0] * 5, trimmed=False, seed=1)
    after = make_stream(num_steps=150, num_reqs=16, intercepts=[-1.0] * 5, trimmed=False, seed=2)
    stream = shifted(before, after)
    errors = [
        np.abs(drive(BayesLogistic(half_life=np.inf, level_half_life=t), stream).confidence - stream.probability)[
            :, 675:
        ].mean()
        for t in (1000.0, np.inf)
    ]
    assert errors[0] < 0.5 * errors[1]


def test_the_posterior_predictive_is_the_average_over_the_posterior() -> None:
    f = np.array([[-3.0, 0.0, 4.0]] * 2, dtype=np.float32)
    options = {"slope_sd": 0.4, "level_sd": 0.9, "slot_sd": 0.5}
    plain, averaged = BayesLogistic(**options), BayesLogistic(**options, predictive="posterior")
    params, features = plain.init(2), {"log_odds": f}
    draws = np.random.default_rng(0).multivariate_normal(
        params["mean"], np.linalg.inv(params["precision"]), size=200_000
    )
    logit = draws[:, :1] * f[0] + draws[:, 1:2] + draws[:, 2:3]
    predicted = averaged.predict(params, features, f.shape)
    assert predicted[0] == pytest.approx(expit(logit).mean(axis=0), abs=0.01)
    assert plain.variance(params, features, f.shape)[0] == pytest.approx(logit.var(axis=0), rel=0.02)
    assert (np.abs(predicted - 0.5) < np.abs(plain.predict(params, features, f.shape) - 0.5)).all()


def test_exploration_draws_from_the_posterior() -> None:
    f, accepted = data(2, 100)
    runs = [
        learn(estimator, estimator.init(2), f, accepted)
        for estimator in (BayesLogistic(explore=True, seed=seed) for seed in range(2000))
    ]
    posterior = learn(BayesLogistic(), BayesLogistic().init(2), f, accepted)
    drawn = np.stack([params["coefficients"] for params in runs])
    covariance = np.linalg.inv(posterior["precision"])
    sds = np.sqrt(covariance.diagonal())
    assert (np.abs(drawn.mean(axis=0) - posterior["mean"]) < 4 * sds / np.sqrt(len(runs))).all()
    assert np.cov(drawn.T) / np.outer(sds, sds) == pytest.approx(covariance / np.outer(sds, sds), abs=0.1)


def test_exploration_is_keyed_by_the_refit_and_learns_the_same_posterior() -> None:
    stream = make_stream(num_steps=500, trimmed=False)
    plain, explorer = BayesLogistic(), BayesLogistic(explore=True, seed=7)
    known, first, again = (drive(e, stream).state.params for e in (plain, explorer, explorer))
    assert first["coefficients"].tolist() == again["coefficients"].tolist()
    assert first["coefficients"].tolist() != drive(replace(explorer, seed=8), stream).state.params["mean"].tolist()
    later, _ = explorer.refit(first, explorer.zero_stats(5))
    step, next_step = first["coefficients"] - first["mean"], later["coefficients"] - later["mean"]
    assert np.abs(step - next_step).max() > 0.01
    sds = np.sqrt(np.linalg.inv(known["precision"]).diagonal())
    assert (np.abs(first["mean"] - known["mean"]) < 0.5 * sds).all()


@pytest.mark.parametrize(
    "options",
    [
        {"slope": float("nan")},
        {"level": float("inf")},
        {"slope_sd": 0.0},
        {"level_sd": 1e3},
        {"slot_sd": float("nan")},
        {"half_life": 0.0},
        {"level_half_life": -1.0},
        {"explore": True, "predictive": "posterior"},
        {"seed": -1},
        {"refit_interval": 0},
    ],
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="bayes-logistic"):
        BayesLogistic(**options)  # type: ignore[arg-type]
