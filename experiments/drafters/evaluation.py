"""Held-out acceptance of greedy drafts, and the card that keeps it."""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any

import torch
from common import LAYERS, WIDTH, Sequence
from safetensors.torch import save_file
from torch import Tensor


class Tally:
    """Conditional acceptance of greedy drafts by slot and source: accepted and reached slots."""

    def __init__(self) -> None:
        self.counts: dict[str, list[list[int]]] = {}

    def add(self, source: str, slot: int, reached: Tensor, accepted: Tensor) -> None:
        """Count one slot of many blocks (boolean `[N]` each)."""
        for name in (source, "all"):
            rows = self.counts.setdefault(name, [])
            while len(rows) <= slot:
                rows.append([0, 0])
            rows[slot][0] += int((reached & accepted).sum())
            rows[slot][1] += int(reached.sum())

    def print(self, title: str) -> None:
        """One line per source: rate (accepted/reached) by slot."""
        for name, rows in self.counts.items():
            cells = "  ".join(f"{a / max(n, 1):.3f} ({a}/{n})" for a, n in rows)
            print(f"{title} {name:22s} {cells}", flush=True)


class Bare:
    """A target of embeddings only, whose "logits" are the states themselves; the evaluation applies the head."""

    def __init__(self, embedding: Tensor) -> None:
        self.embedding, self.device, self.dtype = embedding, embedding.device, embedding.dtype

    def embed(self, tokens: Tensor) -> Tensor:
        """Rows of the embedding."""
        return self.embedding[tokens]

    def logits(self, states: Tensor) -> Tensor:
        """The states, unchanged."""
        return states


@torch.no_grad()
def evaluate(drafter: Any, sequences: list[Sequence], head: Tensor) -> Tally:
    """Greedy drafts of a drafter over `Bare` at every output position, with the sequence as the drafted prefix.

    A slot is reached while the draft equals the sequence, and accepted if it equals the target's best token.
    """
    tally = Tally()
    for s in sequences:
        layers = [s.hidden[:, WIDTH * LAYERS.index(layer) :][:, :WIDTH] for layer in drafter.hidden_layers]
        state = drafter.begin(s.tokens, torch.cat(layers, -1).float())
        ends = torch.arange(s.prompt_len, len(s.tokens), device=s.tokens.device)
        reached = torch.ones(len(ends), dtype=torch.bool, device=ends.device)
        for k in range(drafter.num_slots):
            reached = reached & (ends + 1 + k < len(s.tokens))
            drafted = s.tokens[(ends[:, None] + 1 + torch.arange(k, device=ends.device)).clamp(max=len(s.tokens) - 1)]
            out = drafter.slot(state, ends, drafted)
            best = (out.logits[reached] @ head.T).argmax(-1)
            accepted, same = torch.zeros_like(reached), torch.zeros_like(reached)
            accepted[reached] = best == s.top_ids[ends[reached] + k, 0]
            same[reached] = best == s.tokens[ends[reached] + 1 + k]
            tally.add(s.source, k, reached, accepted)
            reached = reached & same
    return tally


def save(
    args: argparse.Namespace,
    weights: dict[str, Tensor],
    config: dict[str, Any],
    tally: Tally,
    baseline: Tally,
    sequences: list[Sequence],
    **facts: Any,
) -> None:
    """Write `model.safetensors`, `config.json` and `card.json`."""
    args.out.mkdir(parents=True, exist_ok=True)
    save_file({k: w.detach().cpu().contiguous() for k, w in weights.items()}, args.out / "model.safetensors")
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    sources: dict[str, int] = {}
    for s in sequences:
        sources[s.source] = sources.get(s.source, 0) + len(s.tokens) - s.prompt_len
    card = {
        "target": "SmolLM2-135M-Instruct (Apache-2.0), weights dequantised from Q4_1, computed in float32",
        "data": "the target's own outputs (70 % greedy, 30 % at T = 1) and reference solutions (sources named so)",
        "data_licence": "prompts: GSM8K (MIT), HumanEval (MIT), own instructions (Apache-2.0)",
        "licence": "Apache-2.0",
        "output_tokens_by_source": sources,
        "output_tokens": sum(sources.values()),
        "seed": args.seed,
        "minutes": args.minutes,
        "hardware": _hardware(args.device),
        "torch": torch.__version__,
        "held_out_greedy": {"[accepted, reached] by slot": tally.counts, "closed form only": baseline.counts},
        **facts,
    }
    (args.out / "card.json").write_text(json.dumps(card, indent=1) + "\n")


def _hardware(device: str) -> str:
    if device == "cpu":
        return f"cpu, {torch.get_num_threads()} thread(s), {platform.machine()}"
    return torch.cuda.get_device_name(device)
