"""Heterogeneous draft blocks with given acceptance: what summary numbers leave open, as a few named parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit
from scipy.stats import rankdata

from avsim.errors import InputError
from avsim.types import F32Array, F64Array

__all__ = ["BLOCK_SHARE", "Latents", "Population", "Spread", "spread_for_auc"]

BLOCK_SHARE = 0.02

_NEWTON = 12


@dataclass(frozen=True, slots=True)
class Spread:
    """How far confidences tell slots apart, and how far they are off.

    logit p_k = m_k + sd · (√request_share · u + √block_share · v + √(1 − shares) · e_k), u of the request, v of the
    block, e_k of the slot, all standard normal; the m_k are solved for the given acceptance. p is what the features
    can know: slot k is accepted with probability p_k given the slots before it. The policy reads
    σ(slope · logit p_k + offset): slope 1 and offset 0 are calibrated.

    `request_share` is the correlation of a slot's logit with that of the block before, `request_share + block_share`
    that of neighbouring slots. Shipped real traces of one kind of prompt show 0.15 and 0.17; mixed traffic has more.
    """

    sd: float
    request_share: float = 0.15
    block_share: float = BLOCK_SHARE
    slope: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.sd) and self.sd >= 0):
            raise InputError(f"spread: sd must be finite and ≥ 0, not {self.sd}")
        if min(self.request_share, self.block_share) < 0 or self.request_share + self.block_share > 1:
            raise InputError("spread: request_share and block_share must be ≥ 0 and add up to at most 1")
        if not (self.slope > 0 and np.isfinite(self.slope) and np.isfinite(self.offset)):
            raise InputError(f"spread: slope must be above 0 and offset finite, not {self.slope} and {self.offset}")


@dataclass(frozen=True, slots=True)
class Latents:
    """Standard normal draws behind S steps of R requests, and behind the blocks before them, `[K, S, R]`."""

    request: F64Array
    block: F64Array
    slot: F64Array
    block_before: F64Array
    slot_before: F64Array

    @classmethod
    def draw(cls, num_slots: int, num_steps: int, num_reqs: int, seed: int) -> Latents:
        """Draw latents; the same seed gives the same ones, so that comparisons share them."""
        rng = np.random.default_rng([seed, 0x9090])
        plane, cube = (1, num_steps, num_reqs), (num_slots, num_steps, num_reqs)
        return cls(*(rng.standard_normal(shape) for shape in (plane, plane, cube, plane, cube)))


@dataclass(frozen=True, slots=True)
class Population:
    """Blocks of S steps of R requests, `[K, S, R]`: true conditional acceptance, and the confidences read.

    `live` belongs to the blocks at hand, `sizing` to the same requests' blocks before.
    """

    acceptance: F64Array
    live: F32Array
    sizing: F32Array

    @classmethod
    def make(cls, conditional: F64Array, spread: Spread, latents: Latents) -> Population:
        """Give blocks the conditional acceptance `[K]`: the mean of p_k over blocks that reach slot k is exact."""
        shares = spread.request_share + spread.block_share
        common = np.sqrt(spread.request_share) * latents.request
        weight = np.sqrt(spread.block_share)
        own = np.sqrt(1 - shares)
        now = spread.sd * (common + weight * latents.block + own * latents.slot[: len(conditional)])
        before = spread.sd * (common + weight * latents.block_before + own * latents.slot_before[: len(conditional)])
        level = np.empty(len(conditional))
        reach = np.ones(now.shape[1:])
        acceptance = np.empty_like(now)
        for slot, target in enumerate(conditional):
            level[slot] = _level(now[slot], reach, float(target))
            acceptance[slot] = expit(level[slot] + now[slot])
            reach = reach * acceptance[slot]
        shift = level[:, None, None]
        return cls(acceptance, _read(now + shift, spread), _read(before + shift, spread))

    @property
    def survival(self) -> F64Array:
        """True S_k of each block, `[K, S, R]`."""
        return np.cumprod(self.acceptance, axis=0, dtype=np.float64)

    def auc(self) -> F64Array:
        """Return the area under the ROC curve of the confidences by slot, over reached slots, `[K]`."""
        reach = np.concatenate([np.ones_like(self.acceptance[:1]), self.survival[:-1]])
        found = [
            _expected_auc(live.ravel(), p.ravel(), weight.ravel())
            for live, p, weight in zip(self.live, self.acceptance, reach, strict=True)
        ]
        return np.array(found)


def spread_for_auc(auc: float, acceptance: float) -> float:
    """Return the sd at which calibrated confidences of one slot with that mean acceptance have the AUC.

    >>> round(spread_for_auc(0.8, 0.7), 1)
    1.4
    """
    if not 0.5 < auc < 1 or not 0 < acceptance < 1:
        raise InputError(f"auc {auc} must lie between 0.5 and 1, and acceptance {acceptance} between 0 and 1")
    from scipy.optimize import brentq

    nodes = np.random.default_rng(0x5EED).standard_normal(4096)

    def gap(sd: float) -> float:
        p = expit(_level(sd * nodes, np.ones_like(nodes), acceptance) + sd * nodes)
        return _expected_auc(p, p, np.ones_like(p)) - auc

    return float(brentq(gap, 1e-3, 20.0))


def _read(logits: F64Array, spread: Spread) -> F32Array:
    return expit(spread.slope * logits + spread.offset).astype(np.float32)


def _level(spread: F64Array, weight: F64Array, target: float) -> float:
    """Solve Σ weight · σ(m + spread) / Σ weight = target for m by Newton's method; the left side rises in m."""
    total = weight.sum()
    level = float(logit(target))
    for _ in range(_NEWTON):
        p = expit(level + spread)
        gap = float((weight * p).sum() / total) - target
        slope = float((weight * p * (1 - p)).sum() / total)
        level -= float(np.clip(gap / max(slope, 1e-9), -2.0, 2.0))
        if abs(gap) < 1e-10:
            break
    return level


def _expected_auc(score: F64Array | F32Array, p: F64Array, weight: F64Array) -> float:
    """Return P(score of an accepted > score of a rejected), in expectation over labels, ties counted half."""
    rank = rankdata(score, method="dense") - 1
    accepted = np.bincount(rank, weight * p)
    rejected = np.bincount(rank, weight * (1 - p))
    below = np.cumsum(rejected) - rejected / 2
    return float((accepted * below).sum() / (accepted.sum() * rejected.sum()))
