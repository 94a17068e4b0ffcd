"""What float32 rounding can do to an operation at given inputs: the room that a parity check leaves.

Source: Parker, Monte Carlo Arithmetic, 1997; Higham, Accuracy and Stability of Numerical Algorithms, 2002, §3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avsim.features import log_odds
from avsim.types import F32Array, F64Array

__all__ = ["SAFETY", "feature_slack", "rounding_slack"]

SAFETY = 4.0
"""Over the largest of `_SAMPLES` random changes; the largest possible one is seldom met by chance."""
_SAMPLES = 8
_ROUNDINGS = 8  # of one element on its way through accumulate or predict, transcendental functions counted as 3
_UNIT = {np.dtype(np.float32): 2.0**-24, np.dtype(np.float64): 2.0**-53}


def rounding_slack(
    operation: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]],
    inputs: Mapping[str, NDArray[Any]],
    rng: np.random.Generator,
    roundings: int = _ROUNDINGS,
    room: Mapping[str, F64Array] | None = None,
) -> dict[str, F64Array]:
    """Return what rounding can do to each result of an operation: `SAFETY` times the largest change under noise.

    Args:
        operation: from named inputs to named results, in NumPy.
        inputs: what it is evaluated at; floating-point ones are moved to x (1 + `roundings` · u · ε), |ε| ≤ 1, u the
            unit of rounding of their type.
        rng: of the noise.
        roundings: that one input undergoes.
        room: of some inputs, how far they may be off themselves; they are moved to x + room · ε.

    Every result is given at least `roundings` units of its own type.
    """
    results = operation(inputs)
    exact = {name: np.asarray(value, dtype=np.float64) for name, value in results.items()}
    slack = {
        name: roundings * _UNIT.get(results[name].dtype, 0.0) * np.abs(np.nan_to_num(value, posinf=0, neginf=0))
        for name, value in exact.items()
    }
    for _ in range(_SAMPLES):
        moved = {name: _moved(value, rng, roundings, (room or {}).get(name)) for name, value in inputs.items()}
        for name, value in operation(moved).items():
            with np.errstate(invalid="ignore"):
                change = np.nan_to_num(np.abs(np.asarray(value, dtype=np.float64) - exact[name]), nan=0.0)
            slack[name] = np.maximum(slack[name], SAFETY * change)
    return slack


def feature_slack(name: str, logits: F32Array, temperature: F32Array) -> F64Array:
    """Return how far a float32 reduction of logits `[rows, vocab]` may be from the exact feature, float64 `[rows]`.

    With u = 2⁻²⁴, z = logits / T and a sum over V tokens in a tree of depth d = log₂ V + 4096-wide blocks: an exponent
    z − max is off by (2|z| + 2|max|) u, so every term and every sum of terms by e = (d + 6) u + 4 max|z| u relatively.

    * log_odds = −ln r: e + 2u |ln r|
    * log_odds_f32 = −ln(Z − 1): Z is off by e Z, hence by e Z / (Z − 1 − e Z) after the subtraction
    * entropy = ln Z + Σ(max − z) e^(z − max) / Z, the second term at most ln V: e (1 + 2 ln V) + 4u (max|z| + ln V)
    * margin: 4u max|z|;  logsumexp: e + 2u (max|z| + |ln Z|)
    """
    scale = np.where(temperature > 0, temperature, 1).astype(np.float64)[:, None]
    z = logits.astype(np.float64) / scale
    unit, depth = 2.0**-24, np.log2(max(z.shape[1], 2)) + 2
    finite = np.where(np.isfinite(z), z, 0)
    largest = np.abs(finite).max(axis=1)
    error = (depth + 6) * unit + 4 * largest * unit
    if name == "log_odds":
        return error + 2 * unit * np.abs(log_odds(logits, temperature).astype(np.float64))
    if name == "log_odds_f32":
        rest = np.exp(-log_odds(logits, temperature).astype(np.float64))
        lost = error * (1 + rest)
        with np.errstate(divide="ignore"):
            return np.where(rest > 2 * lost, lost / np.maximum(rest - lost, 1e-300), np.inf) + 80 * unit
    if name == "margin":
        return 4 * unit * largest + 1e-30
    if name == "logsumexp":
        return error + 4 * unit * (largest + np.log(z.shape[1]))
    if name == "entropy":
        most = np.log(z.shape[1])
        return error * (1 + 2 * most) + 4 * unit * (largest + most)
    raise KeyError(f"{name} is no feature of a drafter's logits")


def _moved(value: NDArray[Any], rng: np.random.Generator, roundings: int, room: F64Array | None) -> NDArray[Any]:
    if value.dtype not in _UNIT:
        return value
    by = np.abs(value) * roundings * _UNIT[value.dtype]
    if room is not None:
        by = np.maximum(by, room)
    moved: NDArray[Any] = (value + by * rng.uniform(-1, 1, value.shape)).astype(value.dtype)
    return moved
