"""The sizes that an engine captures CUDA graphs for, and padding to them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from avsim.types import IntArray

__all__ = ["capture_sizes", "pad", "tail_sizes"]


@lru_cache(maxsize=32)
def capture_sizes(limit: int) -> tuple[int, ...]:
    """Return vLLM's default captured sizes up to a limit: 1, 2, 4, then every 8 to 256, then every 16.

    Source: the 83 sizes of the published profile of DeepSeek-V4-Flash (vLLM blog 2026-08-14, figure 2), limit 1024.

    >>> capture_sizes(40), len(capture_sizes(1024))
    ((1, 2, 4, 8, 16, 24, 32, 40), 83)
    """
    sizes = [1, 2, 4, *range(8, min(limit, 256) + 1, 8), *range(272, limit + 1, 16)]
    return tuple(sorted({size for size in sizes if size <= limit} | ({limit} if limit > 0 else set())))


def pad(sizes: IntArray, limit: int) -> IntArray:
    """Return what each size is padded to: the next captured size up to the limit; nothing pads beyond it.

    >>> pad(np.array([0, 3, 9, 17, 33]), 32).tolist()
    [0, 4, 16, 24, 33]
    """
    if limit <= 0:
        return sizes
    captured = np.asarray((0, *capture_sizes(limit)))
    index = np.searchsorted(captured, sizes)
    return np.where(sizes <= limit, captured[np.minimum(index, len(captured) - 1)], sizes)


def tail_sizes(limit: int, max_num_tokens: int) -> tuple[int, ...]:
    """Return the sizes beyond the capture limit L that vLLM profiles: 1.5 L, 2 L, 4 L … up to the token budget.

    Source: vLLM 0.33 `AdaptiveVerificationManager.batches_to_profile`.

    >>> tail_sizes(512, 5000)
    (768, 1024, 2048, 4096, 5000)
    """
    if limit <= 0:
        return ()
    sizes, size = {min(limit + limit // 2, max_num_tokens)}, limit
    while size < max_num_tokens:
        size = min(size * 2, max_num_tokens)
        sizes.add(size)
    return tuple(sorted(size for size in sizes if size > limit))
