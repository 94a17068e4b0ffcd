"""EAGLE-1 in the layout that vLLM's `EagleLlamaForCausalLM` loads.

Entry j is `fc([embedding of token j + 1 ; target's hidden state j])`, the hidden state after the target's final norm,
at rotary position j. Decoder layers follow, the first without its input norm; there is no final norm. The output is
both the input of the output head and, in place of a target's hidden state, that of the chain's next entry.
Source: Li et al., EAGLE (2024); vLLM 0.33 `llama_eagle.py`, `llm_base_proposer.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from avsim.capture.dense.base import SlotOutput
from avsim.capture.dense.drafters.chain import chain_mask, rewind
from avsim.capture.dense.model import Model, require
from avsim.errors import InputError

__all__ = ["Eagle", "load"]


def load(argument: str, target: Model) -> Eagle:
    """Load a checkpoint folder: `config.json` and safetensors; embeddings and head are the target's if absent."""
    torch, transformers = require("torch"), require("transformers")
    folder = Path(argument)
    files = sorted(folder.glob("*.safetensors"))
    if not argument or not (folder / "config.json").is_file() or not files:
        raise InputError(f"eagle:{argument}: no checkpoint folder (config.json and *.safetensors)")
    weights: dict[str, Any] = {}
    try:
        config = transformers.LlamaConfig.from_pretrained(folder)
        for file in files:
            weights |= require("safetensors.torch").load_file(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: cannot be read ({error})") from None
    own = {name: weights.pop(f"{name}.weight", None) for name in ("embed_tokens", "lm_head")}
    for name, weight in own.items():
        if weight is not None and weight.shape[0] != target.vocab_size:
            raise InputError(
                f"{folder}: {name} has {weight.shape[0]} rows, the target's vocabulary {target.vocab_size}"
            )
    body = _body(config)
    try:
        body.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"{folder}: not an EAGLE-1 llama layout ({' '.join(str(error).split())})") from None
    body = body.to(target.device, target.dtype).eval().requires_grad_(False)
    width = target.embed(torch.zeros(1, dtype=torch.int64, device=target.device)).shape[1]
    if body.fc.in_features != 2 * width:
        raise InputError(f"{folder}: fc reads {body.fc.in_features} values, the target gives 2 × {width}")
    table, head = (None if w is None else w.to(target.device, target.dtype) for w in own.values())
    return Eagle(target, body, table, head)


def _body(config: Any) -> Any:
    torch = require("torch")
    llama = require("transformers.models.llama.modeling_llama")
    config._attn_implementation = "sdpa"
    layers = [llama.LlamaDecoderLayer(config, index) for index in range(config.num_hidden_layers)]
    layers[0].input_layernorm = torch.nn.Identity()
    body = torch.nn.Module()
    body.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
    body.layers = torch.nn.ModuleList(layers)
    # Not a submodule: its frequencies stay float32 whatever the weights are cast to.
    body.__dict__["rotary"] = llama.LlamaRotaryEmbedding(config)
    return body


@dataclass(eq=False)
class _State:
    hidden: Any
    cache: Any
    newest: Any = None


class Eagle:
    """Runs the head over the sequence once, then over the newest entry of all chains, slot by slot."""

    kind: ClassVar[str] = "eagle"
    num_slots: int | None = None
    hidden_layers: tuple[int, ...] = (-1,)

    def __init__(self, target: Model, body: Any, table: Any | None, head: Any | None):
        self.target, self.body, self.table, self.head = target, body, table, head
        body.rotary.to(target.device)

    def begin(self, tokens: Any, hidden: Any | None) -> _State:
        torch = require("torch")
        if hidden is None:
            raise ValueError("EAGLE needs the target's last hidden states")
        cache = require("transformers").DynamicCache()
        positions = torch.arange(len(tokens) - 1, device=tokens.device)
        return _State(self._run(tokens[1:], hidden[:-1], positions, cache, None), cache)

    def slot(self, state: _State, ends: Any, drafted: Any) -> SlotOutput:
        depth = drafted.shape[1]
        prefix_len = len(state.hidden)
        if depth == 0:
            state.newest = state.hidden[ends - 1]
            return SlotOutput(self._logits(state.newest))
        if depth == 1:
            rewind(state.cache, prefix_len)
        mask = chain_mask(ends - 1, prefix_len, depth, self.target.dtype)
        state.newest = self._run(drafted[:, -1], state.newest, ends - 1 + depth, state.cache, mask)
        return SlotOutput(self._logits(state.newest))

    def _run(self, tokens: Any, hidden: Any, positions: Any, cache: Any, mask: Any | None) -> Any:
        torch = require("torch")
        embedded = self.target.embed(tokens) if self.table is None else self.table[tokens]
        x = self.body.fc(torch.cat([embedded, hidden], dim=1))[None]
        rotary = self.body.rotary(x, positions[None])
        for layer in self.body.layers:
            x = layer(x, attention_mask=mask, past_key_values=cache, use_cache=True, position_embeddings=rotary)
        return x[0]

    def _logits(self, hidden: Any) -> Any:
        return self.target.logits(hidden) if self.head is None else (hidden @ self.head.T).float()
