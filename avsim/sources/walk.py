"""The path of a run through a dense trace."""

from __future__ import annotations

import numpy as np

from avsim.types import BoolArray, IntArray

__all__ = ["walked"]


def walked(num_blocks: IntArray, position: IntArray, num_accepted: IntArray) -> BoolArray:
    """Mark the blocks that a run visits: from position 0 of each request, the next block is at position + A + 1.

    Args:
        num_blocks: blocks of each request, int64 `[requests]`: positions 0, 1, … in the rows below.
        position: of each block, int64 `[n]`, sorted by (request, position).
        num_accepted: A of each block, int64 `[n]`.

    Returns:
        bool `[n]`; blocks at or past the last output token that the trace lacks are not visited.

    >>> walked(np.array([4, 2]), np.array([0, 1, 2, 3, 0, 1]), np.array([1, 0, 0, 0, 3, 0])).astype(int).tolist()
    [1, 0, 1, 1, 1, 0]
    """
    visited = np.zeros(len(position), dtype=np.bool_)
    ends = np.cumsum(num_blocks)
    current = (ends - num_blocks)[num_blocks > 0]
    ends = ends[num_blocks > 0]
    while len(current):
        visited[current] = True
        current = current + num_accepted[current] + 1
        inside = current < ends
        current, ends = current[inside], ends[inside]
    return visited
