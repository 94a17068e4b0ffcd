"""The confidence head of the DSpark-style drafter, fitted on training sequences that the drafter was kept from.

Binary cross-entropy on the greedy acceptance of the slots that are reached; a fifth of those sequences stops it. The
head is then measured on the held-out sequences, and checkpoint and card are completed.

    python train_confidence.py
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from block import UNSEEN, Weights
from common import WIDTH, Sequence, load_head, load_sequences, script_arguments
from safetensors.torch import load_file, save_file
from torch import Tensor

from avsim.capture.dense.drafters.dflash import block_states, context
from avsim.capture.dense.drafters.dspark import confidence_logit, markov, spread

HIDDEN = 16
Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def initial_weights(slots: int, rank: int) -> Weights:
    """An untrained head: nothing but the log-odds of the best token counts."""
    shapes = {"state": (WIDTH, HIDDEN), "code": (rank, HIDDEN), "spread": (2, HIDDEN), "slot": (slots, HIDDEN)}
    weights = {name: torch.randn(shape) * shape[0] ** -0.5 for name, shape in shapes.items()}
    weights |= {"out": torch.zeros(HIDDEN), "direct": torch.tensor([2.0, 0.0]), "bias": torch.zeros(slots)}
    return {f"confidence.{name}": x for name, x in weights.items()}


@torch.no_grad()
def reached_slots(w: Weights, sequences: list[Sequence], embedding: Tensor) -> Rows:
    """What the head reads at the reached slots of all blocks, the slot, and whether the greedy draft is accepted."""
    rows = []
    for s in sequences:
        ends = torch.arange(s.prompt_len, len(s.tokens) - 1, device=s.tokens.device)
        block = block_states(w, embedding[s.tokens[ends]], context(w, s.hidden.float()), ends)
        for k in range(block.shape[1]):
            keep = ends + k + 1 < len(s.tokens)
            ends, block = ends[keep], block[keep]
            code, bias = markov(w, embedding[s.tokens[ends + k]])
            logits = (block[:, k] + bias) @ embedding.T
            best = logits.argmax(-1)
            label = (best == s.top_ids[ends + k, 0]).float()
            rows.append((block[:, k], code, spread(logits), torch.full_like(ends, k), label))
            same = best == s.tokens[ends + k + 1]
            ends, block = ends[same], block[same]
    a, b, c, d, e = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return a, b, c, d, e


def fit(w: Weights, train: Rows, stop: Rows) -> Weights:
    """The weights with the lowest log-loss on `stop`."""
    fixed = {
        "confidence.state_scale": 1 / (train[0].std(0) + 1e-6),
        "confidence.code_scale": 1 / (train[1].std(0) + 1e-6),
    }
    optimizer = torch.optim.AdamW([x.requires_grad_(True) for x in w.values()], lr=1e-3, weight_decay=0.1)
    best, best_loss, patience = copy.deepcopy(w), float("inf"), 0
    while patience < 8:
        with torch.no_grad():
            *inputs, label = stop
            value = float(F.binary_cross_entropy_with_logits(confidence_logit(fixed | w, *inputs), label))
        print(f"log-loss {value:.4f} on {len(label)} slots, fitted on {len(train[0])}", flush=True)
        patience += 1
        if value < best_loss:
            best, best_loss, patience = copy.deepcopy(w), value, 0
        for batch in torch.randperm(len(train[0]), device=label.device).split(256):
            state, code, near, k, truth = (x[batch] for x in train)
            logit = confidence_logit(fixed | w, F.dropout(state, 0.4), F.dropout(code, 0.4), near, k)
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(logit, truth).backward()
            optimizer.step()
    return fixed | {name: x.detach() for name, x in best.items()}


def report(w: Weights, rows: Rows) -> list[dict[str, float]]:
    """Per slot: reached, accepted share, mean confidence, log-loss, that of the share alone, AUC, calibration error."""
    *inputs, label = rows
    confidence, lines = confidence_logit(w, *inputs).sigmoid(), []
    for slot in range(len(w["confidence.bias"])):
        p, y = confidence[rows[3] == slot], label[rows[3] == slot]
        if not len(y):
            continue
        losses = [float(F.binary_cross_entropy(q, y)) for q in (p, y.mean() + 0 * p)]
        auc = float((p[y == 1][:, None] > p[y == 0]).float().mean())
        tenths = p.argsort().tensor_split(10)
        error = sum(abs(float((p[i] - y[i]).sum())) for i in tenths) / len(y)
        names = ("reached", "accepted", "mean confidence", "log-loss", "log-loss of the share", "AUC", "ECE (tenths)")
        values = (len(y), float(y.mean()), float(p.mean()), *losses, auc, error)
        lines.append({name: round(value, 4) for name, value in zip(names, values, strict=True)})
        print(f"slot {slot}: {lines[-1]}", flush=True)
    return lines


def main() -> None:
    args = script_arguments("dspark", __doc__, minutes=0.0)
    folder: Path = args.out
    embedding = load_head(args.target, args.device)
    sequences = [s for s in load_sequences(args.data, args.device) if len(s.tokens) - s.prompt_len > args.slots + 1]
    unseen = sequences[::UNSEEN]
    w = load_file(folder / "model.safetensors", device=args.device)
    w = {name: x for name, x in w.items() if not name.startswith("confidence.")}
    new = initial_weights(len(w["slot"]), w["markov.1"].shape[1])
    stop = unseen[::5]
    train = [s for i, s in enumerate(unseen) if i % 5]
    parts = (reached_slots(w, part, embedding) for part in (train, stop))
    w |= fit({name: x.to(args.device) for name, x in new.items()}, *parts)
    lines = report(w, reached_slots(w, load_sequences(args.held_out, args.device), embedding))
    save_file({name: x.cpu().contiguous() for name, x in w.items()}, folder / "model.safetensors")
    card = json.loads((folder / "card.json").read_text())
    card["confidence_held_out"] = lines
    card["confidence_output_tokens"] = sum(len(s.tokens) - s.prompt_len for s in unseen)
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")


if __name__ == "__main__":
    main()
