"""A parallel block drafter with a Markov head and a confidence head, after DSpark.

The block is DFlash's. Slot k's logits get a low-rank bigram bias from the token before it, d_{k−1} (the block's end for
slot 0): head · (embedding(d_{k−1}) · M₁ · M₂). The confidence head reads the slot's state, M₁'s code of d_{k−1}, the
log-odds of the best token and the entropy of the slot's distribution at temperature 1, and the slot number; it gives
the probability that slot k is accepted given that all earlier ones were. All of that is settled before d_k is drawn:
the head must never see the token drawn in its own slot, or trimming by it would bias the output. Fitted to greedy
acceptance; at other temperatures it is not calibrated.
Source: DSpark (2026); the closed-form start is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from avsim.capture.dense.base import SlotOutput
from avsim.capture.dense.drafters.dflash import DFlash, State, block_states, read_checkpoint

__all__ = ["DSpark", "confidence_logit", "load", "markov", "spread"]


def load(argument: str | Path, target: Any) -> DSpark:
    """Load a checkpoint folder for a target."""
    return DSpark(*read_checkpoint("dspark", argument, target), target)


class DSpark(DFlash):
    """Computes whole blocks at slot 0; each slot then depends on the token drafted before it."""

    kind: ClassVar[str] = "dspark"

    def slot(self, state: State, ends: Any, drafted: Any) -> SlotOutput:
        k = drafted.shape[1]
        if k == 0:
            state.block = block_states(self.weights, state.embedded[ends], state.context, ends)
        before = state.embedded[ends] if k == 0 else self.target.embed(drafted[:, -1])
        code, bias = markov(self.weights, before)
        logits = self.target.logits(state.block[:, k] + bias)
        if "confidence.out" not in self.weights:
            return SlotOutput(logits)
        # In float32, whatever the target's precision: the head is small, and its output is recorded.
        inputs = (state.block[:, k].float(), code.float(), spread(logits.float()))
        return SlotOutput(logits, confidence_logit(self.weights, *inputs, k).sigmoid())


def markov(w: Mapping[str, Any], before: Any) -> tuple[Any, Any]:
    """Low-rank code `[N, rank]` of the embeddings `before` `[N, width]`, and the bias before the head `[N, width]`."""
    code = (before * w["embedding_scale"]) @ w["markov.1"]
    return code, code @ w["markov.2"]


def spread(logits: Any) -> Any:
    """Log-odds of the best token and entropy in nats of `[N, vocab]` logits, both over 4: `[N, 2]`."""
    import torch

    log_p = logits.log_softmax(-1)
    best = log_p.max(-1).values
    log_odds = (best - (-torch.expm1(best)).clamp(min=1e-7).log()).clamp(-40, 40)
    return torch.stack([log_odds, -(log_p.exp() * log_p).nan_to_num(0.0).sum(-1)], -1) / 4


def confidence_logit(w: Mapping[str, Any], state: Any, code: Any, spread: Any, k: Any) -> Any:
    """Log-odds `[N]` of acceptance of slot k (or slots `[N]`).

    Args:
        state: `[N, width]`, the slot's state before the bigram bias; code: `[N, rank]`, of the token before;
        spread: `[N, 2]`, of the slot's logits.
    """
    import torch

    inner = (state * w["confidence.state_scale"]) @ w["confidence.state"]
    inner = inner + (code * w["confidence.code_scale"]) @ w["confidence.code"] + spread @ w["confidence.spread"]
    hidden = torch.nn.functional.silu(inner + w["confidence.slot"][k])
    return hidden @ w["confidence.out"] + spread @ w["confidence.direct"] + w["confidence.bias"][k]
