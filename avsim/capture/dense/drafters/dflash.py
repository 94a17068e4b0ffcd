"""A parallel block drafter after DFlash: all slots of a block at once, from the target's hidden states.

With end i, c = [target's hidden states i − 1, scaled ; embedding of token i ; 1]. Slot k starts as c·W_k, an estimate
of the target's last hidden state i + k. One layer refines the block: attention over the target's earlier hidden
states and, in both directions, over the block's slots; then an MLP. The target's own head gives the logits. Slots do
not depend on each other's drafted tokens, so acceptance falls with the slot.
Source: Chen et al., DFlash (2026); the closed-form start is ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from avsim.capture.dense.base import SlotOutput
from avsim.capture.dense.model import require
from avsim.errors import InputError

__all__ = ["DFlash", "State", "block_states", "context", "load", "read_checkpoint"]

HEAD = 64
_EPS = 1e-5


def read_checkpoint(kind: str, argument: str | Path, target: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read `config.json` and `model.safetensors` of a folder that experiments/drafters wrote.

    Raises:
        InputError: no such folder, another kind of drafter, or one of another width.
    """
    folder = Path(argument)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = require("safetensors.torch").load_file(folder / "model.safetensors")
    except (OSError, ValueError) as error:
        raise InputError(f"{kind}:{argument}: no checkpoint folder ({error})") from None
    if config.get("drafter") != kind:
        raise InputError(f"{folder}: config.json has drafter {config.get('drafter')!r}, not {kind!r}")
    width = target.embed(require("torch").zeros(1, dtype=require("torch").int64, device=target.device)).shape[1]
    if config["width"] != width:
        raise InputError(f"{folder}: made for a target of width {config['width']}; this one has {width}")
    single = require("torch").float32
    kept = {name: single if name.startswith("confidence.") else target.dtype for name in weights}
    return config, {name: w.to(target.device, kept[name]) for name, w in weights.items()}


def load(argument: str | Path, target: Any) -> DFlash:
    """Load a checkpoint folder for a target."""
    return DFlash(*read_checkpoint("dflash", argument, target), target)


@dataclass(eq=False)
class State:
    """One sequence's token embeddings and context, and the newest block's slots."""

    embedded: Any
    context: tuple[Any, Any, Any]
    block: Any = None


class DFlash:
    """Computes whole blocks at slot 0 and hands them out slot by slot."""

    kind: ClassVar[str] = "dflash"

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Any], target: Any):
        self.config, self.weights, self.target = config, weights, target
        self.num_slots: int | None = config["num_slots"]
        self.hidden_layers: tuple[int, ...] = tuple(config["hidden_layers"])

    def begin(self, tokens: Any, hidden: Any | None) -> State:
        if hidden is None:
            raise ValueError(f"{self.kind} needs the target's hidden states")
        return State(self.target.embed(tokens), context(self.weights, hidden))

    def slot(self, state: State, ends: Any, drafted: Any) -> SlotOutput:
        if drafted.shape[1] == 0:
            state.block = block_states(self.weights, state.embedded[ends], state.context, ends)
        return SlotOutput(self.target.logits(state.block[:, drafted.shape[1]]))


def context(w: Mapping[str, Any], hidden: Any) -> tuple[Any, Any, Any]:
    """Scaled hidden states `[L, layers · width]` of a sequence, and their keys and values `[L, heads, HEAD]`."""
    import torch

    scaled = (hidden * w["scale"]).clamp(-8, 8)
    keys = _rotate((scaled @ w["context.k"]).unflatten(-1, (-1, HEAD)), torch.arange(len(hidden), device=hidden.device))
    return scaled, keys, (scaled @ w["context.v"]).unflatten(-1, (-1, HEAD))


def block_states(w: Mapping[str, Any], embedded: Any, context: tuple[Any, Any, Any], ends: Any) -> Any:
    """States `[N, slots, width]` of the blocks at `ends`; `embedded` `[N, width]` are the embeddings of their ends."""
    import torch

    scaled, keys, values = context
    start = torch.cat([scaled[ends - 1], embedded * w["embedding_scale"]], -1)
    x = torch.einsum("nc,kcd->nkd", start, w["start"]) + w["start_bias"]
    y = _norm(x) + w["slot"]
    places = (ends[:, None] + torch.arange(x.shape[1], device=x.device)).flatten()
    q, k, v = ((y @ w[f"attention.{name}"]).unflatten(-1, (-1, HEAD)) for name in "qkv")
    q, k = (_rotate(z.flatten(0, 1), places).view_as(z) / math.sqrt(math.sqrt(HEAD)) for z in (q, k))
    past = torch.einsum("nqhd,lhd->nhql", q, keys / math.sqrt(math.sqrt(HEAD)))
    unseen = torch.arange(len(keys), device=x.device)[None] >= ends[:, None]
    past = past.masked_fill(unseen[:, None, None], -math.inf)
    attention = torch.cat([past, torch.einsum("nqhd,nkhd->nhqk", q, k)], -1).softmax(-1)
    mixed = torch.einsum("nhql,lhd->nqhd", attention[..., : len(keys)], values)
    mixed = mixed + torch.einsum("nhqk,nkhd->nqhd", attention[..., len(keys) :], v)
    x = x + mixed.flatten(2) @ w["attention.o"]
    gate, up = (_norm(x) @ w["mlp.in"]).chunk(2, -1)
    return x + (torch.nn.functional.silu(gate) * up) @ w["mlp.out"]


def _norm(x: Any) -> Any:
    return x * (x.square().mean(-1, keepdim=True) + _EPS).rsqrt()


def _rotate(x: Any, positions: Any) -> Any:
    import torch

    angles = positions[:, None] * 1e4 ** (-torch.arange(0, HEAD, 2, device=x.device) / HEAD)
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
