"""Packed steps over cached tokens: rows of all requests side by side, attention apart for each query length.

Nothing is padded: linear layers see exactly the tokens of the step, and each request attends to its own cache. Shapes
are fixed once a step is made and nothing waits for the device, so that a step can be recorded in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avsim.costs.profile.machine import check_memory
from avsim.costs.profile.runner import require

__all__ = ["KvPool", "PackedStep"]


class KvPool:
    """Key and value storage of every layer, shared by all steps: only one runs at a time.

    Its content is random, or what the last step left: what a step costs does not depend on it.
    """

    def __init__(self, device: str, dtype: Any):
        self.device, self.dtype = device, dtype
        self._flat: dict[Any, tuple[Any, Any]] = {}

    def views(self, layer: Any, num_reqs: int, kv_heads: int, length: int, width: int) -> tuple[Any, Any]:
        """Return keys and values `[num_reqs, kv_heads, length, width]` of a layer, larger than before if need be."""
        shape = (num_reqs, kv_heads, length, width)
        count = num_reqs * kv_heads * length * width
        held = self._flat.get(layer)
        if held is None or held[0].numel() < count:
            torch = require("torch")
            check_memory({"KV cache of a layer": 2 * count * self.dtype.itemsize}, self.device)
            held = tuple(torch.empty(count, device=self.device, dtype=self.dtype).normal_() for _ in range(2))
            self._flat[layer] = held
        keys, values = held
        return keys[:count].view(shape), values[:count].view(shape)


class PackedStep:
    """The rows of one step: which request each is of, and where it stands.

    Rows are those of the first request, then of the second, …, requests with more queries first.

    Attributes:
        positions: `[rows]`, position of each row's token in its request.
        ends: `[num_reqs]`, last row of each request.
    """

    def __init__(self, queries: Sequence[int], context: int, pool: KvPool, owner: str, length: int | None = None):
        """`length`: cached tokens that a request may have in all; None for those of this step."""
        torch = require("torch")
        self.queries = sorted(queries, reverse=True)
        self.context, self.pool, self.owner = context, pool, owner
        self.length = length or context + self.queries[0]
        positions = [torch.arange(context, context + count) for count in self.queries]
        self.positions = torch.cat(positions).to(pool.device)
        self.ends = torch.tensor(self.queries).cumsum(0).sub(1).to(pool.device)
        self.groups: list[tuple[int, int, int, int]] = []
        """(first row, first request, requests, queries of each)"""
        row = 0
        for count in sorted(set(self.queries), reverse=True):
            num = self.queries.count(count)
            self.groups.append((row, self.queries.index(count), num, count))
            row += num * count
        self._masks: dict[tuple[int, int], Any] = {}

    def attend(self, layer: int, queries: Any, keys: Any, values: Any, scale: float | None) -> Any:
        """Put new keys and values into a layer's cache and attend to it.

        Args:
            queries: `[rows, heads, width]`; keys, values: `[rows, kv_heads, width]`, rotated already.

        Returns:
            `[rows, heads, width]`.
        """
        torch = require("torch")
        kv_heads, width = keys.shape[1:]
        share = queries.shape[1] // kv_heads
        held = self.pool.views((self.owner, layer), len(self.queries), kv_heads, self.length, width)
        found = []
        for row, request, num, count in self.groups:
            rows, seen = slice(row, row + num * count), self.context + count
            cached = [whole[request : request + num, :, :seen] for whole in held]
            for cache, new in zip(cached, (keys, values), strict=True):
                cache[:, :, self.context :] = new[rows].unflatten(0, (num, count)).transpose(1, 2)
            # Query heads that share keys become more rows of one query, so that the cache is read once.
            q = queries[rows].unflatten(0, (num, count)).unflatten(2, (kv_heads, share))
            q = q.permute(0, 2, 3, 1, 4).flatten(2, 3)
            out = torch.nn.functional.scaled_dot_product_attention(
                q, *cached, attn_mask=self._mask(count, share), scale=scale
            )
            out = out.unflatten(2, (share, count)).permute(0, 3, 1, 2, 4)
            found.append(out.reshape(num * count, kv_heads * share, width))
        return found[0] if len(found) == 1 else torch.cat(found)

    def _mask(self, count: int, share: int) -> Any:
        """Return what each query row may see, `[share · count, context + count]`; None where that is everything."""
        if count == 1:
            return None
        if (count, share) not in self._masks:
            torch = require("torch")
            whole = torch.ones(count, self.context + count, dtype=torch.bool, device=self.pool.device)
            self._masks[count, share] = whole.tril(self.context).repeat(share, 1)
        return self._masks[count, share]
