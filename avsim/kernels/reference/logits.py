"""Draft logits to features and confidences, in NumPy: what the kernels of `ops.reduce` and `ops.predict` compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from avsim.features import MAX_LOG_ODDS, log_odds, log_odds_f32, sigmoid
from avsim.kernels.laws import GridLaw, LinearLaw
from avsim.types import F32Array, F64Array, IntArray

__all__ = ["features", "predict"]


def features(
    logits: NDArray[np.floating], temperature: NDArray[np.floating] | float, names: Sequence[str]
) -> dict[str, F32Array]:
    """Return features of z = logits / T; with q = softmax(z) and the largest logits z₀ ≥ z₁ ≥ …

        log_odds = logit(q₀), log_odds_f32 (see `avsim.features`)      entropy = −Σ q ln q
        margin = z₀ − z₁, ∞ for a vocabulary of one token              logsumexp = ln Σ e^z
        draft_logprob = ln q₀                                          top_logit_r = z_r, −∞ where there are too few

    A row with a NaN, or without any finite logit, has NaN for all of them; a logit of +∞ means nothing.

    Args:
        logits: `[rows, vocab]`; a token at −∞ has no probability.
        temperature: one value or `[rows]`; 0 or less means 1.
        names: of the features wanted.

    Returns:
        float32 `[rows]` by name; all but `log_odds_f32` are summed in float64.

    >>> features(np.array([[3.0, 0.0]]), 0, ["margin", "entropy"])["entropy"].round(3)
    array([0.191], dtype=float32)
    """
    scale = np.broadcast_to(np.asarray(temperature, dtype=np.float32), len(logits))
    scale = np.where(scale > 0, scale, np.float32(1))[:, None]
    z = (np.asarray(logits, dtype=np.float32) / scale).astype(np.float64)
    rows = np.arange(len(z))
    at = z.argmax(axis=1)
    top = z[rows, at]
    with np.errstate(invalid="ignore"):
        shifted = z - top[:, None]
    weights = np.exp(shifted)
    weights[rows, at] = np.where(np.isfinite(top), 0, np.nan)
    others = weights.sum(axis=1)
    found: dict[str, F64Array | F32Array] = {}
    for name in names:
        if name in ("log_odds", "log_odds_f32"):
            found[name] = (log_odds if name == "log_odds" else log_odds_f32)(logits, temperature)
        elif name == "entropy":
            # e^x x is 0 in the limit, but 0 · −inf is NaN.
            moment = (weights * np.maximum(shifted, -1e4)).sum(axis=1)
            found[name] = np.log1p(others) - moment / (1 + others)
        elif name == "margin":
            found[name] = top - _ranked(z, others, 1)
        elif name == "logsumexp":
            found[name] = top + np.log1p(others)
        elif name == "draft_logprob":
            found[name] = -np.log1p(others)
        else:
            found[name] = _ranked(z, others, int(name.removeprefix("top_logit_")))
    return {name: value.astype(np.float32) for name, value in found.items()}


def predict(law: LinearLaw | GridLaw, values: Mapping[str, F32Array], slots: IntArray, steps: IntArray) -> F32Array:
    """Return p of each row under a law whose tensors are NumPy arrays, float32 `[rows]`.

    Args:
        values: the law's features, each `[rows]`.
        slots: persistent slot of each row, whose memory the law reads.
        steps: draft slot k of each row.
    """
    f = values[law.features[0]]
    if isinstance(law, GridLaw):
        last = law.table.shape[1] - 1
        lowest, per_unit = np.float32(law.lowest), np.float32(law.per_unit)
        place = (f - lowest) * per_unit if law.interpolate else np.floor(f * per_unit) - lowest * per_unit
        place = np.fmin(np.fmax(place, np.float32(0)), np.float32(last))
        below = np.minimum(np.floor(place), np.float32(last - law.interpolate))
        at = below.astype(np.intp)
        p: F32Array = law.table[steps, at]
        if law.interpolate:
            p = p + (place - below) * (law.table[steps, at + 1] - p)
        return p
    logit: F32Array = f * law.weights[0]
    for name, weight in zip(law.features[1:], law.weights[1:], strict=True):
        x = values[name]
        if name in ("entropy", "margin"):
            root = np.sqrt(np.clip(x, np.float32(0), np.float32(MAX_LOG_ODDS)))
            x = root * np.float32(0.5 if name == "margin" else 1) - np.float32(1)
        logit = logit + weight * x
    logit = logit + law.intercepts[steps]
    if law.memory is not None and law.memory_weights is not None:
        own = law.memory[slots] * law.memory_weights
        logit = logit + sum(own.T[1:], start=own.T[0])
    return sigmoid(logit)


def _ranked(z: F64Array, others: F64Array, rank: int) -> F64Array:
    """Return the logit of a rank, −∞ where the vocabulary is smaller, NaN where nothing is known of a row."""
    if rank >= z.shape[1]:
        return np.where(np.isnan(others), np.nan, -np.inf)
    return np.where(np.isnan(others), np.nan, -np.partition(-z, rank, axis=1)[:, rank])
