"""DFlash-style: a parallel block drafter over the target's hidden states, non-causal inside the block.

python train_dflash.py --minutes 5
"""

from __future__ import annotations

import torch
from block import FIXED, initial_weights, loss
from common import LAYERS, WIDTH, load_head, load_sequences, script_arguments
from evaluation import Bare, evaluate, save
from training import SmallHead, Trainer, minibatches

from avsim.capture.dense.drafters.dflash import DFlash


def main() -> None:
    args = script_arguments("dflash", __doc__, minutes=5.0)
    embedding = load_head(args.target, args.device)
    sequences, held_out = load_sequences(args.data, args.device), load_sequences(args.held_out, args.device)
    sequences = [s for s in sequences if len(s.tokens) - s.prompt_len > args.slots + 1]
    config = {"drafter": "dflash", "num_slots": args.slots, "hidden_layers": LAYERS, "width": WIDTH}
    weights = initial_weights(sequences, embedding, args.slots)
    head, bare = SmallHead(sequences, embedding), Bare(embedding)
    baseline = evaluate(DFlash(config, weights, bare), held_out, embedding)
    baseline.print("closed form")
    fixed = {name: weights.pop(name) for name in FIXED}
    trainer = Trainer(weights, args.minutes, args.lr)
    for batch in minibatches(sequences, 4, torch.Generator().manual_seed(args.seed)):
        if trainer.done >= 1:
            break
        each = [loss(fixed | trainer.weights, s, embedding, head, ends_per_sequence=32) for s in batch]
        trainer.step(torch.stack(each).mean())
    weights = fixed | trainer.average
    tally = evaluate(DFlash(config, weights, bare), held_out, embedding)
    tally.print("trained")
    save(args, weights, config, tally, baseline, sequences, kind="dflash", steps=trainer.steps)


if __name__ == "__main__":
    main()
