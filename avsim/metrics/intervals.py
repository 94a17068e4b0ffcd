"""Intervals for ratios of throughputs from replicated simulations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from avsim.types import F64Array

__all__ = ["CONFIDENCE", "RatioInterval", "ratio_interval"]

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """A ratio with its interval."""

    ratio: float
    low: float
    high: float


def ratio_interval(point: float, replicates: F64Array) -> RatioInterval:
    """Return the interval of a ratio: point · exp(±z·s), s the standard deviation of the replicates' log ratios.

    Args:
        point: the ratio on the original sample.
        replicates: the paired ratio on each bootstrap sample, `[B]`.

    A normal interval on the log scale needs far fewer replicates than percentiles do.

    >>> ratio_interval(1.1, np.full(20, 1.1)).low
    1.1
    """
    spread = float(np.log(replicates).std(ddof=1)) * float(ndtri(0.5 + CONFIDENCE / 2))
    return RatioInterval(point, point * float(np.exp(-spread)), point * float(np.exp(spread)))
