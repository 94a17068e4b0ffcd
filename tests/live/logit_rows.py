"""Rows of draft logits for the tests of the kernels that read them, and how far float32 may take their features."""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray

from avsim.features import MAX_LOG_ODDS

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
UNIT = 2.0**-24
EXACT = ("margin", "top_logit")  # differences and copies of float32 numbers, rounded once


def adversarial(vocab: int = 9000) -> F32:
    """Rows in which something is extreme, none with a NaN and each with a finite maximum."""
    rng = np.random.default_rng(vocab)
    rows = rng.normal(0, 3, (13, vocab)).astype(np.float32)
    last = vocab - 1
    rows[0, [7, 9]] = 20  # two maxima in a block
    rows[1, [5, vocab // 2, last]] = 20  # three, in two or three blocks
    rows[2] = -np.inf
    rows[2, last] = -3  # one token, in the last block
    rows[3, : vocab // 2] = -np.inf  # whole blocks of −∞
    rows[4, vocab // 2 :] = -np.inf
    rows[5] = 0.25  # nothing but maxima
    rows[6] = np.where(np.arange(vocab) % 2, np.float32(1), np.float32(-1))
    rows[7, 3] = 60  # beyond the clamp
    rows[8, 3], rows[8, last] = 30, 29.999
    rows[9] = rng.normal(0, 1e30, vocab).astype(np.float32)
    rows[10] = rng.normal(0, 1e-30, vocab).astype(np.float32)
    rows[11] = rng.normal(-5e4, 1, vocab).astype(np.float32)
    rows[12, [0, 1]] = [15, np.nextafter(np.float32(15), np.float32(0))]
    return rows


def bounds(name: str, logits: F32, temperature: F32, additions: int = 60) -> F64:
    """Return how far a float32 feature of rows may be from the exact one, `[rows]`.

    Let u = 2⁻²⁴, d_v = z_v − max z. A term e^d is made of the exponent (rounded once per level, and once when it is
    multiplied by log₂ e), an exponential good to 4u at each of the two levels, and their product; so it is off by
    (9 + 4 |d|)u relatively, and where a device divides by T with an error of 4u, by 4u (|z| + |max z|) more. A sum
    adds at most `additions` roundings: 24 in NumPy (16 in each of eight accumulators, 3 to combine them, 5 doublings),
    39 compiled (32 in a thread, 7 across threads), and up to 20 for the partial sums of blocks. All terms of a sum
    have one sign. With E = Σ e^d over all tokens but the maximum and M_j = Σ |d|^j e^d over them:

        |δE| ≤ u ((9 + additions) E + 4 M₁ + …),   |δM₁| ≤ u ((11 + additions) M₁ + 4 M₂ + …)
        log_odds       |δE| / (E − |δE|) + 2u |ln E| + 3u, since a device's logarithm is off by 2⁻²² near 1
        log_odds_f32   the same of Z − 1, Z = 1 + E, whose error is that of Z
        ln(1 + E)      |δE| / (1 + E) + 4u ln(1 + E)
        entropy        that, and (|δM₁| + M₁ |δE| / (1 + E)) / (1 + E) + 3u M₁ / (1 + E)

    and one rounding of the result. Differences from a wrong formula are thousands of times larger.
    """
    scale = np.where(temperature > 0, temperature, np.float32(1)).astype(np.float32)[:, None]
    z = (logits.astype(np.float32) / scale).astype(np.float64)
    top = z.max(axis=1, keepdims=True)
    first = z.argmax(axis=1)[:, None]
    d = np.maximum(z - top, -1e4)
    size = np.where(np.isfinite(z), np.abs(z), 0)
    division = np.where(scale != 1, 0.0 if INTERPRETED else 4.0, 0.0) * (size + np.abs(top))
    if name.startswith(EXACT):
        return UNIT * division.max(axis=1)
    weights = np.exp(d)
    np.put_along_axis(weights, first, 0, axis=1)
    others = weights.sum(axis=1)
    total_error = UNIT * (weights * (9 + additions + 4 * np.abs(d) + division)).sum(axis=1)
    moment = (weights * np.abs(d)).sum(axis=1)
    error = total_error
    if name == "log_odds_f32":
        error = total_error + UNIT * (9 + additions) * (1 + others)
    with np.errstate(divide="ignore"):
        if name in ("log_odds", "log_odds_f32"):
            lost = np.where(others > error, error / np.maximum(others - error, 1e-300), np.inf)
            allowed = lost + UNIT * (2 * np.abs(np.log(others)) + 3 + MAX_LOG_ODDS)
            # Beyond the clamp by more than that, both are exactly 40.
            return np.where(-np.log(others) > MAX_LOG_ODDS + allowed, 0, allowed)
    log1p = np.log1p(others)
    log_error = error / (1 + others) + 4 * UNIT * log1p
    if name == "logsumexp":
        return log_error + UNIT * (np.abs(top[:, 0] + log1p) + division.max(axis=1))
    if name == "draft_logprob":
        return log_error + UNIT * log1p
    assert name == "entropy"
    moment_error = UNIT * (weights * np.abs(d) * (11 + additions + 4 * np.abs(d) + division)).sum(axis=1)
    moment_error += UNIT * (weights * division).sum(axis=1)
    ratio_error = (moment_error + moment * error / (1 + others)) / (1 + others) + 3 * UNIT * moment / (1 + others)
    return log_error + ratio_error + UNIT * (log1p + moment / (1 + others))


def assert_near(name: str, found: F32, expected: F32, allowed: F64) -> None:
    """Require that a feature lies within its bound, NaN and ±∞ in the same places."""
    assert found.dtype == np.float32
    with np.errstate(invalid="ignore"):
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        gap = np.where(same, 0.0, np.abs(found.astype(np.float64) - expected.astype(np.float64)))
    bad = ~(gap <= allowed + UNIT * np.abs(np.where(same, 0.0, expected)))
    assert not bad.any(), (
        f"{name}: rows {np.flatnonzero(bad)}: {found[bad]} for {expected[bad]}, allowed {allowed[bad]}"
    )


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Require equality bit by bit; any NaN equals any other."""
    found, expected = found.cpu(), expected.cpu()
    nan = expected.isnan()
    assert torch.equal(found.isnan(), nan)
    zero = torch.zeros(())
    assert torch.equal(found.where(~nan, zero).view(torch.int32), expected.where(~nan, zero).view(torch.int32))
