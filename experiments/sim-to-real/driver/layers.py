"""Decoder layers over a ragged batch: each row is one token of one request, at its own position of its own cache slot.

All work goes by rows: no padding, neither in tokens nor in context, so a row that is left out costs nothing. Row i
reads the cached keys 0 … position of its slot, its own step's rows among them, since those are written first.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from .exponential import exp
from .tiles import linear

HEAD = 64


@njit(parallel=True, cache=True)
def _norm(x: np.ndarray, weight: np.ndarray, y: np.ndarray, rows: int, eps: float) -> None:
    width = x.shape[1]
    for i in prange(rows):
        total = np.float32(0)
        for n in range(width):
            total += x[i, n] * x[i, n]
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + np.float32(eps))
        for n in range(width):
            y[i, n] = weight[n] * (x[i, n] * scale)


@njit(cache=True)
def _rotate(line: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> None:
    for d in range(HEAD // 2):
        a, b = line[d], line[d + HEAD // 2]
        line[d] = a * cos[d] - b * sin[d]
        line[d + HEAD // 2] = b * cos[d] + a * sin[d]


@njit(parallel=True, cache=True)
def _store(qkv: np.ndarray, slot: np.ndarray, position: np.ndarray, keys: np.ndarray, values: np.ndarray,
           cos: np.ndarray, sin: np.ndarray, rows: int) -> None:  # fmt: skip
    """Rotate queries and keys in place, and put keys `[slot, head, 64, place]` and values `[…, place, 64]` away."""
    kv_heads = keys.shape[1]
    heads = qkv.shape[1] // HEAD - 2 * kv_heads
    for i in prange(rows):
        at = position[i]
        for h in range(heads + kv_heads):
            _rotate(qkv[i, h * HEAD : (h + 1) * HEAD], cos[at], sin[at])
        for g in range(kv_heads):
            for d in range(HEAD):
                keys[slot[i], g, d, at] = qkv[i, (heads + g) * HEAD + d]
                values[slot[i], g, at, d] = qkv[i, (heads + kv_heads + g) * HEAD + d]


@njit(fastmath=True, cache=True)
def _attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray, count: int, score: np.ndarray,
            out: np.ndarray) -> None:  # fmt: skip
    """One query over `count` keys `[64, …]` and values `[…, 64]`."""
    for t in range(count):
        score[t] = np.float32(0)
    for d in range(0, HEAD, 4):
        q0, q1, q2, q3 = query[d], query[d + 1], query[d + 2], query[d + 3]
        k0, k1, k2, k3 = keys[d], keys[d + 1], keys[d + 2], keys[d + 3]
        for t in range(count):
            score[t] += q0 * k0[t] + q1 * k1[t] + q2 * k2[t] + q3 * k3[t]
    top = np.float32(-np.inf)
    for t in range(count):
        top = max(top, score[t])
    total = np.float32(0)
    for t in range(count):
        score[t] = exp((score[t] - top) * np.float32(HEAD**-0.5))
        total += score[t]
    for d in range(HEAD):
        out[d] = np.float32(0)
    whole = count - count % 4
    for t in range(0, whole, 4):
        w0, w1, w2, w3 = score[t], score[t + 1], score[t + 2], score[t + 3]
        v0, v1, v2, v3 = values[t], values[t + 1], values[t + 2], values[t + 3]
        for d in range(HEAD):
            out[d] += w0 * v0[d] + w1 * v1[d] + w2 * v2[d] + w3 * v3[d]
    for t in range(whole, count):
        for d in range(HEAD):
            out[d] += score[t] * values[t, d]
    for d in range(HEAD):
        out[d] /= total


@njit(parallel=True, cache=True)
def _attention(qkv: np.ndarray, slot: np.ndarray, position: np.ndarray, keys: np.ndarray, values: np.ndarray,
               out: np.ndarray, rows: int) -> None:  # fmt: skip
    heads, kv_heads = out.shape[1] // HEAD, keys.shape[1]
    for job in prange(rows * kv_heads):
        i, g = job // kv_heads, job % kv_heads
        score = np.empty(position[i] + 1, dtype=np.float32)
        for h in range(g * heads // kv_heads, (g + 1) * heads // kv_heads):
            place = slice(h * HEAD, (h + 1) * HEAD)
            _attend(qkv[i, place], keys[slot[i], g], values[slot[i], g], position[i] + 1, score, out[i, place])


@njit(parallel=True, fastmath={"contract"}, error_model="numpy", cache=True)
def _gate(gate_up: np.ndarray, out: np.ndarray, rows: int) -> None:
    width = out.shape[1]
    for i in prange(rows):
        for n in range(width):
            gate = gate_up[i, n]
            out[i, n] = gate / (np.float32(1) + exp(-gate)) * gate_up[i, width + n]


@njit(parallel=True, cache=True)
def _add(x: np.ndarray, y: np.ndarray, rows: int) -> None:
    for i in prange(rows):
        for n in range(x.shape[1]):
            x[i, n] += y[i, n]


@njit(cache=True)
def run_layers(x: np.ndarray, slot: np.ndarray, position: np.ndarray, keys: np.ndarray, values: np.ndarray,
               cos: np.ndarray, sin: np.ndarray, norms: np.ndarray, qkv: np.ndarray, out: np.ndarray,
               gate_up: np.ndarray, down: np.ndarray, eps: float, input_norm: bool) -> None:  # fmt: skip
    """Take rows `[n, width]` through all layers, in place; see `model.Decoder` for the arrays."""
    rows, width = x.shape
    normed = np.empty((rows, width), dtype=np.float32)
    wide = np.empty((rows, qkv.shape[1] * qkv.shape[3]), dtype=np.float32)
    mixed = np.empty((rows, out.shape[2]), dtype=np.float32)
    both = np.empty((rows, gate_up.shape[1] * gate_up.shape[3]), dtype=np.float32)
    gated = np.empty((rows, both.shape[1] // 2), dtype=np.float32)
    for layer in range(len(qkv)):
        if input_norm:
            _norm(x, norms[layer, 0], normed, rows, eps)
            linear(normed, qkv[layer], wide, rows)
        else:
            linear(x, qkv[layer], wide, rows)
        _store(wide, slot, position, keys[layer], values[layer], cos, sin, rows)
        _attention(wide, slot, position, keys[layer], values[layer], mixed, rows)
        linear(mixed, out[layer], normed, rows)
        _add(x, normed, rows)
        _norm(x, norms[layer, 1], normed, rows, eps)
        linear(normed, gate_up[layer], both, rows)
        _gate(both, gated, rows)
        linear(gated, down[layer], normed, rows)
        _add(x, normed, rows)


def start_threads() -> None:
    """Start numba's threads.

    It does so itself where it loads a parallel function from its cache, but not for `run_layers`, which only calls such
    functions: that one crashes if it comes first.
    """
    norm(np.ones((1, HEAD), dtype=np.float32), np.ones(HEAD, dtype=np.float32), 1e-5)


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Return RMS-normed rows."""
    y = np.empty_like(x)
    _norm(x, weight, y, len(x), eps)
    return y


def project(x: np.ndarray, panels: np.ndarray) -> np.ndarray:
    """Return x · Wᵀ `[n, out]` for packed weights."""
    y = np.empty((len(x), panels.shape[0] * panels.shape[2]), dtype=np.float32)
    linear(np.ascontiguousarray(x), panels, y, len(x))
    return y
