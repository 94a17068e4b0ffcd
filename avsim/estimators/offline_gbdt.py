"""Gradient-boosted trees fitted on blocks kept apart: what the recorded features could give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import Arrays, Estimator
from avsim.features import sigmoid
from avsim.types import BoolArray, F32Array, F64Array, Features, IntArray, Observations

__all__ = ["OfflineGbdt"]

_ROWS = 4096  # slots walked at a time, so that the trees' sums stay in cache
_LEAF_SLOTS = 20


@dataclass(frozen=True)
class OfflineGbdt(Estimator):
    """p_k = σ(s·f_k + c + Σ_t leaf_t(x_k)): regression trees boosted on the logistic loss, s = 0 once they are fitted.

    x_k holds the slot's own log-odds f_k, entropy and margin, k, and of the slots before it the minimum and mean of
    f and the last one's f; with `draw` also ln q(d) − ln max q of the tokens drawn before slot k, the last one's and
    the sum. Slot 0 has 0 there. The slot's own token is never read, so the scores stay lossless.

    `fit` runs scikit-learn's GradientBoostingClassifier (`trees` of depth `depth`, shrunk by `learning_rate`, each on
    a random half of the labelled slots drawn with `seed`, at least 20 of them in a leaf) and stores the trees as
    complete binary ones; a branch that ends early sends both ways to its value. Serving changes nothing. A cold start
    has no trees and is `online-logistic`'s: s = 0.5, c = −0.2.

    Source: Friedman, "Greedy function approximation: a gradient boosting machine", 2001; "Stochastic gradient
    boosting", 2002.

    >>> estimator = OfflineGbdt(draw=False)
    >>> features = {name: np.zeros((1, 1), dtype=np.float32) for name in estimator.features}
    >>> features["log_odds"] += 2
    >>> estimator.predict(estimator.init(1), features, (1, 1)).round(4)
    array([[0.69]], dtype=float32)
    """

    name: ClassVar[str] = "offline-gbdt"
    offline: ClassVar[bool] = True

    trees: int = 100
    depth: int = 3
    learning_rate: float = 0.05
    draw: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.trees <= 10_000 or not 1 <= self.depth <= 10 or not 0 < self.learning_rate <= 1:
            raise InputError(f"{self.name}: trees must be 1 to 10,000, depth 1 to 10, and learning_rate lie in (0, 1]")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"{self.name}: seed must be 0 to 2³² − 1, not {self.seed}")

    @property
    def features(self) -> tuple[str, ...]:
        return ("log_odds", "entropy", "margin", *(["draft_logprob"] if self.draw else []))

    def init(self, num_speculative_tokens: int) -> Arrays:
        inner = 2**self.depth - 1
        return {
            "line": np.array([0.5, -0.2]),
            "feature": np.zeros((self.trees, inner), dtype=np.int32),
            "threshold": np.zeros((self.trees, inner), dtype=np.float32),
            "leaf": np.zeros((self.trees, inner + 1)),
        }

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        inputs = self._inputs(features)
        x = inputs.reshape(len(inputs), shape[0] * shape[1])
        slope, level = params["line"]
        score = slope * x[0].astype(np.float64) + level
        if params["leaf"].any():
            for start in range(0, len(score), _ROWS):
                part = slice(start, start + _ROWS)
                score[part] += self._walk(params, x[:, part])
        return sigmoid(score).reshape(shape)

    def fit(self, num_speculative_tokens: int, observations: Observations) -> Arrays:
        from sklearn.ensemble import GradientBoostingClassifier

        observed = observations.observed
        label = observations.accepted[observed]
        if not len(label):
            raise InputError(f"{self.name}: no slot of the blocks to fit carries a label")
        new = dict(self.init(num_speculative_tokens))
        x = self._inputs(observations.features)[:, observed].T
        if label.all() or not label.any():
            new["line"] = np.array([0.0, np.log((label.sum() + 0.5) / ((~label).sum() + 0.5))])
            return new
        model = GradientBoostingClassifier(
            n_estimators=self.trees,
            max_depth=self.depth,
            learning_rate=self.learning_rate,
            subsample=0.5,
            min_samples_leaf=_LEAF_SLOTS,
            random_state=self.seed,
        ).fit(x, label)
        new["line"] = np.array([0.0, np.log(label.mean() / (1 - label.mean()))])
        for number, (stage,) in enumerate(model.estimators_):
            feature, threshold, leaf = _pack(stage.tree_, self.depth)
            new["feature"][number], new["threshold"][number] = feature, threshold
            new["leaf"][number] = self.learning_rate * leaf
        return new

    def _inputs(self, features: Features) -> F32Array:
        """Return x, float32 `[F, K, n]`."""
        f = features["log_odds"]
        before = np.arange(len(f), dtype=np.float32)[:, None]
        weakest, mean = _delayed(np.minimum.accumulate(f, axis=0)), _delayed(np.cumsum(f, axis=0))
        mean /= np.maximum(before, 1)
        slot = np.broadcast_to(before, f.shape)
        columns: list[F32Array] = [f, features["entropy"], features["margin"], slot, weakest, mean, _delayed(f)]
        if self.draw:
            surprise = np.clip(features["draft_logprob"] - np.log(sigmoid(f)), -20, 0)
            columns += [_delayed(surprise), _delayed(np.cumsum(surprise, axis=0))]
        return np.stack(columns)

    def _walk(self, params: Arrays, x: F32Array) -> F64Array:
        """Return the sum of the trees' leaves, float64 `[n]`, for inputs `[F, n]`."""
        count = x.shape[1]
        rows, flat = np.arange(count), x.ravel()
        total = np.zeros(count)
        for feature, threshold, leaf in zip(params["feature"], params["threshold"], params["leaf"], strict=True):
            first = feature.astype(np.int64) * count
            node = np.zeros(count, dtype=np.int64)
            for _ in range(self.depth):
                right = flat.take(first.take(node) + rows) > threshold.take(node)
                node = 2 * node + 1 + right
            total += leaf.take(node - len(feature))
        return total


def _delayed(column: F32Array) -> F32Array:
    """Return each slot's predecessor, 0 for slot 0."""
    return np.concatenate([np.zeros_like(column[:1]), column[:-1]])


def _pack(tree: Any, depth: int) -> tuple[IntArray, F32Array, F64Array]:
    """Return a scikit-learn tree as a complete one: feature and threshold of inner node i, whose children are 2i + 1
    (value ≤ threshold) and 2i + 2, and the values of the leaves in that order."""
    inner = 2**depth - 1
    node = np.zeros(2 * inner + 1, dtype=np.int64)
    for i in range(inner):
        left, right = tree.children_left[node[i]], tree.children_right[node[i]]
        node[2 * i + 1], node[2 * i + 2] = (node[i], node[i]) if left < 0 else (left, right)
    ends: BoolArray = tree.children_left[node[:inner]] < 0
    feature = np.where(ends, 0, tree.feature[node[:inner]])
    exact = np.where(ends, 0.0, tree.threshold[node[:inner]])
    # The greatest float32 that is not above the threshold: the same split for float32 inputs.
    threshold = exact.astype(np.float32)
    threshold = np.where(threshold > exact, np.nextafter(threshold, np.float32(-np.inf)), threshold)
    return feature, threshold, tree.value[node[inner:], 0, 0]
