"""From which load on one arm stays ahead of another, on staircases that cross more than once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from avsim.types import F64Array

__all__ = ["Crossover", "crossover"]


@dataclass(frozen=True, slots=True)
class Crossover:
    """Loads at which plain decoding overtakes an arm; None: not among the loads that were tried.

    Attributes:
        first: the lowest load tried at which plain decoding is ahead by the median of the draws.
        for_good: the lowest from which it stays ahead up to the highest load tried. Between `first` and `for_good`
            the lead changes hands: steps are staircases.
        low, high: central 95 % of `for_good` over the draws.
        most: the highest load tried.
    """

    first: int | None
    for_good: int | None
    low: int | None
    high: int | None
    most: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def crossover(loads: Sequence[int], ratios: F64Array) -> Crossover:
    """Find where an arm falls behind plain decoding.

    Args:
        loads: rising.
        ratios: the arm's throughput over that of plain decoding, `[loads, draws]`.

    >>> crossover([1, 2, 4, 8], np.array([[1.3], [0.9], [1.1], [0.8]]))
    Crossover(first=2, for_good=8, low=8, high=8, most=8)
    """
    places = np.array([*loads, np.inf])
    behind = ratios < 1
    stays = np.logical_and.accumulate(behind[::-1], axis=0)[::-1]
    each = np.where(stays.any(axis=0), stays.argmax(axis=0), len(loads))
    low, high = np.percentile(each, [2.5, 97.5], method="inverted_cdf").astype(int)
    middle = np.median(ratios, axis=1) < 1
    tail = np.logical_and.accumulate(middle[::-1])[::-1]
    first = int(middle.argmax()) if middle.any() else len(loads)
    for_good = int(tail.argmax()) if tail.any() else len(loads)

    def load(index: int) -> int | None:
        return int(places[index]) if index < len(loads) else None

    return Crossover(load(first), load(for_good), load(int(low)), load(int(high)), int(loads[-1]))
