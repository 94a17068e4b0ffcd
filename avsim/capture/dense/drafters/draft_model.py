"""A smaller causal language model with the target's vocabulary, or the target's own first layers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from avsim.capture.dense.base import SlotOutput
from avsim.capture.dense.drafters.chain import chain_mask, check_full_attention, rewind
from avsim.capture.dense.model import Model, require
from avsim.errors import InputError

__all__ = ["DraftModel", "load"]


def load(argument: str, target: Model) -> DraftModel:
    """Load `DIR`, or `first-N` for the target cut to its first N layers."""
    cut = re.fullmatch(r"first-(\d+)", argument)
    if cut:
        model = target.first_layers(int(cut[1]))
    elif argument:
        model = Model.load(argument, str(target.device), str(target.dtype).removeprefix("torch."))
    else:
        raise InputError("draft-model needs a folder or first-N: draft-model:DIR")
    if model.vocab_size != target.vocab_size:
        raise InputError(f"{argument}: the vocabulary has {model.vocab_size} tokens, the target's {target.vocab_size}")
    return DraftModel(model)


@dataclass(eq=False)
class _State:
    hidden: Any
    cache: Any


class DraftModel:
    """Runs the draft model over the sequence once, then over the newest token of all chains, slot by slot."""

    kind: ClassVar[str] = "draft-model"
    num_slots: int | None = None
    hidden_layers: tuple[int, ...] = ()

    def __init__(self, model: Model):
        check_full_attention(model.body.config, model.name)
        self.model = model

    def begin(self, tokens: Any, hidden: Any | None) -> _State:
        cache = require("transformers").DynamicCache()
        out = self.model.body(tokens[None], past_key_values=cache, use_cache=True)
        return _State(out.last_hidden_state[0], cache)

    def slot(self, state: _State, ends: Any, drafted: Any) -> SlotOutput:
        depth = drafted.shape[1]
        prefix_len = len(state.hidden)
        if depth == 0:
            return SlotOutput(self.model.logits(state.hidden[ends]))
        if depth == 1:
            rewind(state.cache, prefix_len)
        out = self.model.body(
            drafted[None, :, -1],
            attention_mask=chain_mask(ends, prefix_len, depth, self.model.dtype),
            position_ids=(ends + depth)[None],
            past_key_values=state.cache,
            use_cache=True,
        )
        return SlotOutput(self.model.logits(out.last_hidden_state[0]))
