"""The target's own outputs, in batches, and a few tokens past each end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from avsim.capture.dense.model import Model, require
from avsim.capture.dense.verify import draw, target_uniforms

__all__ = ["Output", "generate"]


@dataclass
class Output:
    """One request's output.

    Attributes:
        tokens: the output and the tokens past its end.
        length: tokens up to the end, an end-of-sequence token included; 0 while it is not reached.
    """

    request: int
    tokens: list[int] = field(default_factory=list)
    length: int = 0

    def finished(self, past_end: int) -> bool:
        """Tell whether the output has ended and gone on for that many tokens."""
        return self.length > 0 and len(self.tokens) == self.length + past_end


def generate(
    target: Model,
    prompts: Sequence[Sequence[int]],
    requests: Sequence[int],
    *,
    max_tokens: int,
    past_end: int,
    temperature: float,
    seed: int,
    ends: Collection[int],
) -> list[Output]:
    """Generate all prompts' outputs in one batch, padded on the left; finished ones leave it.

    Sampling inverts uniforms keyed by (seed, request, index), so what else is in the batch matters through rounding
    only.

    Args:
        prompts: token ids.
        requests: their ids.
        max_tokens: outputs are cut there.
        past_end: how many tokens the target goes on after each end.
        temperature: 0 for greedy.
        ends: the end-of-sequence tokens.
    """
    torch, transformers = require("torch"), require("transformers")
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros(len(prompts), width, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    ids, mask = ids.to(target.device), mask.to(target.device)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    uniforms = [target_uniforms(seed, request, max_tokens + past_end) for request in requests]
    outputs = [Output(request) for request in requests]
    cache, live = transformers.DynamicCache(config=target.body.config), list(range(len(prompts)))
    while live:
        out = target.body(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        logits = target.logits(out.last_hidden_state[:, -1])
        step = [uniforms[row][len(outputs[row].tokens)] for row in live]
        new = _next(logits, temperature, step)
        for row, token in zip(live, new.tolist(), strict=True):
            one = outputs[row]
            one.tokens.append(token)
            if not one.length and (token in ends or len(one.tokens) == max_tokens):
                one.length = len(one.tokens)
        keep = [n for n, row in enumerate(live) if not outputs[row].finished(past_end)]
        ids, mask, positions = new[:, None], torch.nn.functional.pad(mask, (0, 1), value=1), positions[:, -1:] + 1
        if len(keep) < len(live):
            live = [live[n] for n in keep]
            index = torch.tensor(keep, dtype=torch.int64, device=target.device)
            ids, mask, positions = ids[index], mask[index], positions[index]
            cache.batch_select_indices(index)
    return outputs


def _next(logits: Any, temperature: float, uniforms: list[float]) -> Any:
    if temperature == 0:
        return logits.argmax(dim=1)
    uniform = require("torch").tensor(uniforms, dtype=require("torch").float64, device=logits.device)
    return draw((logits / temperature).softmax(dim=1), uniform)
