"""What the drafter scripts share: the data, the frozen head, the options."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

LAYERS = (15, 24, -1)
TOP = 32
WIDTH = 576


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def code_prompt(prompt: str) -> str:
    """The user message for a HumanEval prompt."""
    return f"Complete this Python function:\n\n```python\n{prompt.rstrip()}\n```"


def load_target(folder: Path, device: str = "cpu") -> tuple[Any, Any]:
    """The target in float32 with its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    return model.to(device).eval().requires_grad_(False), AutoTokenizer.from_pretrained(folder)


def load_head(folder: Path, device: str = "cpu") -> Tensor:
    """The target's tied embedding and head `[vocab, width]` in float32, without the rest of the model."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return file.get_tensor("model.embed_tokens.weight").float().to(device)


@dataclass
class Sequence:
    """One prompt with its output; row j of `top_*` describes the target's prediction of token j + 1."""

    tokens: Tensor
    hidden: Tensor
    top_ids: Tensor
    top_probs: Tensor
    prompt_len: int
    source: str

    @property
    def last(self) -> Tensor:
        """The target's last hidden state `[L, width]`, after the final norm."""
        return self.hidden[:, -WIDTH:]


def load_sequences(folder: Path, device: str = "cpu") -> list[Sequence]:
    """What `features.py` wrote; hidden states stay float16."""
    f = load_file(folder / "features.safetensors", device=device)
    sources = [row["source"] for row in read_jsonl(folder / "outputs.jsonl")]
    probs = (f["top_logits"] - f["logsumexp"][:, None]).exp()
    spans = zip(f["offsets"][:-1].tolist(), f["offsets"][1:].tolist(), strict=True)
    return [
        Sequence(
            tokens=f["tokens"][a:b].long(),
            hidden=f["hidden"][a:b],
            top_ids=f["top_ids"][a:b].long(),
            top_probs=probs[a:b],
            prompt_len=int(f["prompt_len"][i]),
            source=sources[i],
        )
        for i, (a, b) in enumerate(spans)
    ]


def script_arguments(name: str, doc: str | None, minutes: float) -> argparse.Namespace:
    """The options that all training scripts share."""
    work = Path("experiments/drafters/build")
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=work / "target")
    parser.add_argument("--data", type=Path, default=work / "data")
    parser.add_argument("--held-out", type=Path, default=work / "held-out")
    parser.add_argument("--out", type=Path, default=work / name)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--slots", type=int, default=5)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    return args
