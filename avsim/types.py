"""The arrays that flow through avsim, and the one place that censors labels.

Per-slot arrays are position-major: the draft slot is the first axis, so `[K, rows]` holds slot k of every
draft block contiguously. Independent decision steps add an axis: `[K, steps, reqs]`, where a request that
takes no part in a step has `num_drafted == 0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Blocks",
    "BoolArray",
    "F32Array",
    "F64Array",
    "Features",
    "IntArray",
    "Observations",
    "observe",
    "picked_slots",
    "slot_sums",
]

F32Array = NDArray[np.float32]
F64Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Features = Mapping[str, F32Array]
"""Feature name to `[K, rows]` float32."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Draft blocks of a trace in memory, one row per block.

    Attributes:
        request: index into the trace's request table, int64 `[n]`.
        position: index of the last output token already emitted when the block starts, int64 `[n]`.
        step: engine step that verified the block, int64 `[n]`; None in a dense trace, which has no steps.
        num_drafted, num_admitted, num_accepted: int64 `[n]`; accepted is the leading admitted slots that the
            target accepted. In a dense trace every drafted slot is admitted.
        features: per-slot columns, float32 `[K, n]`; NaN in slots at or beyond `num_drafted`.
        unfit: bool `[n]`, True where the trace's mask column says that the block's labels must not be learned
            from; None where the trace has no mask.
    """

    request: IntArray
    position: IntArray
    step: IntArray | None
    num_drafted: IntArray
    num_admitted: IntArray
    num_accepted: IntArray
    features: dict[str, F32Array]
    unfit: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.request)


@dataclass(frozen=True, slots=True)
class Observations:
    """Graded draft blocks, as an estimator's `accumulate` sees them.

    Attributes:
        features: the estimator's declared features, each float32 `[K, n]`.
        confidence: the estimator's own p as predicted at draft time, float32 `[K, n]`.
        observed: True where the target's verdict is known, bool `[K, n]`.
        accepted: the label, bool `[K, n]`; meaningful only where observed.
        step_starts: offsets of the rows of each step, int64 `[steps + 1]`; rows are sorted by step.
        num_admitted: M, leading slots whose *cumulative* label (k < A) is known, int64 `[n]`; 0 in rows whose labels
            must not be learned from.
    """

    features: Features
    confidence: F32Array
    observed: BoolArray
    accepted: BoolArray
    step_starts: IntArray
    num_admitted: IntArray

    @classmethod
    def grade(
        cls,
        features: Features,
        confidence: F32Array,
        num_admitted: IntArray,
        num_accepted: IntArray,
        step_starts: IntArray,
        unfit: BoolArray | None = None,
    ) -> Observations:
        """Return blocks with what a server may know of their verdicts; see `observe`, the only place that censors."""
        observed, accepted = observe(num_admitted, num_accepted, len(confidence), unfit)
        known = num_admitted if unfit is None else np.where(unfit, 0, num_admitted)
        return cls(features, confidence, observed, accepted, step_starts, known)

    @property
    def verified(self) -> BoolArray:
        """True where the cumulative label k < A is known: slots k < M, bool `[K, n]`."""
        return np.arange(len(self.confidence), dtype=np.int16)[:, None] < self.num_admitted.astype(np.int16)

    @property
    def survived(self) -> BoolArray:
        """The cumulative label k < A, bool `[K, n]`; meaningful only where `verified`."""
        return self.observed & self.accepted


def observe(
    num_admitted: IntArray, num_accepted: IntArray, num_slots: int, unfit: BoolArray | None = None
) -> tuple[BoolArray, BoolArray]:
    """Say which slots carry a label, and which label: slot k is observed where k ≤ A and k < M.

    Args:
        num_admitted: M, leading slots sent to verification, int `[n]`.
        num_accepted: A, leading admitted slots accepted, int `[n]`, A ≤ M.
        num_slots: K.
        unfit: rows whose labels must not be learned from, bool `[n]`.

    Returns:
        `(observed, accepted)`, both bool `[K, n]`; `accepted` is k < A.

    Source: DESIGN §2 and vLLM's `_accumulate_kernel` (PR #52228).

    >>> observed, accepted = observe(np.array([3, 3, 1, 0]), np.array([1, 3, 1, 0]), 3)
    >>> observed.astype(int).T.tolist()
    [[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]]
    >>> accepted.astype(int).T.tolist()
    [[1, 0, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]]
    """
    # Counts are at most 255; comparing 16-bit ones over all slots is four times faster.
    slot = np.arange(num_slots, dtype=np.int16)[:, None]
    taken = num_accepted.astype(np.int16)
    observed = (slot <= taken) & (slot < num_admitted.astype(np.int16))
    if unfit is not None:
        observed &= ~unfit
    return observed, slot < taken


def picked_slots(mask: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the flat indices of the True cells of `[K, n]`, slot after slot, and how many each slot has, `[K]`.

    >>> picked, counts = picked_slots(np.array([[True, False], [True, True]]))
    >>> picked.tolist(), counts.tolist()
    ([0, 2, 3], [1, 2])
    """
    picked = np.flatnonzero(mask)
    bounds = np.searchsorted(picked, np.arange(len(mask) + 1) * mask.shape[1])
    return picked, np.diff(bounds)


def slot_sums(values: NDArray[Any], counts: IntArray) -> F64Array:
    """Add up values `[..., n]` that lie slot after slot, `counts[k]` of them for slot k; returns float64 `[..., K]`.

    >>> slot_sums(np.array([1.0, 2.0, 4.0]), np.array([1, 0, 2, 0])).tolist()
    [1.0, 0.0, 6.0, 0.0]
    """
    if len(counts) and (counts == counts[0]).all():
        return values.reshape(*values.shape[:-1], len(counts), -1).sum(axis=-1, dtype=np.float64)
    # reduceat cannot express an empty segment, so slots without values are left out of it.
    kept = np.flatnonzero(counts)
    sums = np.zeros((*values.shape[:-1], len(counts)))
    if len(kept):
        starts = (np.cumsum(counts) - counts)[kept]
        sums[..., kept] = np.add.reduceat(values, starts, axis=-1, dtype=np.float64)
    return sums
