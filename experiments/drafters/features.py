"""Runs the target over the outputs of `make_data.py`, teacher-forced, and stores what the drafters train on.

`features.safetensors`, all sequences end to end: `tokens` [N], `hidden` [N, 3·576] (float16; layers as in
`common.LAYERS`), `top_ids`, `top_logits` [N, 32] and `logsumexp` [N] (zero over the prompt; row j predicts token
j + 1), `offsets` [S + 1], `prompt_len` [S].

    python features.py --data work/data
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from common import LAYERS, TOP, load_target, read_jsonl
from safetensors.torch import save_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=Path("experiments/drafters/build/target"))
    parser.add_argument("--data", type=Path, default=Path("experiments/drafters/build/data"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    model, _ = load_target(args.target, args.device)
    rows = read_jsonl(args.data / "outputs.jsonl")
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["tokens"]))
    parts: dict[int, dict[str, torch.Tensor]] = {}
    start = time.monotonic()
    with torch.inference_mode():
        for first in range(0, len(order), args.batch):
            chunk = order[first : first + args.batch]
            lengths = [len(rows[i]["tokens"]) for i in chunk]
            ids = torch.zeros(len(chunk), max(lengths), dtype=torch.long)
            for b, i in enumerate(chunk):
                ids[b, : lengths[b]] = torch.tensor(rows[i]["tokens"])
            # Right padding under a causal mask: the padded places cannot reach the real ones.
            states = model.model(ids.to(args.device), output_hidden_states=True).hidden_states
            for b, i in enumerate(chunk):
                hidden = torch.cat([states[layer][b, : lengths[b]] for layer in LAYERS], -1)
                skip = rows[i]["prompt_len"] - 1
                logits = model.lm_head(states[-1][b, skip : lengths[b]])
                top = logits.topk(TOP)
                parts[i] = {
                    "tokens": ids[b, : lengths[b]].int(),
                    "hidden": hidden.half().cpu(),
                    "top_ids": torch.cat([torch.zeros(skip, TOP), top.indices.cpu()]).int(),
                    "top_logits": torch.cat([torch.zeros(skip, TOP), top.values.cpu()]),
                    "logsumexp": torch.cat([torch.zeros(skip), logits.logsumexp(-1).cpu()]),
                }
            print(f"{first + len(chunk)} of {len(order)} in {time.monotonic() - start:.0f} s", flush=True)
    out = {name: torch.cat([parts[i][name] for i in range(len(rows))]) for name in parts[0]}
    out["offsets"] = torch.tensor([0] + [len(row["tokens"]) for row in rows]).cumsum(0)
    out["prompt_len"] = torch.tensor([row["prompt_len"] for row in rows])
    save_file(out, args.data / "features.safetensors")


if __name__ == "__main__":
    main()
