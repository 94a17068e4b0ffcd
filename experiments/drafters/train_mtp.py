"""MTP-style: one small module per slot, each from the state of the one before and the newest token's embedding.

python train_mtp.py --minutes 5
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import WIDTH, Sequence, load_head, load_sequences, script_arguments
from evaluation import Bare, evaluate, save
from torch import Tensor
from training import SmallHead, Trainer, minibatches, ridge

from avsim.capture.dense.drafters.mtp import Mtp, module

MLP = 768
Weights = dict[str, Tensor]


def initial_weights(sequences: list[Sequence], embedding: Tensor, slots: int) -> Weights:
    """Module after module, the ridge map to the hidden state it should give; the MLPs start at zero."""
    ends = [torch.arange(s.prompt_len, len(s.tokens) - slots, device=s.tokens.device) for s in sequences]
    before = torch.cat([s.last[i - 1].float() for s, i in zip(sequences, ends, strict=True)])
    scale = torch.cat([1 / (before.std(0) + 1e-6), (1 / embedding.std()).expand(WIDTH)])
    weights = {"scale": scale}
    for k in range(slots):
        newest = embedding[torch.cat([s.tokens[i + k] for s, i in zip(sequences, ends, strict=True)])]
        truth = torch.cat([s.last[i + k].float() for s, i in zip(sequences, ends, strict=True)])
        x = torch.cat([before, newest], -1) * scale
        solution = ridge(torch.cat([x, torch.ones_like(x[:, :1])], -1), truth, strength=0.01)
        weights[f"{k}.map"], weights[f"{k}.bias"] = solution[:-1].contiguous(), solution[-1].clone()
        weights[f"{k}.mlp.in"] = 0.02 * torch.randn(2 * WIDTH, 2 * MLP, device=x.device)
        weights[f"{k}.mlp.out"] = torch.zeros(MLP, WIDTH, device=x.device)
        before = module(weights, k, before, newest)
    return weights


def loss(w: Weights, s: Sequence, embedding: Tensor, head: SmallHead, slots: int, count: int) -> Tensor:
    """As in `train_eagle.py`, at `count` random ends of a sequence."""
    ends = s.prompt_len + torch.randperm(max(1, len(s.tokens) - slots - s.prompt_len))[:count].to(s.tokens.device)
    x, total = s.last[ends - 1].float(), torch.zeros((), device=ends.device)
    for k in range(slots):
        x, at = module(w, k, x, embedding[s.tokens[ends + k]]), ends + k
        distance = F.smooth_l1_loss(x, s.last[at].float())
        total = total + head.loss(x, s.top_ids[at], s.top_probs[at]) + 0.5 * distance
    return total / slots


def main() -> None:
    args = script_arguments("mtp", __doc__, minutes=5.0)
    embedding = load_head(args.target, args.device)
    sequences, held_out = load_sequences(args.data, args.device), load_sequences(args.held_out, args.device)
    sequences = [s for s in sequences if len(s.tokens) - s.prompt_len > args.slots + 1]
    config = {"drafter": "mtp", "num_slots": args.slots, "width": WIDTH}
    weights = initial_weights(sequences, embedding, args.slots)
    head, bare = SmallHead(sequences, embedding), Bare(embedding)
    baseline = evaluate(Mtp(config, weights, bare), held_out, embedding)
    baseline.print("closed form")
    fixed = {"scale": weights.pop("scale")}
    trainer = Trainer(weights, args.minutes, args.lr)
    for batch in minibatches(sequences, 4, torch.Generator().manual_seed(args.seed)):
        if trainer.done >= 1:
            break
        each = [loss(fixed | trainer.weights, s, embedding, head, args.slots, count=48) for s in batch]
        trainer.step(torch.stack(each).mean())
    weights = fixed | trainer.average
    tally = evaluate(Mtp(config, weights, bare), held_out, embedding)
    tally.print("trained")
    save(args, weights, config, tally, baseline, sequences, kind="mtp", steps=trainer.steps)


if __name__ == "__main__":
    main()
