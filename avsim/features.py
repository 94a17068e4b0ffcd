"""Drafter logits to features: the log-odds of the most likely token, stable and as vLLM's kernel computes it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from avsim.types import F32Array

__all__ = ["MAX_LOG_ODDS", "log_odds", "log_odds_f32", "log_odds_from_log_prob", "sigmoid"]

MAX_LOG_ODDS = 40.0
_VOCAB_BLOCK = 4096


def sigmoid(x: NDArray[np.floating]) -> F32Array:
    """Return 1 / (1 + e^−x) in float32, without overflow.

    >>> sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    out: F32Array = np.negative(x, dtype=np.float32)
    with np.errstate(over="ignore"):  # e^−x overflows to inf for very negative x, and 1 / inf is the right 0
        np.exp(out, out=out)
    out += np.float32(1)
    return np.reciprocal(out, out=out)


def _scaled(logits: NDArray[np.floating], temperature: NDArray[np.floating] | float) -> F32Array:
    scale = np.asarray(temperature, dtype=np.float32)
    scale = np.where(scale > 0, scale, np.float32(1))
    rows = np.asarray(logits, dtype=np.float32)
    if (scale == 1).all():
        return rows
    return rows / (scale[:, None] if scale.ndim else scale)


def log_odds_f32(logits: NDArray[np.floating], temperature: NDArray[np.floating] | float = 0.0) -> F32Array:
    """Return logit(max q) of each row exactly as vLLM's kernel does: f = −ln(max(Z − 1, 0)), Z = Σ e^(z − max z).

    Everything is float32, over 4096-wide vocabulary blocks rescaled to the global maximum, so f carries a
    relative error of 6e-8·e^f in e^−f and reads 40 wherever the true value is above 15.94.

    Args:
        logits: raw drafter logits `[rows, vocab]`; −inf entries are allowed, NaN gives NaN.
        temperature: one value or `[rows]`; 0 or less means 1, as a greedy request is not scaled.

    Returns:
        float32 `[rows]`, clamped to ±40.

    Source: vLLM 0.33 `_local_max_sumexp_kernel`, `_predict_kernel` (PR #52228).

    >>> log_odds_f32(np.array([[3.0, 0.0]])).round(4)
    array([3.], dtype=float32)
    """
    z = _scaled(logits, temperature)
    rows, vocab = z.shape
    blocks = -(-vocab // _VOCAB_BLOCK)
    padded = z
    if vocab < blocks * _VOCAB_BLOCK:
        padded = np.full((rows, blocks * _VOCAB_BLOCK), -np.inf, dtype=np.float32)
        padded[:, :vocab] = z
    padded = padded.reshape(rows, blocks, _VOCAB_BLOCK)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        maxima = padded.max(axis=2)
        weights = padded - maxima[:, :, None]
        sums = np.exp(weights, out=weights).sum(axis=2)
        sums = np.where(maxima > -np.inf, sums, np.where(np.isnan(maxima), maxima, np.float32(0)))
        top = maxima.max(axis=1)
        width = 1 << (blocks - 1).bit_length()
        partial = np.zeros((rows, width), dtype=np.float32)
        partial[:, :blocks] = sums * np.exp(maxima - top[:, None])
        complement = np.maximum(partial.sum(axis=1) - np.float32(1), np.float32(0))
        feature = -np.log(complement)
    return np.clip(feature, np.float32(-MAX_LOG_ODDS), np.float32(MAX_LOG_ODDS)).astype(np.float32)


def log_odds(logits: NDArray[np.floating], temperature: NDArray[np.floating] | float = 0.0) -> F32Array:
    """Return logit(max q) of each row, accurate over the whole range: −ln Σ_{v ≠ argmax} e^(z_v − max z).

    Args and clamp as `log_odds_f32`; summed in float64 over every token but the first maximum.

    >>> log_odds(np.array([[30.0, 0.0]])).tolist()
    [30.0]
    """
    z = _scaled(logits, temperature).astype(np.float64)  # a copy, changed below
    rows = np.arange(len(z))
    best = z.argmax(axis=1)
    top = z[rows, best]
    z[rows, best] = -np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        feature = -np.log(np.exp(z - top[:, None]).sum(axis=1))
    return np.clip(feature, -MAX_LOG_ODDS, MAX_LOG_ODDS).astype(np.float32)


def log_odds_from_log_prob(log_prob: NDArray[np.floating]) -> F32Array:
    """Return logit(q) from ln q, stably: ln q − ln(1 − e^(ln q)), clamped to ±40.

    >>> log_odds_from_log_prob(np.log(np.array([0.5, 0.9]))).round(4)
    array([0.    , 2.1972], dtype=float32)
    """
    value = np.minimum(np.asarray(log_prob, dtype=np.float64), 0.0)  # a float32 log-softmax may end just above 0
    with np.errstate(divide="ignore"):
        feature = value - np.log(-np.expm1(value))
    return np.clip(feature, -MAX_LOG_ODDS, MAX_LOG_ODDS).astype(np.float32)
