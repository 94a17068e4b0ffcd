"""Averages that policies keep from step to step."""

from __future__ import annotations

import numpy as np

from avsim.types import F64Array, IntArray

__all__ = ["block_means", "moving_mean"]


def moving_mean(
    mean: F64Array, seen: F64Array, value: F64Array, count: IntArray | F64Array, horizon: float
) -> tuple[F64Array, F64Array]:
    """Add `count` observations with the mean `value` to a moving mean; all arrays of one shape, or broadcast to it.

    The plain mean of the first `horizon` observations, and after that one in which old ones fade: new observations
    weigh count / min(seen + count, horizon), at most 1. Without observations nothing changes.

    Returns:
        The mean, and how many observations it rests on, at most `horizon`.

    >>> mean, seen = moving_mean(np.array([0.5]), np.array([2.0]), np.array([0.8]), np.array([1]), 100)
    >>> mean.round(3).tolist(), seen.tolist()
    ([0.6], [3.0])
    """
    total = np.minimum(seen + count, np.maximum(horizon, 1))
    weight = np.minimum(count / np.maximum(total, 1e-300), 1.0)
    return np.where(count > 0, mean + weight * (value - mean), mean), total


def block_means(ordered: F64Array, count: IntArray, num_blocks: int) -> F64Array:
    """Cut the first `count` values of sorted lines into equal blocks and average each, keeping the mean of the line.

    Args:
        ordered: float64 `[..., R]`, sorted, with those that do not count last.
        count: int `[...]`.
        num_blocks: J. A block may take in parts of values: block j is the mean over [j, j + 1) · count / J.

    Returns:
        float64 `[..., J]`; 0 where nothing counts.

    >>> block_means(np.array([[0.9, 0.5, 0.1, 7.0]]), np.array([3]), 2).round(3).tolist()
    [[0.767, 0.233]]
    """
    width = ordered.shape[-1]
    counted = np.where(np.arange(width) < count[..., None], ordered, 0.0)
    total = np.zeros((*counted.shape[:-1], width + 1))
    np.cumsum(counted, axis=-1, out=total[..., 1:])
    edge = count[..., None] * (np.arange(num_blocks + 1) / num_blocks)
    low = np.minimum(edge.astype(np.int64), max(width - 1, 0))
    below = np.take_along_axis(total, low, axis=-1)
    above = np.take_along_axis(total, np.minimum(low + 1, width), axis=-1)
    at_edge = below + (edge - low) * (above - below)
    return np.diff(at_edge, axis=-1) * (num_blocks / np.maximum(count, 1)[..., None])
