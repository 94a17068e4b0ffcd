"""Sequential heads after multi-token prediction: one small module per slot, without attention.

Module k maps the state before it (the target's last hidden state i − 1 for slot 0) and the embedding of the newest
token (the block's end i, later the drafted d_{k−1}) to an estimate of the target's hidden state i + k:
[state ; embedding]·W_k + b_k + MLP_k. The target's own head gives the logits. Having no attention of their own, the
modules know the prefix only through the one hidden state they start from.
Source: Gloeckle et al., Multi-token prediction (2024); Ankner et al., Hydra (2024); the closed-form start is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from avsim.capture.dense.base import SlotOutput
from avsim.capture.dense.drafters.dflash import read_checkpoint

__all__ = ["Mtp", "load", "module"]


def load(argument: str | Path, target: Any) -> Mtp:
    """Load a checkpoint folder for a target."""
    return Mtp(*read_checkpoint("mtp", argument, target), target)


@dataclass(eq=False)
class _State:
    tokens: Any
    hidden: Any
    newest: Any = None


class Mtp:
    """Runs one module per slot from the state of the module before."""

    kind: ClassVar[str] = "mtp"

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Any], target: Any):
        self.config, self.weights, self.target = config, weights, target
        self.num_slots: int | None = config["num_slots"]
        self.hidden_layers: tuple[int, ...] = (-1,)

    def begin(self, tokens: Any, hidden: Any | None) -> _State:
        if hidden is None:
            raise ValueError("mtp needs the target's last hidden states")
        return _State(tokens, hidden)

    def slot(self, state: _State, ends: Any, drafted: Any) -> SlotOutput:
        k = drafted.shape[1]
        before = state.hidden[ends - 1] if k == 0 else state.newest
        newest = state.tokens[ends] if k == 0 else drafted[:, -1]
        state.newest = module(self.weights, k, before, self.target.embed(newest))
        return SlotOutput(self.target.logits(state.newest))


def module(w: Mapping[str, Any], k: int, before: Any, embedded: Any) -> Any:
    """State `[N, width]` of slot k from the state before it and the newest token's embedding."""
    import torch

    x = torch.cat([before, embedded], -1) * w["scale"]
    gate, up = (x @ w[f"{k}.mlp.in"]).chunk(2, -1)
    return x @ w[f"{k}.map"] + w[f"{k}.bias"] + (torch.nn.functional.silu(gate) * up) @ w[f"{k}.mlp.out"]
