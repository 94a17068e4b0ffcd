"""The two forms that a prediction takes on the device, and the tensors that it reads.

A captured graph keeps the addresses of these tensors, so a refit writes into them and never replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["GridLaw", "LinearLaw"]


@dataclass(frozen=True, slots=True)
class LinearLaw:
    """p = σ(Σ_j w_j φ_j + b_k + Σ_d u_d m_d), in float32.

    φ is the feature itself for log-odds (`log_odds`, `log_odds_f32`), √x − 1 for `entropy` and √x / 2 − 1 for `margin`,
    x cut to [0, 40], as `multi-logistic` has them.

    Attributes:
        features: names of the F features; the first is `log_odds` or `log_odds_f32`.
        weights: w, float32 `[F]`.
        intercepts: b, float32 `[K]`.
        memory: m of each persistent slot, float32 `[max_num_reqs, D]`; None where nothing is kept of a request.
        memory_weights: u, float32 `[D]`; None without memory.
    """

    features: tuple[str, ...]
    weights: Any
    intercepts: Any
    memory: Any | None = None
    memory_weights: Any | None = None


@dataclass(frozen=True, slots=True)
class GridLaw:
    """p read from a table over log-odds, in float32; a place is clamped to 0 … cells − 1, and NaN takes place 0.

    With `interpolate`, place = (f − lowest) · per_unit, c = min(⌊place⌋, cells − 2), and
    p = t[k, c] + (place − c)(t[k, c + 1] − t[k, c]).
    Without, place = ⌊f · per_unit⌋ − lowest · per_unit, an integer, and p = t[k, place]: f − lowest would round a
    value just below an edge up to it.

    Attributes:
        table: t, float32 `[K, cells]`.
    """

    table: Any
    lowest: float
    per_unit: float
    interpolate: bool
    features: tuple[str, ...] = ("log_odds",)
