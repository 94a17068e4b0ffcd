"""What captured CUDA graphs do to a step: padding to captured sizes, and the jump past the largest of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from avsim.costs.base import CostModel
from avsim.costs.captured import pad
from avsim.costs.curve import CurveCost
from avsim.costs.inject import DistortedCost, NoisyCost
from avsim.costs.roofline import RooflineCost
from avsim.types import IntArray

__all__ = ["capture_limit", "padding", "without_cliff"]

_NO_LIMIT = 1 << 17  # tokens that no step reaches


def capture_limit(model: CostModel) -> int | None:
    """Return the largest captured size, past which steps of a model jump; None where it knows of none."""
    return int(getattr(_base(model), "capture_limit", 0)) or None


def padding(model: CostModel) -> Callable[[IntArray], IntArray] | None:
    """Return what turns tokens of a step into rows after padding; None where a model knows no captured sizes.

    >>> from avsim.costs import load
    >>> pad_rows = padding(load("deepseek-v4-flash-tp4-b300"))
    >>> pad_rows(np.array([0, 3, 9, 1017, 1025])).tolist()
    [0, 4, 16, 1024, 1025]
    """
    base = _base(model)
    if isinstance(base, RooflineCost) and base.capture_limit:
        return lambda tokens: pad(tokens, base.capture_limit)
    if not isinstance(base, CurveCost) or not base.capture_limit:
        return None
    limit = base.capture_limit
    captured = np.array([0, *(size for size, _ in base.verify if size <= limit)])

    def padded(tokens: IntArray) -> IntArray:
        index = np.minimum(np.searchsorted(captured, tokens), len(captured) - 1)
        return np.where(tokens <= limit, np.maximum(captured[index], tokens), tokens)

    return padded


def without_cliff(model: CostModel) -> CostModel | None:
    """Return the same model as if steps past the capture limit L went on as before; None where it has no cliff.

    A curve goes on from V[L] at the mean slope of its upper captured half, (V[L] − V[L/2]) / (L − L/2), to its first
    point past the limit, and keeps its own rises from there. A roofline captures every size. Draft times stay.

    >>> from avsim.costs import StepShape, load
    >>> model = load("deepseek-v4-flash-tp4-b300")
    >>> size = np.array([1024, 1040])
    >>> shape = StepShape(size, size, np.zeros(2), np.zeros(2, dtype=np.int64))
    >>> model.verify_ms(shape).round(1).tolist(), without_cliff(model).verify_ms(shape).round(1).tolist()
    ([20.6, 104.5], [20.6, 20.8])
    """
    if isinstance(model, NoisyCost | DistortedCost):
        base = without_cliff(model.base)
        if base is None:
            return None
        if isinstance(model, DistortedCost):
            return replace(model, base=base, no_cliff=False)
        return replace(model, base=base)
    if isinstance(model, RooflineCost):
        return replace(model, capture_limit=_NO_LIMIT) if model.capture_limit else None
    return _continued(model) if isinstance(model, CurveCost) and model.capture_limit else None


def _continued(model: CurveCost) -> CurveCost | None:
    limit = model.capture_limit
    sizes, ms = np.asarray(model.verify, dtype=np.float64).T
    ms = np.maximum.accumulate(ms)
    above = sizes > limit
    if not above.any() or above.all():
        return None
    last = ms[~above][-1]
    middle = min(ms[np.searchsorted(sizes, limit // 2)], last)
    slope = (last - middle) / (limit - limit // 2)
    jump = float(ms[above][0] - (last + slope * (sizes[above][0] - limit)))
    if jump <= 0:
        return None
    points = [(int(size), float(value)) for size, value in zip(sizes[~above], ms[~above], strict=True)]
    if sizes[above][0] > limit + 1:
        points.append((limit + 1, float(last + slope)))
    points += [(int(size), float(value - jump)) for size, value in zip(sizes[above], ms[above], strict=True)]
    return replace(model, verify=tuple(points))


def _base(model: CostModel) -> CostModel:
    while isinstance(model, NoisyCost | DistortedCost):
        model = model.base
    return model
