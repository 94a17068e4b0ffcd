"""A decoder with random weights, dense or mixture of experts: what a step costs does not depend on what it says.

Llama's layout: RMS norm, rotary grouped-query attention, gated feed-forward; embedding and LM head are one matrix.
Experts are chosen by a random router, which spreads tokens evenly over them. Trained routers do not, and a request's
tokens share experts, so that a real model reads fewer distinct experts at the same number of tokens.
"""

from __future__ import annotations

from typing import Any

from avsim.costs.profile.decoder_shape import DecoderShape
from avsim.costs.profile.packed import PackedStep
from avsim.costs.profile.runner import require

__all__ = ["RandomDecoder"]

_ROPE_BASE = 10_000.0


class RandomDecoder:
    """The weights, and the forward pass of packed rows."""

    def __init__(self, shape: DecoderShape, device: str, dtype: str, generator: Any, embedding: Any = None):
        self.torch = require("torch")
        self.shape, self.device, self.dtype = shape, device, getattr(self.torch, dtype)
        self._generator = generator
        hidden, width = shape.hidden, shape.width
        self.embedding = self.matrix(shape.vocab, hidden) if embedding is None else embedding
        self.layers = []
        for _ in range(shape.layers):
            layer = {
                "qkv": self.matrix((shape.heads + 2 * shape.kv_heads) * width, hidden),
                "out": self.matrix(hidden, shape.heads * width),
            }
            if shape.experts:
                layer |= {
                    "router": self.matrix(shape.experts, hidden),
                    "up": self.matrix(shape.experts, hidden, 2 * shape.intermediate),
                    "down": self.matrix(shape.experts, shape.intermediate, hidden),
                }
            else:
                layer |= {
                    "up": self.matrix(2 * shape.intermediate, hidden),
                    "down": self.matrix(hidden, shape.intermediate),
                }
            layer |= {name: self.torch.ones(hidden, device=device, dtype=self.dtype) for name in ("norm", "norm2")}
            self.layers.append(layer)

    def matrix(self, *sizes: int) -> Any:
        """Return random weights of variance 1 / inputs: those of `[out, in]`, or of experts `[experts, in, out]`."""
        inputs = sizes[1] if len(sizes) == 3 else sizes[-1]
        made = self.torch.empty(sizes, device=self.device, dtype=self.dtype)
        return made.normal_(0.0, inputs**-0.5, generator=self._generator)

    def rotary(self, positions: Any) -> tuple[Any, Any]:
        """Return cosines and sines `[rows, 1, width]`."""
        half = self.shape.width // 2
        steps = self.torch.arange(half, device=self.device, dtype=self.torch.float32) / half
        angles = positions[:, None].float() * _ROPE_BASE**-steps
        angles = self.torch.cat([angles, angles], 1)[:, None]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def states(self, x: Any, step: PackedStep, rotary: tuple[Any, Any]) -> Any:
        """Return last hidden states `[rows, hidden]`, normalised, of input states."""
        shape, functional = self.shape, self.torch.nn.functional
        cos, sin = rotary
        norm = (shape.hidden,)
        for index, layer in enumerate(self.layers):
            qkv = functional.linear(functional.rms_norm(x, norm, layer["norm"]), layer["qkv"]).unflatten(
                1, (-1, shape.width)
            )
            turned = qkv[:, : shape.heads + shape.kv_heads]
            low, high = turned.chunk(2, -1)
            turned = turned * cos + self.torch.cat([-high, low], -1) * sin
            attended = step.attend(
                index, turned[:, : shape.heads], turned[:, shape.heads :], qkv[:, shape.heads + shape.kv_heads :], None
            )
            x = x + functional.linear(attended.flatten(1), layer["out"])
            x = x + self._feed_forward(functional.rms_norm(x, norm, layer["norm2"]), layer)
        return functional.rms_norm(x, norm)

    def logits(self, states: Any) -> Any:
        """Return float32 logits `[rows, vocab]`."""
        return self.torch.nn.functional.linear(states, self.embedding).float()

    def _feed_forward(self, x: Any, layer: dict[str, Any]) -> Any:
        functional = self.torch.nn.functional
        if not self.shape.experts:
            gate, up = functional.linear(x, layer["up"]).chunk(2, -1)
            return functional.linear(functional.silu(gate) * up, layer["down"])
        rows, count = x.shape[0], self.shape.top_k
        weight, chosen = functional.linear(x, layer["router"]).float().topk(count, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        experts = self.torch.arange(self.shape.experts, device=x.device)
        # Counted by comparison, as bincount would wait for the device.
        ends = (chosen.flatten()[:, None] == experts).sum(0).cumsum(0).to(self.torch.int32)
        gate, up = functional.grouped_mm(x[order // count], layer["up"], offs=ends).chunk(2, -1)
        made = functional.grouped_mm(functional.silu(gate) * up, layer["down"], offs=ends)
        back = self.torch.empty_like(made)
        back[order] = made
        mixed = back.unflatten(0, (rows, count)) * weight.softmax(-1).to(x.dtype)[..., None]
        return mixed.sum(1)
