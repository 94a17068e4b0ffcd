"""offline-gbdt: equal to scikit-learn's own prediction, and nothing of a slot's own token or of later slots in it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier

from avsim.errors import InputError
from avsim.estimators import OfflineGbdt, OnlineLogistic
from avsim.estimators.base import Arrays, EstimatorState
from avsim.testing.stream import drive, grade, log_loss, make_stream
from avsim.types import Observations

SLOTS = 5
SMALL = {"trees": 12, "learning_rate": 0.3}


def blocks(estimator: OfflineGbdt, seed: int = 0, **options: float) -> Observations:
    stream = make_stream(estimator.features, num_steps=80, num_reqs=16, seed=seed, **options)
    features = stream.inputs(estimator)
    rng = np.random.default_rng(seed)
    if "draft_logprob" in features:  # some drawn tokens are not the most likely ones
        shape = features["draft_logprob"].shape
        features["draft_logprob"] -= (rng.exponential(1, shape) * (rng.random(shape) < 0.5)).astype(np.float32)
    p = estimator.predict(estimator.init(SLOTS), features, (SLOTS, int(stream.active.sum())))
    return grade(stream, features, p)


def reference_inputs(features: dict[str, np.ndarray], row: int, k: int) -> list[float]:
    """Return x_k of one block, from the docstring, slot by slot."""
    f = features["log_odds"][:, row].astype(float)
    x = [f[k], features["entropy"][k, row], features["margin"][k, row], k]
    x += [f[:k].min(), f[:k].mean(), f[k - 1]] if k else [0, 0, 0]
    if "draft_logprob" in features:
        surprise = np.clip(features["draft_logprob"][:, row] + np.log1p(np.exp(-f)), -20, 0)
        x += [surprise[k - 1], surprise[:k].sum()] if k else [0, 0]
    return [float(value) for value in x]


@pytest.mark.parametrize("draw", [True, False])
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_predictions_are_scikit_learns(depth: int, draw: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    fit = GradientBoostingClassifier.fit

    def kept(self: GradientBoostingClassifier, x: np.ndarray, y: np.ndarray) -> GradientBoostingClassifier:
        models.append((fit(self, x, y), x, y))
        return self

    monkeypatch.setattr(GradientBoostingClassifier, "fit", kept)
    estimator = OfflineGbdt(depth=depth, draw=draw, **SMALL)
    seen = blocks(estimator)
    params = estimator.fit(SLOTS, seen)
    [(model, x, y)] = models
    slots, rows = np.nonzero(seen.observed)
    expected = np.array([reference_inputs(seen.features, row, k) for k, row in zip(slots, rows, strict=True)])
    np.testing.assert_allclose(x, expected, atol=2e-5)
    assert np.array_equal(y, seen.accepted[seen.observed])
    p = estimator.predict(params, seen.features, seen.observed.shape)
    np.testing.assert_allclose(p[seen.observed], model.predict_proba(x)[:, 1], rtol=0, atol=1e-6)
    assert p.std() > 0.05


def test_a_value_on_a_threshold_takes_the_same_way_as_in_scikit_learn() -> None:
    estimator = OfflineGbdt(draw=False, trees=5, depth=2, learning_rate=0.5)
    seen = blocks(estimator)
    # Fitted on halves, thresholds are quarters, which the probes below meet exactly.
    features = {name: np.round(column * 2) / 2 for name, column in seen.features.items()}
    seen = Observations(features, seen.confidence, seen.observed, seen.accepted, seen.step_starts, seen.num_admitted)
    params = estimator.fit(SLOTS, seen)
    model = GradientBoostingClassifier(
        n_estimators=5, max_depth=2, learning_rate=0.5, subsample=0.5, min_samples_leaf=20, random_state=0
    )
    x = np.array([reference_inputs(features, row, k) for k, row in np.argwhere(seen.observed)], dtype=np.float32)
    model.fit(x, seen.accepted[seen.observed])
    probes = {name: np.round(column * 4) / 4 for name, column in blocks(estimator, seed=1).features.items()}
    p = estimator.predict(params, probes, probes["log_odds"].shape)
    grid = np.array(
        [[reference_inputs(probes, row, k) for row in range(p.shape[1])] for k in range(SLOTS)], dtype=np.float32
    )
    np.testing.assert_allclose(p.ravel(), model.predict_proba(grid.reshape(p.size, -1))[:, 1], rtol=0, atol=1e-6)


def test_a_threshold_between_two_neighbouring_float32_values_splits_them() -> None:
    estimator = OfflineGbdt(draw=False, trees=1, depth=1, learning_rate=1.0)
    low, high = np.float32(2 + 2**-22), np.float32(2 + 2**-21)  # the threshold, half way, rounds to the upper one
    f = np.tile(np.array([low, high]), 200)[None]
    flat = np.zeros_like(f)
    features = {"log_odds": f, "entropy": flat, "margin": flat}
    rows = f.shape[1]
    accepted = (f[0] == high).astype(np.int64)
    seen = Observations.grade(features, flat, np.ones(rows, dtype=np.int64), accepted, np.array([0, rows]))
    p = estimator.predict(estimator.fit(1, seen), features, (1, rows))[0]
    assert p[f[0] == low].max() < 0.2 < 0.8 < p[f[0] == high].min()


def test_fitted_trees_go_through_json_and_keep_the_shapes_of_a_cold_start() -> None:
    estimator = OfflineGbdt(**SMALL)
    seen = blocks(estimator)
    params: Arrays = estimator.fit(SLOTS, seen)
    cold = estimator.init(SLOTS)
    shapes = {name: (value.dtype, value.shape) for name, value in cold.items()}
    assert {name: (value.dtype, value.shape) for name, value in params.items()} == shapes
    back = EstimatorState.from_json(json.loads(json.dumps(EstimatorState(params, {}).to_json()))).params
    shape = seen.observed.shape
    same = estimator.predict(back, seen.features, shape)
    assert np.array_equal(same, estimator.predict(params, seen.features, shape))
    assert not np.array_equal(same, estimator.predict(cold, seen.features, shape))


def test_a_cold_start_is_online_logistics() -> None:
    estimator = OfflineGbdt()
    seen = blocks(estimator)
    expected = OnlineLogistic().predict(OnlineLogistic().init(SLOTS), seen.features, seen.observed.shape)
    np.testing.assert_allclose(seen.confidence, expected, atol=1e-6)


def test_it_beats_its_cold_start_on_other_blocks() -> None:
    estimator = OfflineGbdt(trees=60)
    stream = make_stream(estimator.features, num_steps=100, num_reqs=16, seed=9)
    fitted = EstimatorState(estimator.fit(SLOTS, blocks(estimator)), {})
    warm, cold = drive(estimator, stream, state=fitted), drive(estimator, stream)
    assert log_loss(stream, warm) < 0.95 * log_loss(stream, cold)
    assert warm.state.params is fitted.params


def test_a_slots_own_token_and_later_slots_are_not_read() -> None:
    estimator = OfflineGbdt(**SMALL)
    seen, other = blocks(estimator), blocks(estimator, seed=1)
    rows = min(seen.observed.shape[1], other.observed.shape[1])
    params = estimator.fit(SLOTS, seen)
    features = {name: column[:, :rows] for name, column in seen.features.items()}
    before = estimator.predict(params, features, (SLOTS, rows))
    assert not estimator.uses_drawn_token
    for slot in range(SLOTS):
        drawn = features["draft_logprob"].copy()
        drawn[slot] -= 3
        after = estimator.predict(params, features | {"draft_logprob": drawn}, (SLOTS, rows))
        assert np.array_equal(after[: slot + 1], before[: slot + 1])
        mixed = {name: np.concatenate([features[name][:slot], other.features[name][slot:, :rows]]) for name in features}
        assert np.array_equal(estimator.predict(params, mixed, (SLOTS, rows))[:slot], before[:slot])


def test_one_kind_of_label_gives_a_constant() -> None:
    estimator = OfflineGbdt(**SMALL)
    seen = blocks(estimator)
    accepted = Observations(
        seen.features, seen.confidence, seen.observed, seen.observed, seen.step_starts, seen.num_admitted
    )
    p = estimator.predict(estimator.fit(SLOTS, accepted), seen.features, seen.observed.shape)
    assert p == pytest.approx(np.full(p.shape, 1 - 0.5 / (seen.observed.sum() + 1)), abs=1e-6)


def test_blocks_without_a_label_are_refused() -> None:
    estimator = OfflineGbdt(**SMALL)
    seen = blocks(estimator)
    none = Observations(
        seen.features, seen.confidence, 0 * seen.observed > 0, seen.accepted, seen.step_starts, seen.num_admitted
    )
    with pytest.raises(InputError, match="offline-gbdt: no slot"):
        estimator.fit(SLOTS, none)


def test_the_seed_decides_which_slots_a_tree_sees() -> None:
    first, again, other = (OfflineGbdt(seed=seed, **SMALL) for seen, seed in ((0, 0), (0, 0), (0, 1)))
    seen = blocks(first)
    leaves = [estimator.fit(SLOTS, seen)["leaf"] for estimator in (first, again, other)]
    assert np.array_equal(leaves[0], leaves[1])
    assert not np.array_equal(leaves[0], leaves[2])


@pytest.mark.parametrize(
    "options",
    [
        {"trees": 0},
        {"trees": 10_001},
        {"depth": 0},
        {"depth": 11},
        {"learning_rate": 0.0},
        {"learning_rate": 1.5},
        {"seed": -1},
        {"seed": 2**32},
    ],
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="offline-gbdt"):
        OfflineGbdt(**options)
