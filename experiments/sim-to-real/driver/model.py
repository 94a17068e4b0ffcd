"""Weights and caches: a decoder's layers, the target around them, and what is kept of a request's prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from .layers import HEAD, norm, project, run_layers, start_threads
from .tiles import pack

Rows = np.ndarray
"""int64 `[n]`: the cache slot or the position of each row."""


def read_weights(file: Path) -> dict[str, np.ndarray]:
    """Return all tensors of a safetensors file as float32 (integers as they are); bfloat16 is widened exactly."""
    import torch

    found = {}
    with safe_open(file, "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 (not a mapping)
            tensor = tensors.get_tensor(name)
            found[name] = (tensor.to(torch.float32) if tensor.is_floating_point() else tensor).numpy()
    return found


@dataclass(eq=False)
class Cache:
    """Keys `[layer, slot, head, 64, place]` and values `[layer, slot, head, place, 64]`."""

    keys: np.ndarray
    values: np.ndarray

    @classmethod
    def empty(cls, num_layers: int, num_slots: int, kv_heads: int, length: int) -> Cache:
        shape = (num_layers, num_slots, kv_heads)
        # Written once now, so that no step pays for the pages.
        return cls(
            np.full((*shape, HEAD, length), 0, dtype=np.float32), np.full((*shape, length, HEAD), 0, dtype=np.float32)
        )

    def copy_out(self, slot: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a slot's first places."""
        return self.keys[:, slot, :, :, :length].copy(), self.values[:, slot, :, :length].copy()

    def copy_in(self, slot: int, kept: tuple[np.ndarray, np.ndarray]) -> None:
        """Put back what `copy_out` returned, into any slot of any cache of the same layers."""
        length = kept[1].shape[2]
        self.keys[:, slot, :, :, :length], self.values[:, slot, :, :length] = kept


@dataclass(eq=False)
class Decoder:
    """Decoder layers of a Llama-like model, weights packed and stacked over layers.

    Attributes:
        norms: `[layers, 2, width]`, before attention and before the MLP.
        qkv, out, gate_up, down: `[layers, panels, …]`.
        cos, sin: rotary tables `[length, 32]`.
        input_norm: whether the first norm is applied (an EAGLE layer has none).
    """

    norms: np.ndarray
    qkv: np.ndarray
    out: np.ndarray
    gate_up: np.ndarray
    down: np.ndarray
    cos: np.ndarray
    sin: np.ndarray
    kv_heads: int
    eps: float
    input_norm: bool = True

    @classmethod
    def of(cls, weights: Mapping[str, np.ndarray], prefix: str, config: Mapping[str, Any], length: int) -> Decoder:
        """Take the layers `{prefix}layers.N.…` out of a checkpoint in Transformers' Llama layout."""

        def get(layer: int, name: str) -> np.ndarray:
            return weights[f"{prefix}layers.{layer}.{name}.weight"]

        def stack(*names: str) -> np.ndarray:
            layers = range(config["num_hidden_layers"])
            return np.stack([pack(np.concatenate([get(layer, name) for name in names])) for layer in layers])

        input_norm = f"{prefix}layers.0.input_layernorm.weight" in weights
        ones = np.ones(config["hidden_size"], dtype=np.float32)
        norms = [
            [get(n, "input_layernorm") if input_norm else ones, get(n, "post_attention_layernorm")]
            for n in range(config["num_hidden_layers"])
        ]
        if config["hidden_size"] // config["num_attention_heads"] != HEAD:
            raise ValueError(f"only heads of {HEAD} are implemented")
        theta = (config.get("rope_parameters") or config)["rope_theta"]
        frequency = 1 / np.float32(theta) ** (np.arange(0, HEAD, 2, dtype=np.float32) / np.float32(HEAD))
        angle = np.arange(length, dtype=np.float32)[:, None] * frequency.astype(np.float32)
        return cls(
            np.array(norms, dtype=np.float32),
            stack("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            stack("self_attn.o_proj"),
            stack("mlp.gate_proj", "mlp.up_proj"),
            stack("mlp.down_proj"),
            np.cos(angle),
            np.sin(angle),
            config["num_key_value_heads"],
            float(config["rms_norm_eps"]),
            input_norm,
        )

    def cache(self, num_slots: int) -> Cache:
        """Return an empty cache of as many places as the rotary tables have."""
        return Cache.empty(len(self.qkv), num_slots, self.kv_heads, len(self.cos))

    def run(self, x: np.ndarray, slot: Rows, position: Rows, cache: Cache) -> np.ndarray:
        """Take rows `[n, width]` through the layers, in place, writing their keys and values into the cache."""
        places, slots = cache.values.shape[3], cache.values.shape[1]
        if len(x) and not (position.max() < places and slot.max() < slots and min(position.min(), slot.min()) >= 0):
            raise ValueError(f"a row at place {position.max()} of slot {slot.max()}; the cache has {places} of {slots}")
        run_layers(
            x, slot, position, cache.keys, cache.values, self.cos, self.sin, self.norms, self.qkv, self.out,
            self.gate_up, self.down, self.eps, self.input_norm,
        )  # fmt: skip
        return x


@dataclass(eq=False)
class Target:
    """The model that is served.

    Attributes:
        embedding: `[vocab, width]`; head: the same matrix, packed.
        end: the end-of-sequence token.
    """

    decoder: Decoder
    embedding: np.ndarray
    head: np.ndarray
    final_norm: np.ndarray
    end: int
    name: str

    @classmethod
    def load(cls, folder: Path, length: int) -> Target:
        """Load a Llama checkpoint with tied embeddings from a Transformers folder; `length` is the longest context."""
        start_threads()
        config = json.loads((folder / "config.json").read_text())
        weights = read_weights(folder / "model.safetensors")
        embedding = np.ascontiguousarray(weights["model.embed_tokens.weight"])
        head = weights.get("lm_head.weight", embedding)
        decoder = Decoder.of(weights, "model.", config, length)
        return cls(decoder, embedding, pack(head), weights["model.norm.weight"], config["eos_token_id"], folder.name)

    def hidden(self, tokens: Rows, slot: Rows, position: Rows, cache: Cache) -> np.ndarray:
        """Return the last hidden states of rows, after the final norm, `[n, width]`."""
        x = self.embedding[tokens]
        return norm(self.decoder.run(x, slot, position, cache), self.final_norm, self.decoder.eps)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Return logits `[n, vocab]`."""
        return project(hidden, self.head)
