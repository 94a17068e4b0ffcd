"""The steps that `timing.py` measures: a batch of requests, each with its own cached context, through one forward pass.

Caches are preallocated and shapes fixed, so that a step can be recorded in a CUDA graph, as serving engines do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from avsim.capture.dense.drafters import load_drafter
from avsim.capture.dense.model import Model

Step = Callable[[], Any]


class Decoder:
    """Decoder layers over `batch` requests of which `context` tokens are cached, with room for `room` more."""

    def __init__(self, layers: Any, rotary: Any, like: Tensor, batch: int, context: int, room: int) -> None:
        attention = layers[0].self_attn
        self.layers, self.rotary, self.width = layers, rotary, attention.head_dim
        shape = (batch, attention.k_proj.out_features // self.width, context + room, self.width)
        self.keys = [torch.randn(shape, device=like.device, dtype=like.dtype) for _ in layers]
        self.values = [torch.randn_like(keys) for keys in self.keys]

    def __call__(self, x: Tensor, at: int) -> Tensor:
        """States `[batch, n, width]` of the tokens at positions `at` … `at + n − 1`."""
        count, seen = x.shape[1], at + x.shape[1]
        cos, sin = (y[:, None] for y in self.rotary(x, torch.arange(at, seen, device=x.device)[None]))
        kv_heads = self.keys[0].shape[1]
        groups = self.layers[0].self_attn.q_proj.out_features // self.width // kv_heads
        mask = None
        if count > 1:
            whole = torch.ones(count, seen, dtype=torch.bool, device=x.device)
            mask = whole.tril(at).repeat(groups, 1)
        for layer, keys, values in zip(self.layers, self.keys, self.values, strict=True):
            y, attention = layer.input_layernorm(x), layer.self_attn
            projected = (attention.q_proj(y), attention.k_proj(y), attention.v_proj(y))
            q, k, v = (z.unflatten(-1, (-1, self.width)).transpose(1, 2) for z in projected)
            keys[:, :, at:seen], values[:, :, at:seen] = _rotate(k, cos, sin), v
            # Query heads that share keys become more rows of one query, so that the cache is read once.
            q = _rotate(q, cos, sin).unflatten(1, (kv_heads, groups)).flatten(2, 3)
            y = torch.nn.functional.scaled_dot_product_attention(
                q, keys[:, :, :seen], values[:, :, :seen], attn_mask=mask, scale=attention.scaling
            )
            y = y.unflatten(2, (groups, count)).permute(0, 3, 1, 2, 4).flatten(2)
            x = x + attention.o_proj(y)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return x


@functools.cache
def _drafter(spec: str, target: Model) -> Any:
    return load_drafter(spec, target)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def target_step(target: Model, batch: int, context: int, tokens: int) -> Step:
    """One decode forward with `tokens` new tokens per request: 1 without drafts, K + 1 to verify K."""
    ids = torch.randint(100, 1000, (batch, tokens), device=target.device)
    body = target.body
    decoder = Decoder(body.layers, body.rotary_emb, target.head.weight, batch, context, tokens)
    return lambda: target.logits(body.norm(decoder(target.embed(ids), context))).argmax(-1)


def draft_model_step(target: Model, spec: str, batch: int, context: int, slots: int) -> Step:
    """`slots` greedy drafts of a draft model."""
    model = _drafter(spec, target).model
    decoder = Decoder(model.body.layers, model.body.rotary_emb, model.head.weight, batch, context, slots)
    first = torch.randint(100, 1000, (batch,), device=target.device)

    def step() -> Tensor:
        ids = first
        for slot in range(slots):
            ids = model.logits(model.body.norm(decoder(model.embed(ids)[:, None], context + slot))[:, 0]).argmax(-1)
        return ids

    return step


def eagle_step(target: Model, spec: str, batch: int, context: int, slots: int) -> Step:
    """`slots` greedy drafts of an EAGLE head."""
    body = _drafter(spec, target).body
    decoder = Decoder(body.layers, body.rotary, target.head.weight, batch, context, slots)
    first = torch.randint(100, 1000, (batch,), device=target.device)
    state = torch.randn_like(target.embed(first))

    def step() -> Tensor:
        ids, x = first, state
        for slot in range(slots):
            x = decoder(body.fc(torch.cat([target.embed(ids), x], -1))[:, None], context + slot)[:, 0]
            ids = target.logits(x).argmax(-1)
        return ids

    return step


def parallel_step(target: Model, spec: str, batch: int, context: int, slots: int) -> Step:
    """`slots` greedy drafts by the dense tracer's own drafter: the requests share one cached context."""
    drafter = _drafter(spec, target)
    tokens = torch.randint(100, 1000, (context + 1,), device=target.device)
    state = drafter.begin(tokens, target.hidden_layers(tokens, drafter.hidden_layers)[1])
    ends = torch.full((batch,), context, device=target.device)

    def step() -> Tensor:
        drafted = ends.new_empty(batch, 0)
        for _ in range(slots):
            best = drafter.slot(state, ends, drafted).logits.argmax(-1)
            drafted = torch.cat([drafted, best[:, None]], 1)
        return drafted

    return step


def difference(target: Model, context: int, tokens: int) -> float:
    """Largest difference between `Decoder`'s states and those of Transformers' own forward pass."""
    ids = torch.randint(100, 1000, (2, context + tokens), device=target.device)
    body = target.body
    decoder = Decoder(body.layers, body.rotary_emb, target.head.weight, 2, 0, context + tokens)
    decoder(target.embed(ids[:, :context]), 0)
    own = body.norm(decoder(target.embed(ids[:, context:]), context))
    return float((own - body(ids, use_cache=False).last_hidden_state[:, context:]).abs().max())
