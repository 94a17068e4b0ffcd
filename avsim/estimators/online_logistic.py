"""vLLM's estimator: one slope on the drafter's log-odds and one intercept per slot, refitted online."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from avsim.errors import InputError
from avsim.estimators.base import Arrays, Estimator
from avsim.features import sigmoid
from avsim.types import BoolArray, F32Array, F64Array, Features, IntArray, Observations, picked_slots, slot_sums

__all__ = ["OnlineLogistic", "logistic_sums"]

_SUMS = ("a", "b", "c", "g0", "g1", "n")
_KERNEL_ROWS = 256  # vLLM's kernel pads the batch to this many rows, which fixes its summation tree


@dataclass(frozen=True)
class OnlineLogistic(Estimator):
    """The online logistic estimator of vLLM 0.33: p_k = σ(w·f + b_k).

    Per step and observed slot, with p as predicted at draft time, W = p(1 − p) and r = y − p:

        a_k += W f²,  b_k += W f,  c_k += W,  g0_k += r f,  g1_k += r,  n_k += 1

    Every `refit_interval` steps it solves (XᵀWX + λI)Δ = Xᵀr, an arrowhead system, then damps the slope step by
    N/(N + `damping`) and each intercept step by n_k/(n_k + `damping`), drops steps that are NaN or that would
    make the slope negative, and clears the statistics. λ = `l2` damps the step; it is no ridge towards zero.

    The refit runs in float32, as the kernel does, because its denominator is a difference that can cancel.
    `sums="float64"` (the default) adds observations in float64; `sums="float32"` repeats the kernel's own float32
    summation order, bit for bit under Triton's interpreter, at a quarter of the speed.

    `feature="log_odds_f32"` reads the kernel-exact feature where the trace has it; `log_odds` is the stable one.

    Source: vLLM PR #52228, `acceptance_estimator.py`.

    >>> estimator = OnlineLogistic()
    >>> params = estimator.init(2)
    >>> features = {"log_odds": np.array([[2.0], [0.0]], dtype=np.float32)}
    >>> estimator.predict(params, features, (2, 1)).round(4)
    array([[0.69  ],
           [0.4502]], dtype=float32)
    """

    name: ClassVar[str] = "online-logistic"

    slope: float = 0.5
    intercept: float = -0.2
    l2: float = 1e-3
    damping: float = 50.0
    feature: Literal["log_odds", "log_odds_f32"] = "log_odds"
    sums: Literal["float64", "float32"] = "float64"

    def __post_init__(self) -> None:
        super().__post_init__()
        finite = np.isfinite([self.slope, self.intercept, self.l2, self.damping]).all()
        if not finite or self.l2 <= 0 or self.damping < 0 or self.slope < 0:
            raise InputError(f"{self.name}: l2 must be > 0, damping and slope ≥ 0, and all finite")

    @property
    def features(self) -> tuple[str, ...]:
        return (self.feature,)

    def init(self, num_speculative_tokens: int) -> Arrays:
        return {
            "slope": np.array([self.slope], dtype=np.float32),
            "intercepts": np.full(num_speculative_tokens, self.intercept, dtype=np.float32),
        }

    def predict(self, params: Arrays, features: Features, shape: tuple[int, int]) -> F32Array:
        return sigmoid(params["slope"] * features[self.feature] + params["intercepts"][:, None])

    def zero_stats(self, num_speculative_tokens: int) -> Arrays:
        dtype = np.float32 if self.sums == "float32" else np.float64
        return {name: np.zeros(num_speculative_tokens, dtype=dtype) for name in _SUMS}

    def accumulate(self, stats: Arrays, observations: Observations) -> Arrays:
        f, p, observed = observations.features[self.feature], observations.confidence, observations.observed
        if self.sums == "float32":
            return _kernel_sums(stats, observations.step_starts, f, p, observed, observations.accepted)
        sums, counts = logistic_sums(f, observations)
        added = [*sums, counts]
        return {name: stats[name] + sums for name, sums in zip(_SUMS, added, strict=True)}

    def refit(self, params: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
        one, l2, damping = np.float32(1), np.float32(self.l2), np.float32(self.damping)
        sums = {name: stats[name].astype(np.float32) for name in _SUMS}
        b, g1, n = sums["b"], sums["g1"], sums["n"]
        c = sums["c"] + l2
        a = _tree_sum(sums["a"]) + l2
        g0, total = _tree_sum(sums["g0"]), _tree_sum(n)
        slope = params["slope"][0]
        with np.errstate(all="ignore"):
            step = (g0 - _tree_sum(b * g1 / c)) / (a - _tree_sum(b * b / c))
            step = step * (total / (total + damping)) if total + damping > 0 else step * np.float32(0)
            step = step if step == step and slope + step >= 0 else np.float32(0)
            delta = (g1 - b * step) / c * (n / np.where(n + damping > 0, n + damping, one))
        delta = np.where(np.isnan(delta), np.float32(0), delta)
        new = {
            "slope": np.array([slope + step], dtype=np.float32),
            "intercepts": (params["intercepts"] + delta).astype(np.float32),
        }
        return new, self.zero_stats(len(n))


def logistic_sums(f: F32Array, observations: Observations) -> tuple[F64Array, IntArray]:
    """Return ΣWf², ΣWf, ΣW, Σrf, Σr of each slot over its labelled blocks, float64 `[5, K]`, and their number, `[K]`.

    W = p(1 − p), r = y − p, at the confidences p of draft time and the feature f, float32 `[K, n]`.
    """
    # Few slots carry a label, and one without may hold a NaN feature: only the labelled ones are touched.
    picked, counts = picked_slots(observations.observed)
    f, p = f.ravel().take(picked), observations.confidence.ravel().take(picked)
    terms = np.empty((5, len(picked)), dtype=np.float32)
    a, b, c, g0, g1 = terms
    np.multiply(p, 1 - p, out=c)
    np.multiply(c, f, out=b)
    np.multiply(b, f, out=a)
    np.subtract(observations.accepted.ravel().take(picked), p, out=g1)
    np.multiply(g1, f, out=g0)
    return slot_sums(terms, counts), counts


def _tree_sum(values: F32Array) -> np.float32:
    """Add float32 values in the order of the kernel, which pads them to a power of two."""
    padded = np.zeros(1 << max(len(values) - 1, 0).bit_length(), dtype=np.float32)
    padded[: len(values)] = values
    return np.float32(padded.sum())


def _kernel_sums(
    stats: Arrays, step_starts: IntArray, f: F32Array, p: F32Array, observed: BoolArray, accepted: BoolArray
) -> Arrays:
    """Add step by step in float32 over rows padded as the kernel pads them."""
    f = np.where(observed, f, np.float32(0))
    weight = np.where(observed, p * (1 - p), np.float32(0))
    residual = np.where(observed, accepted.astype(np.float32) - p, np.float32(0))
    sums = {name: stats[name] for name in _SUMS}
    columns = {
        "a": weight * f * f,
        "b": weight * f,
        "c": weight,
        "g0": residual * f,
        "g1": residual,
        "n": observed.astype(np.float32),
    }
    for start, stop in pairwise(step_starts.tolist()):
        rows = stop - start
        width = max(_KERNEL_ROWS, 1 << max(rows - 1, 0).bit_length())
        padded = np.zeros((len(f), width), dtype=np.float32)
        for name, column in columns.items():
            padded[:, :rows] = column[:, start:stop]
            sums[name] = sums[name] + padded.sum(axis=1)
    return sums
